#include "nn/parallel/data_mesh.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

// The chunks of [0, rows) split over axes of these sizes, outermost first.
std::vector<Spec::Range> split_rows(std::int64_t rows, std::span<const int> sizes) {
  std::vector<Spec::Range> chunks{{0, rows}};
  for (const int size : sizes) {
    std::vector<Spec::Range> finer;
    for (const Spec::Range& chunk : chunks)
      for (const int r : up_to(size)) {
        const Spec::Range within = chunk_range(chunk.size(), size, r);
        finer.push_back({chunk.begin + within.begin, chunk.begin + within.end});
      }
    chunks = std::move(finer);
  }
  return chunks;
}

std::vector<Spec::Range> ranges_of(const std::vector<std::int64_t>& sizes) {
  std::vector<Spec::Range> ranges;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    ranges.push_back({begin, begin + size});
    begin += size;
  }
  return ranges;
}

int dim_of(const ShardPlan& plan, const Parameter& parameter) {
  const Shape& shape = parameter.shape();
  check(shape.size() > 0, "fully_shard: parameter \"{}\" is 0-d and has no dim to shard; make it a 1-element vector",
        parameter.name());
  check(plan.dim >= -shape.size() && plan.dim < shape.size(),
        "fully_shard: parameter \"{}\" is {}{} and has no dim {} to shard", parameter.name(),
        name(parameter.value().dtype()), shape, plan.dim);
  check(plan.merged >= 1 && plan.merged <= shape.size() && (plan.merged == 1 || plan.dim == 0),
        "fully_shard: parameter \"{}\" is {}{} and cannot be sharded along dim {} with {} leading dims merged; merge "
        "1 to {} of them and shard dim 0",
        parameter.name(), name(parameter.value().dtype()), shape, plan.dim, plan.merged, shape.size());
  check(plan.merged == 1 || !parameter.value().is_distributed(),
        "fully_shard: parameter \"{}\" is {} and cannot be sharded with {} leading dims merged: tensor parallelism has "
        "split it; shard one dim",
        parameter.name(), sherd::describe(parameter.value()), plan.merged);
  check(plan.rows.empty() || plan.owner == ShardPlan::kNobody,
        "fully_shard: the plan for parameter \"{}\" lists rows and names an owner; give one of them", parameter.name());
  return plan.dim < 0 ? plan.dim + shape.size() : plan.dim;
}

/// With so many leading dims as one.
Shape with_merged(const Shape& shape, int dims) {
  Shape merged{1};
  for (const int d : indices(shape))
    if (d < dims) merged[0] *= shape[d];
    else merged.push_back(shape[d]);
  return merged;
}

/// Their sizes; empty if the chunk rule over as many ranks gives the same.
std::vector<std::int64_t> sizes_of(const std::vector<Spec::Range>& chunks, std::int64_t rows) {
  std::vector<std::int64_t> sizes;
  bool are_chunks = true;
  for (const Spec::Range& chunk : chunks) {
    const auto rank = static_cast<int>(sizes.size());
    are_chunks = are_chunks && chunk.size() == chunk_range(rows, static_cast<int>(chunks.size()), rank).size();
    sizes.push_back(chunk.size());
  }
  return are_chunks ? std::vector<std::int64_t>() : sizes;
}

// Its shards split along dim 0 over one more axis.
const Spec* divided(const Spec& shards, int axis) {
  const Spec* const finer = shards.with(axis, Shard(0));
  if (shards.rows_of(0).empty()) return finer;
  std::vector<std::int64_t> rows;
  for (const std::int64_t size : shards.rows_of(0))
    for (const int r : up_to(shards.axis_size(axis)))
      rows.push_back(chunk_range(size, shards.axis_size(axis), r).size());
  return finer->with_rows(0, rows)->simplified();
}

bool has(std::span<const int> list, int value) { return std::find(list.begin(), list.end(), value) != list.end(); }

std::vector<int> root_axes_of(const DeviceMesh& mesh) {
  std::vector<int> axes;
  for (const int a : up_to(mesh.ndim())) axes.insert(axes.end(), mesh.root_axes(a).begin(), mesh.root_axes(a).end());
  return axes;
}

DeviceMesh one_axis_of(const DeviceMesh& mesh, const std::vector<std::string>& names) {
  return names.size() == 1 ? mesh[names[0]] : mesh.flatten(names);
}

}  // namespace

ProcessGroup& root_group_of(const DeviceMesh& mesh) {
  std::vector<int> all(static_cast<std::size_t>(mesh.root().ndim()));
  std::iota(all.begin(), all.end(), 0);
  return *mesh.root().joint_group(all);
}

