#pragma once
// Vectors of one register of the level for the inner loops of our own kernels. Arithmetic, comparisons and shuffles are
// the compiler's vector extension; only broadcast and fused multiply-add, which the extension cannot say, are
// intrinsics. Lane sums and maxima are combined in a fixed order, so a row's result depends on the row alone.
// This is the one file of the kernels that asks which level it is compiled for.
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "runtime/tensor/dtype.h"

namespace sherd::cpu {

#if defined(__AVX512F__)
inline constexpr int kVecBytes = 64;
#else
inline constexpr int kVecBytes = 32;
#endif

/// Whether the level's CPUs multiply bf16 themselves.
#if defined(__AVX512BF16__)
inline constexpr bool kMultipliesBf16 = true;
#else
inline constexpr bool kMultipliesBf16 = false;
#endif

/// Two factors of a product that follow each other along the summed dim: what such CPUs multiply.
struct Bf16Pair {
  std::uint16_t first, second;  ///< bits
};

template <class T>
struct VecOf;
template <>
struct VecOf<float> {
  using type = float __attribute__((vector_size(kVecBytes)));
};
template <>
struct VecOf<double> {
  using type = double __attribute__((vector_size(kVecBytes)));
};
template <>
struct VecOf<Bf16Pair> {
  using type = std::uint32_t __attribute__((vector_size(kVecBytes)));
};
template <class T>
using Vec = typename VecOf<T>::type;
template <class T>
inline constexpr int kLanes = kVecBytes / static_cast<int>(sizeof(T));

template <class T>
Vec<T> load(const T* from) {
  Vec<T> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <class T>
void store(T* to, Vec<T> v) {
  std::memcpy(to, &v, sizeof v);
}

/// Bits of one vector of f32, and of as many 16-bit floats.
using Words = std::uint32_t __attribute__((vector_size(kVecBytes)));
using HalfWords = std::uint16_t __attribute__((vector_size(kVecBytes / 2)));

// Conversions are intrinsics: g++ 12 takes the extension's apart into halves. Masked, because it warns about undefined
// lanes of the others.
#if defined(__AVX512F__)
inline Words widen(HalfWords h) { return (Words)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)h); }
inline HalfWords narrow(Words w) { return (HalfWords)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)w); }
inline Vec<float> f16_to_f32(HalfWords h) { return _mm512_maskz_cvtph_ps(0xffff, (__m256i)h); }
inline HalfWords f32_to_f16(Vec<float> v) {
  return (HalfWords)_mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT);
}
/// v * 2^n for whole n; too small becomes denormal or 0.
inline Vec<float> scale_exponent(Vec<float> v, Vec<float> n) { return _mm512_maskz_scalef_ps(0xffff, v, n); }
inline Vec<float> splat(float x) { return _mm512_set1_ps(x); }
inline Vec<double> splat(double x) { return _mm512_set1_pd(x); }
inline Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) { return _mm512_fmadd_pd(a, b, c); }
/// Writes a vector past the caches; `to` is aligned to kVecBytes.
inline void stream(float* to, Vec<float> v) { _mm512_stream_ps(to, v); }
#else
inline Words widen(HalfWords h) { return (Words)_mm256_cvtepu16_epi32((__m128i)h); }
inline HalfWords narrow(Words w) { return __builtin_convertvector(w, HalfWords); }
inline Vec<float> f16_to_f32(HalfWords h) { return _mm256_cvtph_ps((__m128i)h); }
inline HalfWords f32_to_f16(Vec<float> v) { return (HalfWords)_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
/// v * 2^n for whole n > -126 and v near 1; 0 for smaller n.
inline Vec<float> scale_exponent(Vec<float> v, Vec<float> n) {
  const Words bits = (Words)v + ((Words)(n + 12582912.0f) << 23);  // 1.5 * 2^23 leaves n in the low bits
  return n < -125.0f ? Vec<float>{} : (Vec<float>)bits;
}
inline void stream(float* to, Vec<float> v) { _mm256_stream_ps(to, v); }
inline Vec<float> splat(float x) { return _mm256_set1_ps(x); }
inline Vec<double> splat(double x) { return _mm256_set1_pd(x); }
inline Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) { return _mm256_fmadd_pd(a, b, c); }
#endif

