#pragma once
// The vocabulary kernels are written in. Every kernel file is compiled twice from the same text: by nvcc for a GPU, and
// by the C++ compiler for an emulated one, whose threads are fibers (tests/support/emulated_gpu). The two headers below
// give the same names; everything after them is written once, on those names.
//
// Rules: a kernel is `__global__ void name(values...)`; shared memory is the dynamic one, by shared<Struct>(); all 32
// lanes of a warp take part in a collective of the warp, all threads of a block in sync_block(); sums are taken in a
// fixed order and atomics are of integers only, so that results never depend on timing. No #ifdef in a kernel file.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "runtime/tensor/dtype.h"

#ifdef __CUDACC__
#include "runtime/cuda/device/device_gpu.h"
#else
#include "runtime/cuda/device/device_emulated.h"
#endif

namespace sherd::cuda {

inline constexpr int kWarp = 32;

/// Lane within the warp, and the warp within the block.
__device__ inline int lane() { return thread_index() % kWarp; }
__device__ inline int warp_index() { return thread_index() / kWarp; }
__device__ inline int block_warps() { return (block_threads() + kWarp - 1) / kWarp; }
/// Index of this thread in a one-dimensional grid, and the number of threads in it.
__device__ inline std::int64_t grid_thread() { return std::int64_t{block_index()} * block_threads() + thread_index(); }
__device__ inline std::int64_t grid_threads() { return std::int64_t{grid_blocks()} * block_threads(); }

/// The block's dynamic shared memory as one struct; the launch gives at least sizeof(Struct) bytes.
template <class Struct>
__device__ Struct& shared() {
  static_assert(alignof(Struct) <= 16, "dynamic shared memory is aligned to 16 bytes");
  return *reinterpret_cast<Struct*>(shared_bytes(sizeof(Struct)));
}

// ---- vectors: one access of 16 bytes where N elements fill them ----

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
  T values[N];
  __host__ __device__ T& operator[](int i) { return values[i]; }
  __host__ __device__ const T& operator[](int i) const { return values[i]; }
};
/// Elements of T in 16 bytes.
template <class T>
inline constexpr int kVecElements = static_cast<int>(16 / sizeof(T));

/// How an access treats the caches: kept as usual, or streamed past them because it is touched once.
enum class Cache { keep, stream };

/// Loads Vec<T, N> from `p`, which is aligned to the vector.
template <int N, Cache cache = Cache::keep, class T>
__device__ Vec<std::remove_const_t<T>, N> load_vec(T* p) {
  using V = Vec<std::remove_const_t<T>, N>;
  return load_aligned < V, cache == Cache::stream > (p);
}
/// Stores `v` at `p`, which is aligned to the vector.
template <Cache cache = Cache::keep, class T, int N>
__device__ void store_vec(T* p, const Vec<T, N>& v) {
  store_aligned<cache == Cache::stream>(p, v);
}

// ---- numbers: storage types and compute types, bit for bit as sherd::convert does on the CPU ----

template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double,
                                   std::conditional_t<std::is_integral_v<T>, std::int64_t, float>>;

/// Truncates; NaN and values beyond int64 give its minimum, as x86 does.
template <class F>
__device__ inline std::int64_t truncate(F x) {
  return x >= F(-0x1p63) && x < F(0x1p63) ? static_cast<std::int64_t>(x) : std::numeric_limits<std::int64_t>::min();
}

/// sherd::convert for device code.
template <class To, class From>
__device__ inline To cast(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<From, bf16>) {
    return cast<To>(std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16));
  } else if constexpr (std::is_same_v<From, f16>) {
    return cast<To>(half_to_float(x));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From{};
  } else if constexpr (std::is_same_v<To, bf16>) {
    return float_to_bf16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, f16>) {
    return float_to_half(static_cast<float>(x));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return static_cast<To>(truncate(x));
  } else {
    return static_cast<To>(x);
  }
}
template <class T>
__device__ inline Compute<T> to_compute(T x) {
  return cast<Compute<T>>(x);
}
template <class T, class C>
__device__ inline T from_compute(C c) {
  return cast<T>(c);
}

