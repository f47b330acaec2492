#pragma once
// Sums of powers of neighbouring elements, in an order that their number alone decides.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "runtime/tensor/dtype.h"

namespace sherd::cpu {

inline constexpr std::int64_t kPowerLanes = 32;  // four vectors, which hides the latency of the adder

/// Adds fn(|x|) of n elements to kPowerLanes interleaved sums in f64: a fixed order that vectorises.
template <class T, class Fn>
void add_lanes(const T* x, std::int64_t n, double* lanes, const Fn& fn) {
  const std::int64_t whole = n / kPowerLanes * kPowerLanes;
  for (std::int64_t i = 0; i < whole; i += kPowerLanes)
    for (std::int64_t l = 0; l < kPowerLanes; ++l) lanes[l] += fn(std::abs(static_cast<double>(x[i + l])));
  for (std::int64_t i = whole; i < n; ++i) lanes[i - whole] += fn(std::abs(static_cast<double>(x[i])));
}

template <class T, class Fn>
double sum_of(const T* x, std::int64_t n, const Fn& fn) {
  double lanes[kPowerLanes] = {};
  if constexpr (sizeof(T) > 2) {
    add_lanes(x, n, lanes, fn);
  } else {
    constexpr std::int64_t kPiece = 1024;  // widened piece by piece: the two loops vectorise, one would not
    float wide[kPiece];
    for (std::int64_t begin = 0; begin < n; begin += kPiece) {
      const std::int64_t count = std::min(kPiece, n - begin);
      for (std::int64_t i = 0; i < count; ++i) wide[i] = static_cast<float>(x[begin + i]);
      add_lanes(wide, count, lanes, fn);
    }
  }
  double total = 0;
  for (double lane : lanes) total += lane;
  return total;
}

inline double larger(double a, double b) { return b > a || std::isnan(b) ? b : a; }  // NaN stays

/// The sum of |x|^p of n elements; the maximum of |x| for p = infinity, NaN if one is.
template <class T>
double power_sum_block(const T* x, std::int64_t n, double p) {
  if (p == 2) return sum_of(x, n, [](double a) { return a * a; });
  if (p == 1) return sum_of(x, n, [](double a) { return a; });
  if (p == 3) return sum_of(x, n, [](double a) { return a * a * a; });
  if (!std::isinf(p)) return sum_of(x, n, [p](double a) { return std::pow(a, p); });
  double top = 0;
  for (std::int64_t i = 0; i < n; ++i) top = larger(top, std::abs(convert<double>(x[i])));
  return top;
}

}  // namespace sherd::cpu
