#include "runtime/cuda/rows/walk.h"

#include <algorithm>

namespace sherd::cuda {

namespace {

Walk ordered_walk(const Shape& shape, std::span<const Strides> strides, std::span<const int> order) {
  Walk walk;
  walk.operands = static_cast<int>(strides.size());
  int n = 0;
  for (const int d : order) {
    bool merges = n > 0;
    for (std::size_t k = 0; merges && k < strides.size(); ++k)
      merges = walk.stride[n - 1][k] == shape[d] * strides[k][d];
    if (merges) walk.size[n - 1] *= shape[d];
    else walk.size[n++] = shape[d];
    for (std::size_t k = 0; k < strides.size(); ++k) walk.stride[n - 1][k] = strides[k][d];
  }
  if (n == 0) {  // one element
    n = 1;
    for (std::size_t k = 0; k < strides.size(); ++k) walk.stride[0][k] = 1;
  }
  walk.ndim = n;
  return walk;
}

}  // namespace

std::int64_t Walk::numel() const {
  std::int64_t n = 1;
  for (int d = 0; d < ndim; ++d) n *= size[d];
  return n;
}

Walk make_walk(const Shape& shape, std::span<const Strides> strides) {
  int order[kMaxDims];
  std::size_t n = 0;
  for (int d = 0; d < shape.size(); ++d)
    if (shape[d] != 1) order[n++] = d;
  return ordered_walk(shape, strides, {order, n});
}

Walk make_walk_along(const Shape& shape, std::span<const Strides> strides, int along) {
  int order[kMaxDims];
  std::size_t n = 0;
  for (int d = 0; d < shape.size(); ++d)
    if (shape[d] != 1) order[n++] = d;
  const Strides& of = strides[static_cast<std::size_t>(along)];
  std::stable_sort(order, order + n, [&](int a, int b) { return of[a] > of[b]; });
  return ordered_walk(shape, strides, {order, n});
}

Walk in_units(Walk walk, std::int64_t factor) {
  const int last = walk.ndim - 1;
  walk.size[last] /= factor;
  for (int k = 0; k < walk.operands; ++k) walk.stride[last][k] *= factor;
  return walk;
}

}  // namespace sherd::cuda
