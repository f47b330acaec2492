#pragma once
// 2^x of a vector, for the softmax inside attention, whose arguments are differences to a row's largest score: no
// result above one matters, and none below 2^-125, which may become zero.
#include <cmath>

#include "runtime/cpu/simd.h"

namespace sherd::cpu {

/// 1 ulp for -125 <= x <= 126; at most 2^-125 below, and 0 far below.
inline Vec<float> exp2(Vec<float> x) {
  x = x < -1000.0f ? splat(-1000.0f) : x;  // 0 for -inf as well, but NaN stays NaN
  constexpr float kShift = 12582912.0f;    // adding 1.5 * 2^23 rounds to an integer
  const Vec<float> n = (x + kShift) - kShift;
  const Vec<float> f = x - n;  // exact, in [-1/2, 1/2]
  // Relative minimax of 2^f with value 1 at 0.
  Vec<float> p = splat(1.535336171e-04f);
  p = fma(p, f, splat(1.339887448e-03f));
  p = fma(p, f, splat(9.618437359e-03f));
  p = fma(p, f, splat(5.550332471e-02f));
  p = fma(p, f, splat(2.402264791e-01f));
  p = fma(p, f, splat(6.931472029e-01f));
  p = fma(p, f, splat(1.0f));
  return scale_exponent(p, n);
}

inline Vec<double> exp2(Vec<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = std::exp2(x[i]);
  return x;
}

/// Rows `ld` apart, n whole vectors each: x becomes 2^(x - shift) and sum[r] the sum of row r. Several rows at once,
/// because one alone waits for each step of its polynomial.
template <int Rows, class A>
void exp2_rows(A* x, std::int64_t ld, std::int64_t n, const A* shift, A* sum) {
  Vec<A> sums[Rows]{};
  for (std::int64_t j = 0; j < n; j += kLanes<A>)
    for (int r = 0; r < Rows; ++r) {
      const Vec<A> v = exp2(load(x + r * ld + j) - splat(shift[r]));
      store<A>(x + r * ld + j, v);
      sums[r] += v;
    }
  for (int r = 0; r < Rows; ++r) sum[r] = sum_lanes<A>(sums[r]);
}

}  // namespace sherd::cpu
