#pragma once
// The primitives of device.h as nvcc compiles them.
#include <cstddef>
#include <cstdint>
#include <type_traits>

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
__device__ inline std::int32_t atomic_max(std::int32_t* p, std::int32_t v) { return atomicMax(p, v); }
__device__ inline std::int32_t atomic_min(std::int32_t* p, std::int32_t v) { return atomicMin(p, v); }
__device__ inline std::uint64_t atomic_min(std::uint64_t* p, std::uint64_t v) {
  return atomicMin(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(v));
}
/// Stores `v` where `expected` stands.
__device__ inline std::uint64_t atomic_replace(std::uint64_t* p, std::uint64_t expected, std::uint64_t v) {
  return atomicCAS(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(expected),
                   static_cast<unsigned long long>(v));
}
/// What other threads of the device may be changing now.
__device__ inline std::uint64_t load_volatile(const std::uint64_t* p) {
  return *static_cast<const volatile std::uint64_t*>(p);
}

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

// ---- tensor cores and asynchronous copies (PTX ISA, "mma.m16n8k16", "ldmatrix", "cp.async") ----

/// c += a b with the 16 x 16 fragment a, the 16 x 8 fragment b and the 16 x 8 fragment c, spread over a warp.
template <class T>
__device__ inline void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  if constexpr (std::is_same_v<T, bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// Loads N (2 or 4) matrices of 8 x 8 elements of 2 bytes from shared memory: lane 8 m + r gives the address of row r
/// of matrix m, 16 bytes; register m receives the lane's two elements of matrix m.
template <int N, bool transposed = false>
__device__ inline void ldmatrix(std::uint32_t (&to)[N], const void* row) {
  static_assert(N == 2 || N == 4);
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (N == 2 && !transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(address)
                 : "memory");
  } else if constexpr (N == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(address)
                 : "memory");
  } else if constexpr (!transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
}

/// Starts to copy 16 bytes to shared memory, zeros instead if not `valid` (then `from` is not read). Both are aligned.
__device__ inline void cp_async_16(void* to, const void* from, bool valid = true) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
/// Closes a group of this thread's copies.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Returns when all but the last N groups of this thread's copies are there; other threads' need a barrier after it.
template <int N>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/// Two floats as neighbours of T, the lower address first; a NaN is the canonical one.
template <class T>
__device__ inline std::uint32_t pack_pair(float low, float high) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  std::uint32_t pair;
  if constexpr (std::is_same_v<T, bf16>) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
/// 2^x in one instruction, to 2 units in the last place; results below the normal numbers are zero.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace sherd::cuda
