#include "dtensor/spec.h"

#include <algorithm>
#include <numeric>

#include "dtensor/spec_table.h"
#include "runtime/op/core/tensor.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

using AxesOfDim = std::vector<std::vector<int>>;

// All axes, outermost split first: those that `order` names, then the others in mesh order.
std::vector<int> complete_order(const DeviceMesh& mesh, std::span<const int> order) {
  std::vector<int> all;
  for (int axis : order) {
    const bool is_new = axis >= 0 && axis < mesh.ndim() && std::find(all.begin(), all.end(), axis) == all.end();
    if (!is_new) [[unlikely]]
      fail("the order of splitting names axis {}, twice or not one of {}", axis, mesh.describe());
    all.push_back(axis);
  }
  for (const int axis : up_to(mesh.ndim()))
    if (std::find(all.begin(), all.end(), axis) == all.end()) all.push_back(axis);
  return all;
}

AxesOfDim split_dims(std::span<const Placement> placements, std::span<const int> order) {
  AxesOfDim dims;
  for (int axis : order) {
    const Placement& p = placements[static_cast<std::size_t>(axis)];
    if (!p.is_shard()) continue;
    check(p.dim >= 0 && p.dim < kMaxDims, "Shard({}): no such dim; a layout counts them from 0 to {}", p.dim,
          kMaxDims - 1);
    const auto d = static_cast<std::size_t>(p.dim);
    if (dims.size() <= d) dims.resize(d + 1);
    dims[d].push_back(axis);
  }
  return dims;
}

}  // namespace

std::string to_string(const Placement& placement) {
  if (placement.is_shard()) return fmt::format("S{}", placement.dim);
  if (!placement.is_partial()) return "R";
  return placement.reduce == ReduceKind::sum ? "P" : fmt::format("P{}", name(placement.reduce));
}

Spec::Range chunk_range(std::int64_t n, int parts, int r) {
  const std::int64_t c = (n + parts - 1) / parts;
  return {std::min(r * c, n), std::min((r + 1) * c, n)};
}

const Spec* Spec::of(const DeviceMesh& mesh, std::span<const Placement> placements, std::span<const int> order) {
  if (static_cast<int>(placements.size()) != mesh.ndim()) [[unlikely]]
    fail("{} placements for {}: give one per axis", placements.size(), mesh.describe());
  return intern(mesh, placements, split_dims(placements, complete_order(mesh, order)), {});
}

const Spec* Spec::intern(const DeviceMesh& mesh, std::span<const Placement> placements, AxesOfDim dims, Rows rows) {
  SpecTable::Key key{dims, {}, rows};
  for (const Placement& p : placements) key.partial.push_back(p.is_partial() ? static_cast<int>(p.reduce) : -1);
  return mesh.impl_->layouts->find_or_make(
      std::move(key), [&] { return new Spec(mesh, placements, std::move(dims), std::move(rows)); });
}

Spec::Spec(const DeviceMesh& mesh, std::span<const Placement> placements, AxesOfDim axes_of_dim, Rows rows_of_dim)
    : mesh_(mesh.impl_),
      mesh_id_(mesh.id()),
      axes_(mesh.impl_->axes),
      coordinates_(mesh.impl_->coordinates),
      axes_of_dim_(std::move(axes_of_dim)),
      rows_of_dim_(std::move(rows_of_dim)) {
  for (Placement p : placements) {
    if (!p.is_shard()) p.dim = 0;
    if (!p.is_partial()) p.reduce = ReduceKind::sum;
    is_partial_ |= p.is_partial();
    is_replicated_ &= p.is_replicate();
    placements_.push_back(p);
  }
}

const Spec* Spec::replicate(const DeviceMesh& mesh) {
  return of(mesh, std::vector<Placement>(static_cast<std::size_t>(mesh.ndim())));
}

const Spec& Spec::from(const Tensor& tensor) {
  check(tensor.is_distributed(), "{} is a plain tensor; distribute() it first", tensor);
  return static_cast<const Spec&>(*tensor.layout());  // dtensor is the only maker of layouts
}

DeviceMesh Spec::mesh() const {
  auto impl = mesh_.lock();
  if (!impl) [[unlikely]]
    fail("the mesh of a tensor with placement {} is gone; keep the DeviceMesh alive as long as its tensors",
         describe());
  return DeviceMesh(std::move(impl));
}

const Distributed* Spec::replicated() const {
  const DeviceMesh alive = mesh();
  return is_replicated_ ? this : replicate(alive);
}

std::span<const int> Spec::axes_of(int dim) const {
  if (static_cast<std::size_t>(dim) >= axes_of_dim_.size()) return {};
  return axes_of_dim_[static_cast<std::size_t>(dim)];
}

int Spec::num_shards(int dim) const {
  int parts = 1;
  for (int axis : axes_of(dim)) parts *= axis_size(axis);
  return parts;
}

std::vector<int> Spec::order() const {
  std::vector<int> axes;
  for (const std::vector<int>& list : axes_of_dim_) axes.insert(axes.end(), list.begin(), list.end());
  return axes;
}

const Spec* Spec::with(int axis, Placement placement) const {
  std::vector<Placement> placements = placements_;
  placements[static_cast<std::size_t>(axis)] = placement;
  std::vector<int> axes = order();
  std::erase(axes, axis);
  axes.push_back(axis);
  const Spec* result = of(mesh(), placements, axes);
  for (const int d : up_to(static_cast<int>(rows_of_dim_.size())))
    if (!rows_of(d).empty() && std::ranges::equal(axes_of(d), result->axes_of(d)))
      result = result->with_rows(d, rows_of(d));
  return result;
}

