#pragma once
// All layouts of a mesh, and a tensor in each of them: the oracle of redistribution. It knows nothing of plans: shards
// are narrowed by loops over coordinates, and the local values of a Partial tensor follow from the coordinates.
#include <algorithm>
#include <vector>

#include "dtensor/spec.h"
#include "runtime/op/rows/ops.h"

namespace sherd::testing {

/// 1, 2, 3, ... : no two elements are equal, all are exact in f32, also times the weights below.
inline Tensor counting(const Shape& shape) {
  std::vector<float> values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1);
  return Tensor::from<float>(values, shape);
}

/// Every assignment of `choices` to the axes, in every order of the axes that shard the same dim.
inline std::vector<const Spec*> all_layouts(const DeviceMesh& mesh, const std::vector<Placement>& choices) {
  std::vector<const Spec*> specs;
  const auto n = static_cast<std::size_t>(mesh.ndim());
  std::vector<std::size_t> at(n, 0);
  for (;;) {
    std::vector<Placement> placements;
    for (std::size_t i : at) placements.push_back(choices[i]);
    std::vector<int> order;
    for (int a = 0; a < mesh.ndim(); ++a) order.push_back(a);
    do {
      const Spec* spec = Spec::of(mesh, placements, order);
      if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(spec);
    } while (std::next_permutation(order.begin(), order.end()));
    std::size_t a = 0;
    while (a < n && ++at[a] == choices.size()) at[a++] = 0;
    if (a == n) return specs;
  }
}

/// What the rank at coordinate c of n multiplies a value by (product, sum, avg) or adds to it (max, min) to get its
/// local value of a Partial tensor.
inline double term_of(ReduceKind kind, int c, int n) {
  if (n == 1) return kind == ReduceKind::max || kind == ReduceKind::min ? 0 : 1;
  switch (kind) {
    case ReduceKind::sum: return c == 0 ? n + 1 : c == n - 1 ? -n - (n - 2) : 1;
    case ReduceKind::avg: return c == 0 ? 2 * n - 1 : c == n - 1 ? 2 - n - (n - 1) : 1;
    case ReduceKind::max: return c == n - 1 ? 0 : -1 - c;
    case ReduceKind::min: return c == n - 1 ? 0 : 1 + c;
    case ReduceKind::product: return c == 0 ? 4 : c == 1 ? 0.25 : 1;
  }
  return 0;
}

/// This rank's local tensor of `whole` in a layout, dense.
inline Tensor part_of(const Tensor& whole, const Spec& spec) {
  Tensor part = whole;
  for (int d = 0; d < whole.ndim(); ++d)
    for (int axis : spec.axes_of(d)) {
      const std::int64_t n = part.size(d), chunk = (n + spec.axis_size(axis) - 1) / spec.axis_size(axis);
      const std::int64_t begin = std::min(n, spec.coordinate(axis) * chunk);
      part = narrow(part, d, begin, std::min(n - begin, chunk));
    }
  for (int axis = 0; axis < spec.num_axes(); ++axis) {
    const Placement& p = spec.placement(axis);
    if (!p.is_partial()) continue;
    const double term = term_of(p.reduce, spec.coordinate(axis), spec.axis_size(axis));
    if (p.reduce == ReduceKind::product && spec.coordinate(axis) > 0) part = full(part.shape(), 1, part.dtype());
    const bool adds = p.reduce == ReduceKind::max || p.reduce == ReduceKind::min;
    part = adds ? add(part, term) : mul(part, term);
  }
  return contiguous(part);
}

/// `whole` in a layout, made without communication.
inline Tensor laid_out(const Tensor& whole, const Spec* spec) {
  return Tensor::distributed(whole.shape(), spec, part_of(whole, *spec));
}

}  // namespace sherd::testing
