#pragma once
// Elements whose dtype a kernel learns when it runs: for the paths that take any mixture of dtypes.
#include "runtime/cuda/device/device.h"

namespace sherd::cuda {

/// Whether values computed as C may come from elements of S: int64 from integers only, float not from f64.
template <class C, class S>
inline constexpr bool kReadsAs =
    std::is_same_v<C, double> || (std::is_same_v<C, float> ? !std::is_same_v<S, double> : std::is_integral_v<S>);

namespace detail {
template <class C, class S, int N>
__device__ void load_of(const void* data, const std::int64_t (&at)[N], C (&values)[N]) {
  if constexpr (kReadsAs<C, S>)
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = cast<C>(static_cast<const S*>(data)[at[i]]);
}
}  // namespace detail

/// values[i] = element at[i], N independent loads.
template <class C, int N>
__device__ void load_elements(const void* data, DType dtype, const std::int64_t (&at)[N], C (&values)[N]) {
  switch (dtype) {
    case DType::f64: return detail::load_of<C, double>(data, at, values);
    case DType::f32: return detail::load_of<C, float>(data, at, values);
    case DType::bf16: return detail::load_of<C, bf16>(data, at, values);
    case DType::f16: return detail::load_of<C, f16>(data, at, values);
    case DType::i64: return detail::load_of<C, std::int64_t>(data, at, values);
    case DType::i32: return detail::load_of<C, std::int32_t>(data, at, values);
    case DType::u8: return detail::load_of<C, std::uint8_t>(data, at, values);
    case DType::boolean: return detail::load_of<C, bool>(data, at, values);
  }
}

/// a + b rounded to T: f32 inside for the 16-bit floats, wrapping for integers.
template <class T>
__device__ T add_rounded(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return cast<T>(static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b)));
  else return from_compute<T>(to_compute(a) + to_compute(b));
}

/// Writes `value` rounded to T; `add` adds it to what is there, and rounds again.
template <bool add, class T, class C>
__device__ void store_as(T* to, C value) {
  const T rounded = cast<T>(value);
  if constexpr (add) *to = add_rounded(*to, rounded);
  else *to = rounded;
}
template <bool add, class C>
__device__ void store_element(void* data, DType dtype, std::int64_t at, C value) {
  switch (dtype) {
    case DType::f64: return store_as<add>(static_cast<double*>(data) + at, value);
    case DType::f32: return store_as<add>(static_cast<float*>(data) + at, value);
    case DType::bf16: return store_as<add>(static_cast<bf16*>(data) + at, value);
    case DType::f16: return store_as<add>(static_cast<f16*>(data) + at, value);
    case DType::i64: return store_as<add>(static_cast<std::int64_t*>(data) + at, value);
    case DType::i32: return store_as<add>(static_cast<std::int32_t*>(data) + at, value);
    case DType::u8: return store_as<add>(static_cast<std::uint8_t*>(data) + at, value);
    case DType::boolean: return store_as<add>(static_cast<bool*>(data) + at, value);
  }
}

/// Calls fn(Type<C>{}) with the type that values of dtype `t` are computed in. Host code.
template <class Fn>
decltype(auto) visit_compute(DType t, Fn&& fn) {
  if (t == DType::f64) return fn(Type<double>{});
  if (is_floating(t)) return fn(Type<float>{});
  return fn(Type<std::int64_t>{});
}

}  // namespace sherd::cuda
