#pragma once
// Comparing tensors. The tolerance of a comparison follows from the dtype and is never loosened to make a test pass.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "runtime/op/core/tensor.h"

namespace sherd::testing {

/// Error allowed per element, relative to 1 + |expected|, for results computed in (or rounded to) `dtype`: a few units
/// in the last place of sums over some hundred terms of size one. 0 for integers.
constexpr double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64: return 1e-12;
    case DType::f32: return 1e-5;
    case DType::f16: return 4e-3;
    case DType::bf16: return 2e-2;
    default: return 0;
  }
}

/// Equal shapes, and every |actual - expected| <= limit * (1 + |expected|); infinities and NaNs must match.
inline ::testing::AssertionResult near(const Tensor& actual, const Tensor& expected, double limit) {
  if (actual.shape() != expected.shape())
    return ::testing::AssertionFailure() << "got " << describe(actual) << ", expected " << describe(expected);
  const auto a = actual.to_vector<double>(), e = expected.to_vector<double>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool same = a[i] == e[i] || (std::isnan(a[i]) && std::isnan(e[i]));
    if (!same && !(std::abs(a[i] - e[i]) <= limit * (1 + std::abs(e[i])) && std::isfinite(e[i])))
      return ::testing::AssertionFailure() << fmt::format("element {} of {}: {} is not within {:.1e} of {}", i,
                                                          describe(actual), a[i], limit * (1 + std::abs(e[i])), e[i]);
  }
  return ::testing::AssertionSuccess();
}

/// near() with the tolerance of the actual dtype.
inline ::testing::AssertionResult near(const Tensor& actual, const Tensor& expected) {
  return near(actual, expected, tolerance(actual.dtype()));
}

/// Equal shape, dtype and bits (strides aside); tells the first element that differs.
inline ::testing::AssertionResult same_bits(const Tensor& actual, const Tensor& expected) {
  if (actual.shape() != expected.shape() || actual.dtype() != expected.dtype())
    return ::testing::AssertionFailure() << "got " << describe(actual) << ", expected " << describe(expected);
  const auto a = actual.to_vector<double>(), e = expected.to_vector<double>();
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &e[i], sizeof(double)) != 0 && !(std::isnan(a[i]) && std::isnan(e[i])))
      return ::testing::AssertionFailure()
             << fmt::format("element {} of {}: {} differs from {}", i, describe(actual), a[i], e[i]);
  return ::testing::AssertionSuccess();
}

}  // namespace sherd::testing
