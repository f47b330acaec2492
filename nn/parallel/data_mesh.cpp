#include "nn/parallel/data_mesh.h"

#include <algorithm>
#include <numeric>

namespace sherd::nn {

namespace {

// The chunks of [0, rows) split over axes of these sizes, outermost first.
std::vector<Spec::Range> split_rows(std::int64_t rows, std::span<const int> sizes) {
  std::vector<Spec::Range> chunks{{0, rows}};
  for (const int size : sizes) {
    std::vector<Spec::Range> finer;
    for (const Spec::Range& chunk : chunks)
      for (int r = 0; r < size; ++r) {
        const Spec::Range within = chunk_range(chunk.size(), size, r);
        finer.push_back({chunk.begin + within.begin, chunk.begin + within.end});
      }
    chunks = std::move(finer);
  }
  return chunks;
}

/// Whether the chunk rule over as many ranks gives these.
bool are_chunks_of(std::int64_t rows, const std::vector<Spec::Range>& chunks) {
  const int ranks = static_cast<int>(chunks.size());
  for (int r = 0; r < ranks; ++r)
    if (chunks[static_cast<std::size_t>(r)].size() != chunk_range(rows, ranks, r).size()) return false;
  return true;
}

bool has(std::span<const int> list, int value) { return std::find(list.begin(), list.end(), value) != list.end(); }

std::vector<int> root_axes_of(const DeviceMesh& mesh) {
  std::vector<int> axes;
  for (int a = 0; a < mesh.ndim(); ++a) axes.insert(axes.end(), mesh.root_axes(a).begin(), mesh.root_axes(a).end());
  return axes;
}

}  // namespace

DataMesh::DataMesh(const DeviceMesh& mesh, ShardedOver over) : mesh_(mesh) {
  check(mesh.ndim() <= 2,
        "fully_shard over {}: give it one axis, which shards, or two, of which the first replicates (HSDP): "
        "mesh.slice({{..}})",
        mesh.describe());
  std::vector<int> all(static_cast<std::size_t>(mesh.root().ndim()));
  std::iota(all.begin(), all.end(), 0);
  root_group_ = mesh.root().joint_group(all);
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const bool shards = over == ShardedOver::all || (over == ShardedOver::shards && axis == mesh.ndim() - 1);
    (shards ? sharding_ : replicating_).push_back(axis);
  }
  for (const int axis : sharding_) {
    num_shards_ *= mesh.size(axis);
    shard_ = shard_ * mesh.size(axis) + mesh.coordinate(axis);
  }
  shard_group_ = group_over(sharding_);
  replica_group_ = group_over(replicating_);
}

// Axes of one rank add none. Null if that leaves this rank alone.
ProcessGroup* DataMesh::group_over(const std::vector<int>& axes) const {
  std::vector<int> list;
  for (const int axis : axes)
    if (mesh_.size(axis) > 1) list.push_back(axis);
  if (list.empty()) return nullptr;
  if (list.size() == 1) return &mesh_.group(list[0]);
  ProcessGroup* const group = mesh_.joint_group(list);
  check(group != nullptr, "fully_shard over {}: its ranks have no group; call flatten({{\"{}\", \"{}\"}}) on the mesh",
        mesh_.describe(), mesh_.axis_name(list[0]), mesh_.axis_name(list[1]));
  return group;
}

ShardPlacement DataMesh::place(const Parameter& parameter) const {
  const Shape& shape = parameter.shape();
  check(shape.size() > 0, "fully_shard: parameter \"{}\" is 0-d and has no dim to shard; make it a 1-element vector",
        parameter.name());
  ShardPlacement to;
  std::vector<int> sizes;  // of what splits dim 0 further, outermost first
  if (parameter.value().is_distributed()) {
    place_distributed(to, parameter);
    for (const int axis : sharding_)
      for (const int a : mesh_.root_axes(axis)) sizes.push_back(mesh_.root().size(a));
  } else {
    place_plain(to, shape);
    for (const int axis : sharding_) sizes.push_back(mesh_.size(axis));
  }
  to.local_shape = to.sharded->local_shape(shape);
  const std::vector<Spec::Range> chunks = split_rows(to.full_shape[0], sizes);
  if (!are_chunks_of(to.full_shape[0], chunks))
    for (const Spec::Range& chunk : chunks) to.row_counts.push_back(chunk.size());
  to.rows = chunks[static_cast<std::size_t>(shard())];
  return to;
}

void DataMesh::place_plain(ShardPlacement& to, const Shape& shape) const {
  std::vector<Placement> placements(static_cast<std::size_t>(mesh_.ndim()), Replicate());
  for (const int axis : sharding_) placements[static_cast<std::size_t>(axis)] = Shard(0);
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
  const std::vector<int> data = root_axes_of(mesh_);
  std::vector<Placement> placements(static_cast<std::size_t>(root.ndim()), Replicate());
  for (int axis = 0; axis < theirs.ndim(); ++axis) {
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
      placements[static_cast<std::size_t>(axis)] = Shard(0);
      order.push_back(axis);
    }
  to.sharded = Spec::of(root, placements, order);
  to.gathered = &own;
  to.full_shape = own.local_shape(parameter.shape());
}

}  // namespace sherd::nn
