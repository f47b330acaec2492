#pragma once
// Counting set bits, for the ranks of lanes in a ballot. For .cu files.
#include "runtime/cuda/device/device.h"

namespace sherd::cuda {

__device__ inline std::uint32_t count_bits(std::uint32_t x) {
  x -= x >> 1 & 0x55555555u;
  x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
  return ((x + (x >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24;
}

/// Number of lanes in `lanes` before this one.
__device__ inline std::uint32_t count_before(std::uint32_t lanes) { return count_bits(lanes & ((1u << lane()) - 1)); }

}  // namespace sherd::cuda
