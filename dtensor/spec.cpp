#include "dtensor/spec.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "runtime/tensor/tensor.h"

namespace sherd {

Spec::Range chunk_range(std::int64_t n, int parts, int r) {
  const std::int64_t c = (n + parts - 1) / parts;
  return {std::min(r * c, n), std::min((r + 1) * c, n)};
}

const Spec* Spec::of(const DeviceMesh& mesh, std::span<const Placement> placements) {
  check(static_cast<int>(placements.size()) == mesh.ndim(), "{} placements for {}", placements.size(), mesh.describe());
  using Key = std::pair<std::uint64_t, std::vector<std::tuple<int, int, int>>>;
  static std::mutex mutex;
  static std::map<Key, std::unique_ptr<const Spec>> interned;  // immortal by design
  Key key{mesh.id(), {}};
  for (const Placement& p : placements)
    key.second.emplace_back(static_cast<int>(p.kind), p.dim, static_cast<int>(p.reduce));
  std::lock_guard lock(mutex);
  auto& entry = interned[key];
  if (!entry) entry.reset(new Spec(mesh, placements));
  return entry.get();
}

Spec::Spec(const DeviceMesh& mesh, std::span<const Placement> placements)
    : mesh_(mesh.impl_),
      axes_(mesh.impl_->axes),
      coordinates_(mesh.impl_->coordinates),
      placements_(placements.begin(), placements.end()) {
  for (std::size_t axis = 0; axis < placements_.size(); ++axis) {
    const Placement& p = placements_[axis];
    if (!p.is_shard()) continue;
    check(p.dim >= 0 && p.dim < kMaxDims, "Shard({}): no such dim", p.dim);
    if (axes_of_dim_.size() <= static_cast<std::size_t>(p.dim))
      axes_of_dim_.resize(static_cast<std::size_t>(p.dim) + 1);
    axes_of_dim_[static_cast<std::size_t>(p.dim)].push_back(static_cast<int>(axis));
  }
}

const Spec& Spec::from(const Tensor& tensor) {
  check(tensor.is_distributed(), "{} is a plain tensor; distribute() it first", sherd::describe(tensor));
  return static_cast<const Spec&>(*tensor.layout());  // dtensor is the only maker of layouts
}

DeviceMesh Spec::mesh() const {
  auto impl = mesh_.lock();
  check(impl != nullptr,
        "the mesh of a tensor with placement {} is gone; keep the DeviceMesh alive as long as its tensors", describe());
  return DeviceMesh(std::move(impl));
}

std::span<const int> Spec::axes_of(int dim) const {
  if (static_cast<std::size_t>(dim) >= axes_of_dim_.size()) return {};
  return axes_of_dim_[static_cast<std::size_t>(dim)];
}

Spec::Range Spec::range_at(int dim, std::int64_t size, std::span<const int> coordinates) const {
  Range range{0, size};
  for (int axis : axes_of(dim)) {
    const auto a = static_cast<std::size_t>(axis);
    const Range part = chunk_range(range.size(), axes_[a].size, coordinates[a]);
    range = {range.begin + part.begin, range.begin + part.end};
  }
  return range;
}

Spec::Range Spec::local_range(int dim, std::int64_t size) const { return range_at(dim, size, coordinates_); }

Shape Spec::local_shape(const Shape& shape) const {
  check(static_cast<int>(axes_of_dim_.size()) <= shape.size(), "placement {} cuts dim {} of a tensor of shape {}",
        describe(), axes_of_dim_.size() - 1, to_string(shape));
  Shape local = shape;
  for (int d = 0; d < shape.size(); ++d) local[d] = local_range(d, shape[d]).size();
  return local;
}

std::string Spec::describe() const {
  std::string text;
  for (std::size_t d = 0; d < axes_of_dim_.size(); ++d) {
    if (axes_of_dim_[d].empty()) continue;
    std::string axes;
    for (int a : axes_of_dim_[d]) axes += (axes.empty() ? "" : ",") + axes_[static_cast<std::size_t>(a)].name;
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", d, axes);
  }
  for (std::size_t a = 0; a < placements_.size(); ++a) {
    if (!placements_[a].is_partial()) continue;
    const ReduceKind kind = placements_[a].reduce;
    text += fmt::format("{}{}{}", text.empty() ? "" : "; ",
                        kind == ReduceKind::sum ? "+" : fmt::format("{} ", sherd::name(kind)), axes_[a].name);
  }
  return fmt::format("{{{}}}", text);
}

}  // namespace sherd
