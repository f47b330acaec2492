#pragma once
// The primitives of device.h as nvcc compiles them.
#include <cstddef>
#include <cstdint>

#include "runtime/tensor/dtype.h"

namespace sherd::cuda {

__device__ inline int thread_index() { return static_cast<int>(threadIdx.x); }
__device__ inline int block_index() { return static_cast<int>(blockIdx.x); }
__device__ inline int block_index_y() { return static_cast<int>(blockIdx.y); }
__device__ inline int block_index_z() { return static_cast<int>(blockIdx.z); }
__device__ inline int block_threads() { return static_cast<int>(blockDim.x); }
__device__ inline int grid_blocks() { return static_cast<int>(gridDim.x); }
__device__ inline int grid_blocks_y() { return static_cast<int>(gridDim.y); }
__device__ inline int grid_blocks_z() { return static_cast<int>(gridDim.z); }

__device__ inline void sync_block() { __syncthreads(); }
__device__ inline void sync_warp() { __syncwarp(); }

/// T of 4 or 8 bytes.
template <class T>
__device__ inline T shuffle(T v, int lane) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  return __shfl_sync(0xffffffffu, v, lane);
}
template <class T>
__device__ inline T shuffle_xor(T v, int mask) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  return __shfl_xor_sync(0xffffffffu, v, mask);
}
/// The value of lane + n; the last n lanes keep their own.
template <class T>
__device__ inline T shuffle_down(T v, int n) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  return __shfl_down_sync(0xffffffffu, v, static_cast<unsigned>(n));
}
/// Bit i is lane i's `condition`.
__device__ inline std::uint32_t ballot(bool condition) { return __ballot_sync(0xffffffffu, condition); }

/// The block's dynamic shared memory; `needed` is what the caller will use of it (checked by the emulator).
__device__ inline std::byte* shared_bytes(std::size_t needed = 0) {
  extern __shared__ uint4 sherd_cuda_shared[];
  static_cast<void>(needed);
  return reinterpret_cast<std::byte*>(sherd_cuda_shared);
}

/// Integers only. Each returns the value before.
__device__ inline std::int32_t atomic_add(std::int32_t* p, std::int32_t v) { return atomicAdd(p, v); }
__device__ inline std::uint32_t atomic_add(std::uint32_t* p, std::uint32_t v) { return atomicAdd(p, v); }
__device__ inline std::uint64_t atomic_add(std::uint64_t* p, std::uint64_t v) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(v));
}
__device__ inline std::uint32_t atomic_or(std::uint32_t* p, std::uint32_t v) { return atomicOr(p, v); }
__device__ inline std::int32_t atomic_max(std::int32_t* p, std::int32_t v) { return atomicMax(p, v); }
__device__ inline std::int32_t atomic_min(std::int32_t* p, std::int32_t v) { return atomicMin(p, v); }
/// Writes of this thread before it are seen by every thread of the device before those after it.
__device__ inline void fence_device() { __threadfence(); }

namespace detail {
template <std::size_t bytes>
struct Raw;
template <>
struct Raw<1> {
  using type = unsigned char;
};
template <>
struct Raw<2> {
  using type = unsigned short;
};
template <>
struct Raw<4> {
  using type = unsigned;
};
template <>
struct Raw<8> {
  using type = uint2;
};
template <>
struct Raw<16> {
  using type = uint4;
};
}  // namespace detail

/// V in accesses of at most 16 bytes, each one instruction.
template <class V, bool streamed>
__device__ inline V load_aligned(const void* p) {
  constexpr std::size_t piece = sizeof(V) < 16 ? sizeof(V) : 16;
  using R = typename detail::Raw<piece>::type;
  struct {
    R pieces[sizeof(V) / piece];
  } raw;
  const R* from = static_cast<const R*>(p);
#pragma unroll
  for (std::size_t i = 0; i < sizeof(V) / piece; ++i) raw.pieces[i] = streamed ? __ldcs(from + i) : from[i];
  return std::bit_cast<V>(raw);
}
template <bool streamed, class V>
__device__ inline void store_aligned(void* p, const V& v) {
  constexpr std::size_t piece = sizeof(V) < 16 ? sizeof(V) : 16;
  using R = typename detail::Raw<piece>::type;
  struct Pieces {
    R pieces[sizeof(V) / piece];
  };
  const Pieces raw = std::bit_cast<Pieces>(v);
  R* to = static_cast<R*>(p);
#pragma unroll
  for (std::size_t i = 0; i < sizeof(V) / piece; ++i) {
    if constexpr (streamed) __stcs(to + i, raw.pieces[i]);
    else to[i] = raw.pieces[i];
  }
}

// A NaN keeps what the CPU's conversions keep of it; the instructions would give one NaN for all.
__device__ inline float half_to_float(f16 x) {
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude > 0x7c00u) return __uint_as_float((x.bits & 0x8000u) << 16 | 0x7fc00000u | (magnitude & 0x3ffu) << 13);
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ inline f16 float_to_half(float x) {
  f16 y;
  if (x == x) asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  else y.bits = static_cast<std::uint16_t>((__float_as_uint(x) >> 16 & 0x8000u) | 0x7e00u);
  return y;
}
__device__ inline bf16 float_to_bf16(float x) {
  bf16 y;
  if (x == x) asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  else y.bits = static_cast<std::uint16_t>((__float_as_uint(x) >> 16) | 0x40u);
  return y;
}

}  // namespace sherd::cuda