DeviceMesh mesh_of_data(const DeviceMesh& mesh, const DataAxes& axes) {
  check(!axes.shard.empty() || !axes.replicate.empty(),
        "fully_shard over {}: data_axes names no axis; list those with data of their own, as {{.shard = {{\"{}\"}}}}",
        mesh.describe(), mesh.axis_name(0));
  for (const std::string& shard : axes.shard)
    for (const std::string& replica : axes.replicate)
      check(mesh.axis(replica) < mesh.axis(shard),
            "fully_shard over {}: axis \"{}\" replicates and is not before \"{}\", which shards; make the mesh with "
            "all axes that replicate first, and name each once",
            mesh.describe(), replica, shard);
  if (axes.shard.empty()) return one_axis_of(mesh, axes.replicate);
  if (axes.replicate.empty()) return one_axis_of(mesh, axes.shard);
  return DeviceMesh::concatenate({one_axis_of(mesh, axes.replicate), one_axis_of(mesh, axes.shard)});
}

DataMesh::DataMesh(const DeviceMesh& mesh, ShardedOver over, ShardedOver owned_over) : mesh_(mesh) {
  check(mesh.ndim() <= 2,
        "fully_shard over {}: give it one axis, which shards, or two, of which the first replicates (HSDP): "
        "mesh.slice({{..}})",
        mesh.describe());
  root_group_ = &root_group_of(mesh);
  for (const int axis : up_to(mesh.ndim())) {
    const bool shards = over == ShardedOver::all || (over == ShardedOver::shards && axis == mesh.ndim() - 1);
    (shards ? sharding_ : replicating_).push_back(axis);
  }
  for (const int axis : sharding_) num_shards_ *= mesh.size(axis);
  shard_ = index_on(sharding_);
  replica_ = index_on(replicating_);
  shard_group_ = group_over(sharding_);
  replica_group_ = group_over(replicating_);
  divides_shards_ = over == ShardedOver::shards && owned_over == ShardedOver::all && num_replicas() > 1;
}

// Row-major.
int DataMesh::index_on(const std::vector<int>& axes) const {
  int index = 0;
  for (const int axis : axes) index = index * mesh_.size(axis) + mesh_.coordinate(axis);
  return index;
}

// Axes of one rank add none. Null if that leaves this rank alone.
ProcessGroup* DataMesh::group_over(const std::vector<int>& axes) const {
  std::vector<int> list;
  for (const int axis : axes)
    if (mesh_.size(axis) > 1) list.push_back(axis);
  if (list.empty()) return nullptr;
  if (list.size() == 1) return &mesh_.group(list[0]);
  if (ProcessGroup* const group = mesh_.joint_group(list)) return group;
  const DeviceMesh root = mesh_.root();  // which does not know flattened axes by their names
  std::string names;
  for (const int axis : list)
    for (const int a : mesh_.root_axes(axis))
      names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", root.axis_name(a));
  fail("fully_shard over {}: its ranks have no group; call flatten({{{}}}) on {}", mesh_.describe(), names,
       root.describe());
}

// Sizes of the shards of so many rows of the plan's dim; empty: by the chunk rule.
std::vector<std::int64_t> DataMesh::listed_rows(const ShardPlan& plan, const Parameter& parameter,
                                                std::int64_t rows) const {
  if (sharding_.empty()) return {};
  if (plan.owner == ShardPlan::kNobody) {
    const bool fits = std::ssize(plan.rows) == num_shards_ &&
                      std::accumulate(plan.rows.begin(), plan.rows.end(), std::int64_t{0}) == rows &&
                      std::ranges::all_of(plan.rows, [](std::int64_t n) { return n >= 0; });
    check(
        plan.rows.empty() || fits,
        "fully_shard over {}: parameter \"{}\" is to be sharded in {} rows of dim {}, of which a local tensor has {}: "
        "give one number for each of {} shards, which add up to it",
        mesh_.describe(), parameter.name(), fmt::join(plan.rows, ", "), plan.dim, rows, num_shards_);
    return plan.rows;
  }
  check(plan.owner >= 0 && plan.owner < num_shards_,
        "fully_shard over {}: parameter \"{}\" is to be owned by shard {}; there are {}", mesh_.describe(),
        parameter.name(), plan.owner, num_shards_);
  std::vector<std::int64_t> owned(static_cast<std::size_t>(num_shards_));
  owned[static_cast<std::size_t>(plan.owner)] = rows;
  return owned;
}

