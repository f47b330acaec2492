#pragma once
// Several strided tensors walked together: one list of sizes, a stride per operand. The host merges dims, so that most
// walks are one or two dims long, and cuts walks that 32-bit indices cannot count; kernels then turn the index of an
// element into the operands' offsets by multiplications.
#include <cstdint>
#include <span>

#include "runtime/cuda/device/device.h"
#include "runtime/op/core/tensor.h"

namespace sherd::cuda {

inline constexpr int kMaxOperands = 4;
/// Elements of one launch: indices fit 31 bits, with room for the threads of the last block.
inline constexpr std::int64_t kMaxLaunch = std::int64_t{1} << 30;

/// At least one dim; the last one runs fastest. Offsets are in elements of the operand.
struct Walk {
  int ndim = 1, operands = 0;
  std::int64_t size[kMaxDims] = {1};
  std::int64_t stride[kMaxDims][kMaxOperands] = {};
  std::int64_t base[kMaxOperands] = {};  ///< where each operand starts

  std::int64_t numel() const;
  std::int64_t inner() const { return size[ndim - 1]; }
  std::int64_t inner_stride(int operand) const { return stride[ndim - 1][operand]; }
};

/// Walks `shape`, its dims in the given order, size-1 dims dropped and neighbours merged where all operands allow.
Walk make_walk(const Shape& shape, std::span<const Strides> strides);
/// The same with dims ordered so that operand `along` is walked in the order of memory.
Walk make_walk_along(const Shape& shape, std::span<const Strides> strides, int along);
/// `count` elements in units of `factor`, a divisor of the last dim: strides of operands that are dense there count
/// units.
Walk in_units(Walk walk, std::int64_t factor);

/// Calls fn(part) for parts of at most `limit` elements that make up the walk, in order.
template <class Fn>
void for_each_part(const Walk& walk, std::int64_t limit, const Fn& fn) {
  const std::int64_t total = walk.numel();
  if (total <= limit) {
    if (total > 0) fn(walk);
    return;
  }
  const std::int64_t slice = total / walk.size[0], step = slice >= limit ? 1 : limit / slice;
  for (std::int64_t at = 0; at < walk.size[0]; at += step) {
    Walk part = walk;
    part.size[0] = step < walk.size[0] - at ? step : walk.size[0] - at;
    for (int k = 0; k < walk.operands; ++k) part.base[k] += at * walk.stride[0][k];
    if (part.size[0] == 1 && part.ndim > 1) {
      --part.ndim;
      for (int d = 0; d < part.ndim; ++d) {
        part.size[d] = walk.size[d + 1];
        for (int k = 0; k < walk.operands; ++k) part.stride[d][k] = walk.stride[d + 1][k];
      }
    }
    for_each_part(part, limit, fn);
  }
}

/// Offsets of K operands of a walk of at most kMaxLaunch elements, for kernels.
template <int K>
struct Offsets {
  int ndim = 1;
  FastDivide size[kMaxDims];
  std::int64_t stride[kMaxDims][K] = {};

  Offsets() = default;
  /// Offsets of operands first, first + 1, ..., without their bases.
  Offsets(const Walk& walk, int first) : ndim(walk.ndim) {
    for (int d = 0; d < ndim; ++d) {
      size[d] = FastDivide(static_cast<std::uint32_t>(walk.size[d] > 0 ? walk.size[d] : 1));  // 0: less than a unit
      for (int k = 0; k < K; ++k) stride[d][k] = walk.stride[d][first + k];
    }
  }
  __device__ void at(std::uint32_t index, std::int64_t (&offset)[K]) const {
    for (int k = 0; k < K; ++k) offset[k] = 0;
    for (int d = ndim - 1; d > 0; --d) {
      std::uint32_t rest;
      index = size[d].divide(index, rest);
      for (int k = 0; k < K; ++k) offset[k] += std::int64_t{rest} * stride[d][k];
    }
    for (int k = 0; k < K; ++k) offset[k] += std::int64_t{index} * stride[0][k];
  }
};

}  // namespace sherd::cuda
