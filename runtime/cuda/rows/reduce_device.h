#pragma once
// What the kernels of reduce.cu and argmax.cu share: reading elements at the places a plan names, several at once.
#include "runtime/cuda/rows/reduce_plan.h"

namespace sherd::cuda {

inline constexpr int kLoads = 4;  // in flight per thread

/// Reads kN neighbours per access, `count` accesses at once.
template <class T>
struct VectorReader {
  using C = Compute<T>;
  static constexpr int kN = kVecElements<T>;
  const T* x;
  __device__ void read(const std::int64_t (&at)[kLoads], int count, C (&to)[kLoads][kN]) const {
    Vec<T, kN> raw[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u)
      if (u < count) raw[u] = load_vec<kN, Cache::stream>(x + at[u]);
#pragma unroll
    for (int u = 0; u < kLoads; ++u)
#pragma unroll
      for (int j = 0; j < kN; ++j)
        if (u < count) to[u][j] = to_compute(raw[u][j]);
  }
  __device__ C one(std::int64_t at) const { return to_compute(x[at]); }
};

/// Elements of any dtype that is computed in C.
template <class CType>
struct AnyReader {
  using C = CType;
  static constexpr int kN = 1;
  const void* x;
  DType dtype;

  template <class T>
  __device__ void read_as(const std::int64_t (&at)[kLoads], int count, C (&to)[kLoads][kN]) const {
#pragma unroll
    for (int u = 0; u < kLoads; ++u)
      if (u < count) to[u][0] = cast<C>(static_cast<const T*>(x)[at[u]]);
  }
  __device__ void read(const std::int64_t (&at)[kLoads], int count, C (&to)[kLoads][kN]) const {
    if constexpr (std::is_same_v<C, double>) {
      read_as<double>(at, count, to);
    } else if constexpr (std::is_same_v<C, float>) {
      if (dtype == DType::f32) read_as<float>(at, count, to);
      else if (dtype == DType::bf16) read_as<bf16>(at, count, to);
      else read_as<f16>(at, count, to);
    } else {
      if (dtype == DType::i64) read_as<std::int64_t>(at, count, to);
      else if (dtype == DType::i32) read_as<std::int32_t>(at, count, to);
      else read_as<std::uint8_t>(at, count, to);  // a bool is a byte of 0 or 1
    }
  }
  __device__ C one(std::int64_t at) const {
    const std::int64_t places[kLoads] = {at};
    C value[kLoads][kN];
    read(places, 1, value);
    return value[0][0];
  }
};

/// The plan as kernels want it.
struct Work {
  explicit Work(const ReducePlan& p)
      : kept(p.kept),
        reduced(p.reduced),
        results(p.results),
        inner(p.inner),
        items(p.items),
        tail(p.tail),
        tiles(p.tiles),
        parts(p.parts),
        items_per_part(p.items_per_part),
        team(p.team),
        lanes(p.lanes) {}
  IndexWalk kept, reduced;
  std::int64_t results, inner, items, tail, tiles, parts, items_per_part;
  int team, lanes;
};

}  // namespace sherd::cuda
