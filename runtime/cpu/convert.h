#pragma once
// Elements to and from the accumulator type, a vector at a time. The rule is that of bf16 and f16 (tensor/dtype.h) bit
// for bit, NaNs and denormals included, so no instruction with a rule of its own is used: VCVTNEPS2BF16 flushes
// denormals, and VCVTPS2PH keeps bits of a NaN that f16 drops.
#include "runtime/cpu/simd.h"

namespace sherd::cpu {

namespace detail {

inline HalfWords load_halves(const void* from) {
  HalfWords h;
  std::memcpy(&h, from, sizeof h);
  return h;
}

}  // namespace detail

/// A vector of accumulators from kLanes elements of T.
template <class T>
Vec<Accumulator<T>> load_as_accumulators(const T* from) {
  if constexpr (std::is_same_v<T, bf16>) {
    return (Vec<float>)(widen(detail::load_halves(from)) << 16);
  } else if constexpr (std::is_same_v<T, f16>) {
    return f16_to_f32(detail::load_halves(from));
  } else {
    return load(from);
  }
}

/// kLanes elements of T, each rounded once.
template <class T>
void store_rounded(T* to, Vec<Accumulator<T>> v) {
  if constexpr (std::is_same_v<T, bf16>) {
    const HalfWords bits = to_bf16(v);
    std::memcpy(static_cast<void*>(to), &bits, sizeof bits);
  } else if constexpr (std::is_same_v<T, f16>) {
    const auto u = (Words)v;
    const Words nan = (u & 0x80000000u) | 0x7fc00000u;  // the one NaN of f16, in f32
    const auto bits = f32_to_f16((Vec<float>)((u & 0x7fffffffu) > 0x7f800000u ? nan : u));
    std::memcpy(static_cast<void*>(to), &bits, sizeof bits);
  } else {
    store<T>(to, v);
  }
}

/// Whether a conversion is one of those above: between f32 and a float of 16 bits.
template <class To, class From>
inline constexpr bool kConvertsByVector =
    !std::is_same_v<To, From> &&
    ((std::is_same_v<To, float> && (std::is_same_v<From, bf16> || std::is_same_v<From, f16>)) ||
     (std::is_same_v<From, float> && (std::is_same_v<To, bf16> || std::is_same_v<To, f16>)));

/// to[i] = convert<To>(from[i]), i < n.
template <class To, class From>
void convert_row(const From* from, std::int64_t n, To* to) {
  std::int64_t i = 0;
  if constexpr (kConvertsByVector<To, From>) {
    for (; i + kLanes<float> <= n; i += kLanes<float>) {
      if constexpr (std::is_same_v<To, float>) store<float>(to + i, load_as_accumulators(from + i));
      else store_rounded(to + i, load(from + i));
    }
  }
  for (; i < n; ++i) to[i] = convert<To>(from[i]);
}

/// to[i] = x[i] * factor rounded to T, i < n.
template <class T>
void round_scaled_row(const Accumulator<T>* x, Accumulator<T> factor, std::int64_t n, T* to) {
  using A = Accumulator<T>;
  const Vec<A> factors = splat(factor);
  std::int64_t i = 0;
  for (; i + kLanes<A> <= n; i += kLanes<A>) store_rounded(to + i, load(x + i) * factors);
  for (; i < n; ++i) to[i] = convert<T>(x[i] * factor);
}

/// `n` elements as accumulators: the row itself when no conversion is needed, else converted into `buffer`.
template <class T>
const Accumulator<T>* load_row(const T* x, std::int64_t n, Accumulator<T>* buffer) {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    return x;
  } else {
    convert_row(x, n, buffer);
    return buffer;
  }
}

}  // namespace sherd::cpu
