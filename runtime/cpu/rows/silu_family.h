#pragma once
// x sigmoid(x), its relatives and their slopes on whole vectors, for the rows that every transformer runs over its
// widest activations: one short exponential and one division; and the sum of its residuals. The functors of
// op/pointwise.h say the same in scalars; they pay for the full domain of exp, and serve f64 and integers.
#include <algorithm>
#include <numbers>
#include <type_traits>

#include "runtime/cpu/convert.h"
#include "runtime/cpu/exp2.h"
#include "runtime/op/rows/pointwise.h"

namespace sherd::cpu {

namespace vectors {

using V = Vec<float>;
using pointwise::Two;

/// 1 / (1 + e^-x), 3 ulp; 0 where that is below 2^-126, NaN for NaN.
inline V sigmoid(V x) {
  const V exponent = x * -std::numbers::log2e_v<float>;
  const V result = 1.0f / (1.0f + exp2(exponent > 126.0f ? splat(126.0f) : exponent));
  return exponent > 126.0f ? V{} : result;
}

inline V silu_slope(V x) {
  const V s = sigmoid(x);
  return s * fma(x, 1.0f - s, splat(1.0f));
}

inline constexpr float kGeluScale = 2 * 0.79788456080286535588f, kGeluCube = 0.044715f;

struct Add {
  V operator()(V a, V b) const { return a + b; }
};
struct GeluTanh {
  V operator()(V x) const { return x * sigmoid(kGeluScale * fma(kGeluCube * x * x, x, x)); }
};
struct GeluTanhBackward {
  V operator()(V grad, V x) const {
    const V square = x * x, s = sigmoid(kGeluScale * fma(kGeluCube * square, x, x));
    const V slope = kGeluScale * fma(splat(3 * kGeluCube), square, splat(1.0f));
    return grad * fma(x * (s * (1.0f - s)), slope, s);
  }
};
struct Silu {
  V operator()(V x) const { return x * sigmoid(x); }
};
struct SiluBackward {
  V operator()(V grad, V x) const { return grad * silu_slope(x); }
};
struct Swiglu {
  V operator()(V gate, V up) const { return gate * sigmoid(gate) * up; }
};
struct SwigluBackward {
  Two<V> operator()(V grad, V gate, V up) const { return {grad * up * silu_slope(gate), grad * gate * sigmoid(gate)}; }
};

template <class F, class T>
auto at(const T* const* in, std::int64_t i) {
  const auto read = [=](int k) { return load_as_accumulators(in[k] + i); };
  if constexpr (std::is_invocable_v<F, V>) return F{}(read(0));
  else if constexpr (std::is_invocable_v<F, V, V>) return F{}(read(0), read(1));
  else return F{}(read(0), read(1), read(2));
}

template <class T>
void put(V result, T* const* out, std::int64_t i) {
  store_rounded(out[0] + i, result);
}
template <class T>
void put(const Two<V>& result, T* const* out, std::int64_t i) {
  store_rounded(out[0] + i, result.first);
  store_rounded(out[1] + i, result.second);
}

}  // namespace vectors

/// A PointwiseLoop of whole vectors, whose 16-bit floats are widened and rounded once on their way; the last elements
/// are padded to a vector, so that all come from the same instructions.
template <class F, class T>
void vector_loop(const void*, const T* const* in, T* const* out, std::int64_t n) {
  using vectors::V;
  constexpr std::int64_t w = kLanes<float>;
  constexpr int Inputs = std::is_invocable_v<F, V> ? 1 : std::is_invocable_v<F, V, V> ? 2 : 3;
  constexpr int Outputs = std::is_same_v<decltype(vectors::at<F>(in, 0)), V> ? 1 : 2;
  std::int64_t i = 0;
  for (; i + w <= n; i += w) vectors::put(vectors::at<F>(in, i), out, i);
  if (i == n) return;
  T padded_in[Inputs][w]{}, padded_out[Outputs][w];
  const T* from[Inputs];
  T* to[Outputs];
  for (int k = 0; k < Inputs; ++k) {
    std::copy(in[k] + i, in[k] + n, padded_in[k]);
    from[k] = padded_in[k];
  }
  for (int k = 0; k < Outputs; ++k) to[k] = padded_out[k];
  vectors::put(vectors::at<F>(from, 0), to, 0);
  for (int k = 0; k < Outputs; ++k) std::copy_n(padded_out[k], n - i, out[k] + i);
}

}  // namespace sherd::cpu