// What a product of matrices does at each step: sum + a * b, for pairs sum + a.first * b.first + a.second * b.second.
inline Vec<float> multiply_add(Vec<float> a, Vec<float> b, Vec<float> sum) { return fma(a, b, sum); }
inline Vec<double> multiply_add(Vec<double> a, Vec<double> b, Vec<double> sum) { return fma(a, b, sum); }
inline Vec<float> splat_at(const float* x) { return splat(*x); }
inline Vec<double> splat_at(const double* x) { return splat(*x); }
#if defined(__AVX512BF16__)
// Denormals count as zero, and partial sums round to nearest even, as the instruction does.
inline Vec<float> multiply_add(Words a, Words b, Vec<float> sum) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
inline Words splat_at(const Bf16Pair* x) {
  std::uint32_t pair;  // rows of a matrix serve as pairs: they are bf16 in memory, and may start at an odd one
  std::memcpy(&pair, x, sizeof pair);
  return (Words)_mm512_set1_epi32(static_cast<int>(pair));
}
#endif

/// Bits of bf16: round-to-nearest-even, denormals kept, NaNs quiet.
inline HalfWords to_bf16(Vec<float> v) {
  const auto u = (Words)v;
  const Words rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, nan = (u >> 16) | 0x40u;
  return narrow((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}
/// The same for sums of products of pairs, in which denormals count as zero: a denormal result may become zero too.
#if defined(__AVX512BF16__)
inline HalfWords product_to_bf16(Vec<float> sums) { return (HalfWords)_mm512_cvtneps_pbh(sums); }
#else
inline HalfWords product_to_bf16(Vec<float> sums) { return to_bf16(sums); }
#endif

inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
inline double fma(double a, double b, double c) { return std::fma(a, b, c); }

namespace detail {
// Lane l of the result is lane l ^ Distance.
template <int Distance, class T, int... L>
Vec<T> swap_lanes(Vec<T> v, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(v, v, (L ^ Distance)...);
}
template <class T, int Distance, class Op>
Vec<T> fold_lanes(Vec<T> v, const Op& op) {
  if constexpr (Distance == 0) return v;
  else
    return fold_lanes<T, Distance / 2>(op(v, swap_lanes<Distance, T>(v, std::make_integer_sequence<int, kLanes<T>>{})),
                                       op);
}
}  // namespace detail

/// Folds the lanes pairwise, upper half on lower half, by `op`; the result is in every lane.
template <class T, class Op>
Vec<T> fold_lanes(Vec<T> v, const Op& op) {
  return detail::fold_lanes<T, kLanes<T> / 2>(v, op);
}
template <class T>
T sum_lanes(Vec<T> v) {
  return fold_lanes<T>(v, [](Vec<T> a, Vec<T> b) { return a + b; })[0];
}
template <class T>
T max_lanes(Vec<T> v) {
  return fold_lanes<T>(v, [](Vec<T> a, Vec<T> b) { return a > b ? a : b; })[0];
}

/// Type in which a kernel computes on elements of T: f64 for f64, f32 for the other floats.
template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

// Reductions over a row of n elements. Two vectors run side by side to hide the latency of the adder.
template <class A>
A row_max(const A* x, std::int64_t n) {
  std::int64_t i = 0;
  A m = x[0];
  if (n >= kLanes<A>) {
    Vec<A> v = load(x);
    for (i = kLanes<A>; i + kLanes<A> <= n; i += kLanes<A>) {
      const Vec<A> w = load(x + i);
      v = w > v ? w : v;
    }
    m = max_lanes<A>(v);
  }
  for (; i < n; ++i) m = x[i] > m ? x[i] : m;
  return m;
}

/// Sum over i of term(i); vec_term(i) is the vector of the terms from i on.
template <class A, class VecTerm, class Term>
A row_sum(std::int64_t n, const VecTerm& vec_term, const Term& term) {
  constexpr std::int64_t w = kLanes<A>;
  Vec<A> a{}, b{};
  std::int64_t i = 0;
  for (; i + 2 * w <= n; i += 2 * w) {
    a += vec_term(i);
    b += vec_term(i + w);
  }
  if (i + w <= n) {
    a += vec_term(i);
    i += w;
  }
  A tail{};
  for (; i < n; ++i) tail += term(i);
  return sum_lanes<A>(a + b) + tail;
}

template <class A>
A row_sum(const A* x, std::int64_t n) {
  return row_sum<A>(n, [x](std::int64_t i) { return load(x + i); }, [x](std::int64_t i) { return x[i]; });
}
template <class A>
A row_dot(const A* x, const A* y, std::int64_t n) {
  return row_sum<A>(
      n, [=](std::int64_t i) { return load(x + i) * load(y + i); }, [=](std::int64_t i) { return x[i] * y[i]; });
}

}  // namespace sherd::cpu