const Spec* Spec::with_rows(int dim, std::span<const std::int64_t> rows) const {
  const auto is_negative = [](std::int64_t n) { return n < 0; };
  if (std::ranges::ssize(rows) != num_shards(dim) || std::ranges::any_of(rows, is_negative))
    fail("shards of {} rows for dim {} of {}: it has {} shards; give a size for each, not below 0",
         fmt::join(rows, ", "), dim, describe(), num_shards(dim));
  const bool are_equal = std::ranges::adjacent_find(rows, std::not_equal_to<>()) == rows.end();
  Rows lists = rows_of_dim_;
  const auto d = static_cast<std::size_t>(dim);
  if (lists.size() <= d) lists.resize(d + 1);
  lists[d].assign(rows.begin(), are_equal ? rows.begin() : rows.end());
  return with_lists(std::move(lists));
}

const Spec* Spec::with_lists(Rows lists) const {
  while (!lists.empty() && lists.back().empty()) lists.pop_back();
  return intern(mesh(), placements_, axes_of_dim_, std::move(lists));
}

bool Spec::lists_chunks(int dim) const {
  const std::span<const std::int64_t> rows = rows_of(dim);
  const std::int64_t size = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  std::vector<int> at(placements_.size());
  for (const std::size_t r : indices(rows)) {
    auto left = static_cast<int>(r);
    for (std::size_t a = axes_of(dim).size(); a-- > 0;) {
      const int axis = axes_of(dim)[a];
      at[static_cast<std::size_t>(axis)] = left % axis_size(axis);
      left /= axis_size(axis);
    }
    if (nested_chunk(dim, size, at).size() != rows[r]) return false;
  }
  return true;
}

const Spec* Spec::simplified() const {
  if (!lists_rows()) return this;
  Rows lists = rows_of_dim_;
  for (const std::size_t d : indices(lists))
    if (lists_chunks(static_cast<int>(d))) lists[d].clear();
  return with_lists(std::move(lists));
}

std::span<const std::int64_t> Spec::rows_of(int dim) const {
  if (static_cast<std::size_t>(dim) >= rows_of_dim_.size()) return {};
  return rows_of_dim_[static_cast<std::size_t>(dim)];
}

Spec::Range Spec::range_at(int dim, std::int64_t size, std::span<const int> coordinates) const {
  const std::span<const std::int64_t> rows = rows_of(dim);
  if (rows.empty()) return nested_chunk(dim, size, coordinates);
  int shard = 0;
  for (int axis : axes_of(dim)) shard = shard * axis_size(axis) + coordinates[static_cast<std::size_t>(axis)];
  const std::int64_t total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  if (total != size) [[unlikely]]
    fail("placement {} lists {} rows of dim {}; a tensor with {} of them cannot have it", describe(), total, dim, size);
  const std::int64_t begin = std::accumulate(rows.begin(), rows.begin() + shard, std::int64_t{0});
  return {begin, begin + rows[static_cast<std::size_t>(shard)]};
}

Spec::Range Spec::nested_chunk(int dim, std::int64_t size, std::span<const int> coordinates) const {
  Range range{0, size};
  for (int axis : axes_of(dim)) {
    const auto a = static_cast<std::size_t>(axis);
    const Range part = chunk_range(range.size(), axes_[a].size, coordinates[a]);
    range = {range.begin + part.begin, range.begin + part.end};
  }
  return range;
}

Spec::Range Spec::local_range(int dim, std::int64_t size) const { return range_at(dim, size, coordinates_); }

Dims Spec::local_offset(const Shape& shape) const {
  Dims offset;
  for (const int d : indices(shape)) offset.push_back(local_range(d, shape[d]).begin);
  return offset;
}

Shape Spec::local_shape(const Shape& shape) const {
  if (static_cast<int>(axes_of_dim_.size()) > shape.size()) [[unlikely]]
    fail("placement {} shards dim {} of a tensor of shape {}", describe(), axes_of_dim_.size() - 1, shape);
  Shape local = shape;
  for (const int d : up_to(static_cast<int>(axes_of_dim_.size())))
    if (!axes_of_dim_[static_cast<std::size_t>(d)].empty()) local[d] = local_range(d, shape[d]).size();
  return local;
}

std::string Spec::describe() const {
  std::string text;
  for (const std::size_t d : indices(axes_of_dim_)) {
    if (axes_of_dim_[d].empty()) continue;
    std::string axes;
    for (int a : axes_of_dim_[d]) axes += (axes.empty() ? "" : ",") + axes_[static_cast<std::size_t>(a)].name;
    const std::span<const std::int64_t> rows = rows_of(static_cast<int>(d));
    const std::string sizes = rows.empty() ? "" : fmt::format("({})", fmt::join(rows, ","));
    text += fmt::format("{}{}: {}{}", text.empty() ? "" : "; ", d, axes, sizes);
  }
  for (const std::size_t a : indices(placements_)) {
    if (!placements_[a].is_partial()) continue;
    const ReduceKind kind = placements_[a].reduce;
    text += fmt::format("{}{}{}", text.empty() ? "" : "; ",
                        kind == ReduceKind::sum ? "+" : fmt::format("{} ", sherd::name(kind)), axes_[a].name);
  }
  return fmt::format("{{{}}}", text);
}

std::string Spec::name() const {
  std::string sizes;
  for (const DeviceMesh::Axis& axis : axes_)
    sizes += fmt::format("{}{}={}", sizes.empty() ? "" : ",", axis.name, axis.size);
  return fmt::format("{} on mesh({})", describe(), sizes);
}

}  // namespace sherd
