// Sums without rounding. Oracles: closed forms whose rounded sums differ, and the order of rows turned around.
#include "runtime/op/rows/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "runtime/cpu/parallel.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

Tensor rows_of(const std::vector<double>& values) {
  Tensor t = Tensor::empty({std::ssize(values)}, DType::f64);
  std::ranges::copy(values, t.mutable_data<double>());
  return t;
}
double total(std::span<const Tensor> list, double p = 1) {
  return exact_total(exact_power_sum(list, p)).item<double>();
}
double total(const std::vector<double>& values) { return total(std::vector{rows_of(values)}); }

TEST(ExactSum, RoundsOnceAtTheEnd) {
  const double tiny = std::numeric_limits<double>::denorm_min(), huge = std::numeric_limits<double>::max();
  EXPECT_EQ(total(std::vector<double>{}), 0);
  EXPECT_EQ(total({tiny}), tiny);
  EXPECT_EQ(total({huge}), huge);
  EXPECT_EQ(total({tiny, tiny, 1e-300}), 1e-300 + 2 * tiny);
  // 2^53 + 1 + 1: each 1 alone is half of a last bit, and goes to even.
  EXPECT_EQ(total({0x1p53, 1, 1}), 0x1p53 + 2);
  EXPECT_EQ(total({1, 0x1p53, 1}), 0x1p53 + 2);
  EXPECT_EQ(total({0x1p53, 1}), 0x1p53) << "a tie goes to even";
  EXPECT_EQ(total({0x1p53, 1, tiny}), 0x1p53 + 2) << "what is above a tie goes up";
  EXPECT_EQ(total({0x1p53 + 2, 1}), 0x1p53 + 4);
  EXPECT_EQ(total(std::vector<double>(100'000, 0.1)), 10'000.000000000000555);  // 0.1 as f64 has it, times 10^5
  EXPECT_EQ(total({huge, huge}), std::numeric_limits<double>::infinity());
  EXPECT_EQ(total({1, INFINITY}), INFINITY);
  EXPECT_TRUE(std::isnan(total({INFINITY, NAN, 1})));
}

TEST(ExactSum, HasOneValueInAnyOrderOfRowsAndParts) {
  std::mt19937_64 random(5);  // NOLINT(cert-msc51-cpp): the same values each time
  std::uniform_real_distribution<double> mantissa(0.5, 1);
  std::vector<double> values;
  for (int i = 0; i < 5000; ++i) values.push_back(std::ldexp(mantissa(random), static_cast<int>(random() % 300) - 150));
  const double expected = total(values);
  double rounded = 0;
  for (const double v : values) rounded += v;
  EXPECT_NEAR(rounded / expected, 1, 1e-12);
  for (int turn = 0; turn < 5; ++turn) {
    std::ranges::shuffle(values, random);
    EXPECT_EQ(total(values), expected);
    const std::size_t cut = random() % values.size();
    const std::vector<double> left(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(cut)),
        right(values.begin() + static_cast<std::ptrdiff_t>(cut), values.end());
    const Tensor words =
        add(exact_power_sum(std::vector{rows_of(left)}, 1), exact_power_sum(std::vector{rows_of(right)}, 1));
    EXPECT_EQ(exact_total(words).item<double>(), expected);
  }
}

TEST(ExactSum, ShardsOfRowsAddUpToTheWhole) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const Shape& shape : {Shape{}, Shape{7}, Shape{200'003}, Shape{9, 1100}, Shape{3, 5, 70}, Shape{0, 4}}) {
      const Tensor whole = random_normal(shape, 11, 0, 2, 0, dtype);
      const double expected = total(std::vector{whole}, 2);
      EXPECT_NEAR(expected, power_sum(std::vector{whole}, 2).item<double>(), 1e-9 * expected);
      if (whole.ndim() == 0 || whole.size(0) < 2) continue;
      const std::int64_t cut = whole.size(0) / 3;
      const Tensor parts[] = {narrow(whole, 0, 0, cut), narrow(whole, 0, cut, whole.size(0) - cut)};
      EXPECT_EQ(total(parts, 2), expected) << to_string(shape);
    }
}

TEST(ExactSum, ThreadsChangeNothing) {
  const Tensor x = random_normal({3000, 130}, 3);
  const double expected = total(std::vector{x}, 3);
  set_threads(3);
  EXPECT_EQ(total(std::vector{x}, 3), expected);
  set_threads(1);
}

TEST(ExactSum, MistakesAreNamed) {
  expect_error([] { exact_power_sum(std::vector{ones({2})}, INFINITY); }, {"a finite p > 0", "inf"});
  expect_error([] { exact_power_sum(std::vector{ones({2}, DType::i32)}, 2); }, {"tensor 0", "a floating type"});
  expect_error([] { exact_total(ones({69})); }, {"it takes what exact_power_sum gives", "i64[69]"});
}

}  // namespace
}  // namespace sherd::testing