/// The transcendental functions of runtime/op/rows/pointwise.h, its class M.
struct Math {
  template <class T>
  __device__ static T exp(T x) {
    return std::exp(x);
  }
  template <class T>
  __device__ static T log(T x) {
    return std::log(x);
  }
  template <class T>
  __device__ static T sin(T x) {
    return std::sin(x);
  }
  template <class T>
  __device__ static T cos(T x) {
    return std::cos(x);
  }
  template <class T>
  __device__ static T tanh(T x) {
    return std::tanh(x);
  }
  template <class T>
  __device__ static T erf(T x) {
    return std::erf(x);
  }
};

// ---- reductions: a fixed order, the result in every lane or thread ----

/// Over the lanes of a warp, by a butterfly: 16, 8, 4, 2, 1 apart.
template <class T, class Fold>
__device__ inline T warp_fold(T v, Fold fold) {
  for (int apart = kWarp / 2; apart > 0; apart /= 2) v = fold(v, shuffle_xor(v, apart));
  return v;
}
/// Over the threads of a block, a multiple of 32: lanes first, then warps. `scratch` is 32 values in shared memory,
/// free again on return. `unit` is the fold's neutral element.
template <class T, class Fold>
__device__ inline T block_fold(T v, T unit, T* scratch, Fold fold) {
  v = warp_fold(v, fold);
  if (lane() == 0) scratch[warp_index()] = v;
  sync_block();
  v = warp_fold(lane() < block_warps() ? scratch[lane()] : unit, fold);
  sync_block();
  return v;
}

struct SumOf {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct MaxOf {  // NaN wins, whichever side it is on: the lanes of a butterfly see both orders
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};
template <class T>
__device__ constexpr T lowest() {
  if constexpr (std::is_floating_point_v<T>) return -std::numeric_limits<T>::infinity();
  else return std::numeric_limits<T>::lowest();
}

template <class T>
__device__ inline T warp_sum(T v) {
  return warp_fold(v, SumOf{});
}
template <class T>
__device__ inline T warp_max(T v) {
  return warp_fold(v, MaxOf{});
}
template <class T>
__device__ inline T block_sum(T v, T* scratch) {
  return block_fold(v, T{}, scratch, SumOf{});
}
template <class T>
__device__ inline T block_max(T v, T* scratch) {
  return block_fold(v, lowest<T>(), scratch, MaxOf{});
}

// ---- index arithmetic ----

/// Division of 0 <= n < 2^31 by one divisor in [1, 2^31), as a multiplication. Made on the host, passed by value.
/// Granlund and Montgomery, "Division by invariant integers using multiplication" (1994).
class FastDivide {
 public:
  FastDivide() = default;
  __host__ __device__ explicit FastDivide(std::uint32_t divisor) : divisor_(divisor) {
    while ((std::uint64_t{1} << shift_) < divisor) ++shift_;
    const std::uint64_t excess = (std::uint64_t{1} << shift_) - divisor;
    multiplier_ = static_cast<std::uint32_t>((excess << 32) / divisor + 1);
  }
  __host__ __device__ std::uint32_t divide(std::uint32_t n) const {
    const auto high = static_cast<std::uint32_t>((std::uint64_t{n} * multiplier_) >> 32);
    return (high + n) >> shift_;
  }
  /// Writes n % divisor to `rest` and returns n / divisor.
  __host__ __device__ std::uint32_t divide(std::uint32_t n, std::uint32_t& rest) const {
    const std::uint32_t quotient = divide(n);
    rest = n - quotient * divisor_;
    return quotient;
  }
  __host__ __device__ std::uint32_t divisor() const { return divisor_; }

 private:
  std::uint32_t divisor_ = 1, multiplier_ = 1, shift_ = 0;
};

}  // namespace sherd::cuda