ShardPlacement DataMesh::place(const Parameter& parameter, const ShardPlan& plan) const {
  ShardPlacement to;
  to.dim = dim_of(plan, parameter);
  const Shape shape = to.shape = plan.merged > 1 ? with_merged(parameter.shape(), plan.merged) : parameter.shape();
  std::vector<int> outer, sizes;  // of what splits the dim before the data axes, and of those, outermost first
  if (parameter.value().is_distributed()) {
    const Spec& own = Spec::from(parameter.value());
    for (const int axis : own.axes_of(to.dim)) outer.push_back(own.axis_size(axis));
    place_distributed(to, parameter);
    for (const int axis : sharding_)
      for (const int a : mesh_.root_axes(axis)) sizes.push_back(mesh_.root().size(a));
  } else {
    place_plain(to, shape);
    for (const int axis : sharding_) sizes.push_back(mesh_.size(axis));
  }
  to.used_shape = plan.merged > 1 ? parameter.shape() : to.full_shape;
  const std::int64_t rows = to.full_shape[to.dim];
  std::vector<std::int64_t> listed;  // of the shards of all ranks
  for (const Spec::Range& part : split_rows(shape[to.dim], outer))
    std::ranges::copy(listed_rows(plan, parameter, part.size()), std::back_inserter(listed));
  if (!listed.empty()) to.sharded = to.sharded->with_rows(to.dim, listed)->simplified();
  to.local_shape = to.sharded->local_shape(shape);
  const std::vector<Spec::Range> chunks =
      listed.empty() ? split_rows(rows, sizes) : ranges_of(listed_rows(plan, parameter, rows));
  to.row_counts = sizes_of(chunks, rows);
  to.rows = chunks[static_cast<std::size_t>(shard())];
  return to;
}

std::vector<std::int64_t> DataMesh::divide(ShardPlacement& placement, const Parameter& parameter) const {
  std::vector<int> sizes;
  const auto split = [&](int axis) {
    sizes.push_back(placement.sharded->axis_size(axis));
    placement.sharded = divided(*placement.sharded, axis);
  };
  for (const int axis : replicating_) {
    if (!parameter.value().is_distributed()) split(axis);
    else
      for (const int a : mesh_.root_axes(axis)) split(a);
  }
  const std::int64_t rows = placement.local_shape[0];
  const std::vector<Spec::Range> parts = split_rows(rows, sizes);
  placement.owned = parts[static_cast<std::size_t>(replica())];
  placement.local_shape = placement.sharded->local_shape(placement.shape);
  return sizes_of(parts, rows);
}

void DataMesh::place_plain(ShardPlacement& to, const Shape& shape) const {
  std::vector<Placement> placements(static_cast<std::size_t>(mesh_.ndim()), Replicate());
  for (const int axis : sharding_) placements[static_cast<std::size_t>(axis)] = Shard(to.dim);
  to.sharded = Spec::of(mesh_, placements);
  to.full_shape = shape;
}

// On the root mesh. The parameter's own axes stay the outer splits, the data axes become the innermost.
void DataMesh::place_distributed(ShardPlacement& to, const Parameter& parameter) const {
  const Tensor& value = parameter.value();
  const Spec& own = Spec::from(value);
  const DeviceMesh theirs = own.mesh(), root = mesh_.root();
  check(
      theirs.root() == root,
      "fully_shard over {}: parameter \"{}\" is {} on {}, which is not a slice of the same mesh; slice both from one, "
      "as mesh[\"dp\"] and mesh[\"tp\"]",
      mesh_.describe(), parameter.name(), sherd::describe(value), theirs.describe());
  check(!own.is_partial(), "fully_shard: parameter \"{}\" is {}; a parameter cannot be Partial", parameter.name(),
        sherd::describe(value));
  check(!own.lists_rows(), "fully_shard: parameter \"{}\" is {}, shards of listed sizes; they are not sharded further",
        parameter.name(), sherd::describe(value));
  const std::vector<int> data = root_axes_of(mesh_);
  std::vector<Placement> placements(static_cast<std::size_t>(root.ndim()), Replicate());
  for (const int axis : up_to(theirs.ndim())) {
    check(theirs.root_axes(axis).size() == 1,
          "fully_shard: parameter \"{}\" is on the flattened axis \"{}\"; axes that were flattened cannot be told "
          "apart in {}: use axes of the mesh itself",
          parameter.name(), theirs.axis_name(axis), root.describe());
    const int at = theirs.root_axes(axis)[0];
    check(!has(data, at), "fully_shard over {}: parameter \"{}\" is sharded already: {} on {}", mesh_.describe(),
          parameter.name(), sherd::describe(value), theirs.describe());
    placements[static_cast<std::size_t>(at)] = own.placement(axis);
  }
  std::vector<int> order;
  for (const int axis : own.order()) order.push_back(theirs.root_axes(axis)[0]);
  for (const int sharding : sharding_)
    for (const int axis : mesh_.root_axes(sharding)) {
      placements[static_cast<std::size_t>(axis)] = Shard(to.dim);
      order.push_back(axis);
    }
  to.sharded = Spec::of(root, placements, order);
  to.gathered = &own;
  to.full_shape = own.local_shape(parameter.shape());
}

}  // namespace sherd::nn
