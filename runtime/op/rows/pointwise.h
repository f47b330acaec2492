#pragma once
// The scalar mathematics of the pointwise rows, written once for every compiler: the C++ compiler, nvcc and the
// run-time compilers of fused kernels. A functor maps compute values (float for f32/bf16/f16, double, int64) to
// compute values; rounding to the output's dtype is the caller's. Products that are summed say fma, because
// contraction is off. Transcendental functions come from a class M of static functions, one per backend.
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#ifdef __CUDACC__
#define SHERD_HD __host__ __device__
#else
#define SHERD_HD
#endif

namespace sherd::pointwise {

template <class T>
concept Floating = std::is_floating_point_v<T>;

/// Two results of one functor.
template <class T>
struct Two {
  T first, second;
};

// Integers wrap, as in every array library; unsigned arithmetic makes that defined.
template <class T>
SHERD_HD T plus(T a, T b) {
  if constexpr (Floating<T>) return a + b;
  else return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
template <class T>
SHERD_HD T minus(T a, T b) {
  if constexpr (Floating<T>) return a - b;
  else return static_cast<T>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}
template <class T>
SHERD_HD T times(T a, T b) {
  if constexpr (Floating<T>) return a * b;
  else return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}
/// A double constant in T; beyond T's range, the nearest end of it.
template <class T>
SHERD_HD T constant(double value) {
  if constexpr (Floating<T>) return static_cast<T>(value);
  else if (value >= 0x1p63) return std::numeric_limits<T>::max();
  else if (value <= -0x1p63) return std::numeric_limits<T>::min();
  else return static_cast<T>(value);
}

// ---- arithmetic: every dtype ----

struct Add {
  template <class T>
  SHERD_HD T operator()(T a, T b) const {
    return plus(a, b);
  }
};
struct Sub {
  template <class T>
  SHERD_HD T operator()(T a, T b) const {
    return minus(a, b);
  }
};
struct Mul {
  template <class T>
  SHERD_HD T operator()(T a, T b) const {
    return times(a, b);
  }
};
struct Div {
  template <Floating T>
  SHERD_HD T operator()(T a, T b) const {
    return a / b;
  }
};
struct Maximum {  // NaN wins
  template <class T>
  SHERD_HD T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};
struct Minimum {
  template <class T>
  SHERD_HD T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};
struct Neg {
  template <class T>
  SHERD_HD T operator()(T x) const {
    if constexpr (Floating<T>) return -x;
    else return minus(T{0}, x);
  }
};
struct Abs {
  template <class T>
  SHERD_HD T operator()(T x) const {
    if constexpr (Floating<T>) return std::fabs(x);
    else return x < 0 ? minus(T{0}, x) : x;
  }
};
struct Sign {
  template <class T>
  SHERD_HD T operator()(T x) const {
    return x > 0 ? T{1} : x < 0 ? T{-1} : x;
  }
};
struct Square {
  template <class T>
  SHERD_HD T operator()(T x) const {
    return times(x, x);
  }
};
struct Relu {
  template <class T>
  SHERD_HD T operator()(T x) const {
    return x > 0 || x != x ? x : T{0};
  }
};
struct Where {
  template <class T>
  SHERD_HD T operator()(T condition, T a, T b) const {
    return condition != 0 ? a : b;
  }
};

// ---- with constants ----

struct AddScalar {
  double value;
  template <class T>
  SHERD_HD T operator()(T x) const {
    return plus(x, constant<T>(value));
  }
};
struct MulScalar {
  double value;
  template <class T>
  SHERD_HD T operator()(T x) const {
    return times(x, constant<T>(value));
  }
};
struct PowScalar {
  double value;
  template <class T>
  SHERD_HD T operator()(T x) const {
    if constexpr (Floating<T>) {
      return std::pow(x, static_cast<T>(value));
    } else {
      T result{1};
      for (auto n = static_cast<std::uint64_t>(value); n > 0; n >>= 1, x = times(x, x))
        if (n & 1u) result = times(result, x);
      return result;
    }
  }
};
struct Clamp {  // NaN stays
  double low, high;
  template <class T>
  SHERD_HD T operator()(T x) const {
    const T lo = constant<T>(low), hi = constant<T>(high);
    const T raised = x < lo ? lo : x;
    return raised > hi ? hi : raised;
  }
};
struct ClampBackward {
  double low, high;
  template <Floating T>
  SHERD_HD T operator()(T grad, T x) const {
    return x >= constant<T>(low) && x <= constant<T>(high) ? grad : T{0};
  }
};

// ---- comparisons and logic: 0 or 1 ----

struct Equal {
  template <class T>
  SHERD_HD T operator()(T a, T b) const {
    return a == b ? T{1} : T{0};
  }
};
struct NotEqual {
  template <class T>
  SHERD_HD T operator()(T a, T b) const {
    return a != b ? T{1} : T{0};
  }
};
struct Less {
  template <class T>
  SHERD_HD T operator()(T a, T b) const {
    return a < b ? T{1} : T{0};
  }
};
struct LessEqual {
  template <class T>
  SHERD_HD T operator()(T a, T b) const {
    return a <= b ? T{1} : T{0};
  }
};
struct LogicalAnd {
  template <class T>
  SHERD_HD T operator()(T a, T b) const {
    return (a != 0) & (b != 0) ? T{1} : T{0};
  }
};
struct LogicalOr {
  template <class T>
  SHERD_HD T operator()(T a, T b) const {
    return (a != 0) | (b != 0) ? T{1} : T{0};
  }
};
struct LogicalNot {
  template <class T>
  SHERD_HD T operator()(T x) const {
    return x == 0 ? T{1} : T{0};
  }
};

// ---- floating functions ----

struct Sqrt {
  template <Floating T>
  SHERD_HD T operator()(T x) const {
    return std::sqrt(x);
  }
};
struct Rsqrt {
  template <Floating T>
  SHERD_HD T operator()(T x) const {
    return T{1} / std::sqrt(x);
  }
};
struct Reciprocal {
  template <Floating T>
  SHERD_HD T operator()(T x) const {
    return T{1} / x;
  }
};
template <class M>
struct Exp {
  template <Floating T>
  SHERD_HD T operator()(T x) const {
    return M::exp(x);
  }
};
template <class M>
struct Log {
  template <Floating T>
  SHERD_HD T operator()(T x) const {
    return M::log(x);
  }
};
template <class M>
struct Sin {
  template <Floating T>
  SHERD_HD T operator()(T x) const {
    return M::sin(x);
  }
};
template <class M>
struct Cos {
  template <Floating T>
  SHERD_HD T operator()(T x) const {
    return M::cos(x);
  }
};
template <class M>
struct Tanh {
  template <Floating T>
  SHERD_HD T operator()(T x) const {
    return M::tanh(x);
  }
};
template <class M>
struct Erf {
  template <Floating T>
  SHERD_HD T operator()(T x) const {
    return M::erf(x);
  }
};
template <class M, Floating T>
SHERD_HD T sigmoid_of(T x) {
  return T{1} / (T{1} + M::exp(-x));
}
template <class M>
struct Sigmoid {
  template <Floating T>
  SHERD_HD T operator()(T x) const {
    return sigmoid_of<M>(x);
  }
};
template <class M>
struct Silu {
  template <Floating T>
  SHERD_HD T operator()(T x) const {
    return x * sigmoid_of<M>(x);
  }
};
template <class M>
struct Gelu {  // x Phi(x)
  template <Floating T>
  SHERD_HD T operator()(T x) const {
    return T(0.5) * x * (T{1} + M::erf(x * T(0.70710678118654752440)));
  }
};
template <class M>
struct GeluTanh {  // Hendrycks and Gimpel 2016: x (1 + tanh u) / 2, which is x sigmoid(2u)
  template <Floating T>
  SHERD_HD T operator()(T x) const {
    const T twice_u = T(2 * 0.79788456080286535588) * std::fma(T(0.044715) * x * x, x, x);
    return x * sigmoid_of<M>(twice_u);
  }
};
template <class M>
struct Swiglu {
  template <Floating T>
  SHERD_HD T operator()(T gate, T up) const {
    return gate * sigmoid_of<M>(gate) * up;
  }
};

// ---- their derivatives, fused: grad and what the tape kept ----

struct ReluBackward {
  template <Floating T>
  SHERD_HD T operator()(T grad, T out) const {
    return out <= 0 ? T{0} : grad;
  }
};
struct SigmoidBackward {
  template <Floating T>
  SHERD_HD T operator()(T grad, T out) const {
    return grad * out * (T{1} - out);
  }
};
struct TanhBackward {
  template <Floating T>
  SHERD_HD T operator()(T grad, T out) const {
    return grad * std::fma(-out, out, T{1});
  }
};
template <class M, Floating T>
SHERD_HD T silu_slope(T x) {  // s (1 + x (1 - s))
  const T s = sigmoid_of<M>(x);
  return s * std::fma(x, T{1} - s, T{1});
}
template <class M>
struct SiluBackward {
  template <Floating T>
  SHERD_HD T operator()(T grad, T x) const {
    return grad * silu_slope<M>(x);
  }
};
template <class M>
struct GeluBackward {  // Phi(x) + x phi(x)
  template <Floating T>
  SHERD_HD T operator()(T grad, T x) const {
    const T cdf = T(0.5) * (T{1} + M::erf(x * T(0.70710678118654752440)));
    const T pdf = T(0.39894228040143267794) * M::exp(T(-0.5) * x * x);
    return grad * std::fma(x, pdf, cdf);
  }
};
template <class M>
struct GeluTanhBackward {  // s + x s (1 - s) (2u)'
  template <Floating T>
  SHERD_HD T operator()(T grad, T x) const {
    const T k = T(2 * 0.79788456080286535588);
    const T square = x * x;
    const T s = sigmoid_of<M>(k * std::fma(T(0.044715) * square, x, x));
    const T slope = k * std::fma(T(3 * 0.044715), square, T{1});
    return grad * std::fma(x * (s * (T{1} - s)), slope, s);
  }
};
template <class M>
struct SwigluBackward {
  template <Floating T>
  SHERD_HD Two<T> operator()(T grad, T gate, T up) const {
    return {grad * up * silu_slope<M>(gate), grad * gate * sigmoid_of<M>(gate)};
  }
};

}  // namespace sherd::pointwise
