// Oracles: closed form, sums in long double, central differences; bits must not depend on threads.
#include <gtest/gtest.h>

#include <limits>

#include "runtime/autograd/autograd.h"
#include "runtime/cpu/parallel.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/reduce_attrs.h"
#include "tests/support/golden_case.h"
#include "tests/support/grad_check.h"
#include "tests/support/near.h"

namespace sherd {
namespace {

using testing::grad_check;
using testing::same_bits;
using Ints = std::vector<std::int64_t>;
using Doubles = std::vector<double>;

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();

Tensor numbered(const Shape& shape) { return reshape(arange(numel(shape)), shape); }

TEST(Reduce, ShapesOfDimsAndKeep) {
  const Tensor x = zeros({2, 3, 4});
  EXPECT_EQ(sum(x).shape(), (Shape{}));
  EXPECT_EQ(sum(x, {}, true).shape(), (Shape{1, 1, 1}));
  EXPECT_EQ(sum(x, {1}).shape(), (Shape{2, 4}));
  EXPECT_EQ(sum(x, {-1, 0}, true).shape(), (Shape{1, 3, 1}));
  EXPECT_EQ(sum(Tensor::scalar(3)).item<double>(), 3);
  EXPECT_THROW(sum(x, {3}), Error);
  EXPECT_THROW(sum(x, {0, -3}), Error) << "the same dim twice";
}

// Every subset of dims of dense and permuted tensors against a plain loop, in integers, so that order cannot matter.
TEST(Reduce, EverySubsetOfDimsOfEveryLayout) {
  const Shape shape{3, 5, 2, 4};
  const Tensor dense = sub(mul(numbered(shape), 7), mul(square(numbered(shape)), 3));
  const std::vector<std::vector<int>> orders = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {0, 3, 1, 2}};
  for (const auto& order : orders) {
    const Tensor x = permute(dense, order);
    const auto v = x.to_vector<std::int64_t>();
    for (unsigned mask = 1; mask < 16; ++mask) {
      std::vector<int> dims;
      Shape kept = x.shape();
      for (int d = 0; d < 4; ++d)
        if ((mask >> d) & 1u) {
          dims.push_back(d);
          kept[d] = 1;
        }
      Ints expected(static_cast<std::size_t>(numel(kept)));
      const Strides to = broadcast_strides(kept, contiguous_strides(kept), x.shape());
      for (std::int64_t i = 0; i < x.numel(); ++i) {
        std::int64_t rest = i, at = 0;
        for (int d = 3; d >= 0; --d) {
          at += rest % x.shape()[d] * to[d];
          rest /= x.shape()[d];
        }
        expected[static_cast<std::size_t>(at)] += v[static_cast<std::size_t>(i)];
      }
      EXPECT_EQ(sum(x, dims).to_vector<std::int64_t>(), expected) << mask;
      EXPECT_EQ(sum_to(x, kept).to_vector<std::int64_t>(), expected) << mask;
    }
  }
}

TEST(Reduce, MillionTermsKeepSevenDigits) {
  for (const Shape& shape : {Shape{1'000'000}, Shape{1, 1'000'000}, Shape{1'000'000, 1}, Shape{250'000, 4}}) {
    const Tensor x = random_uniform(shape, 5);
    long double exact = 0;
    for (float v : x.to_vector<float>()) exact += v;
    const double s = cast(sum(x), DType::f64).item<double>();
    EXPECT_NEAR(s / static_cast<double>(exact), 1, 1.2e-7) << to_string(shape) << ": one rounding of the result";
    if (shape.size() == 2) {
      EXPECT_NEAR(sum(sum(x, {0})).item<double>() / static_cast<double>(exact), 1, 3e-7) << to_string(shape);
    }
  }
}

TEST(Reduce, SixteenBitSumsAccumulateInF32) {
  EXPECT_EQ(sum(ones({1000}, DType::bf16)).item<double>(), 1000);
  EXPECT_EQ(sum(ones({1000, 3}, DType::bf16), {0}).to_vector<double>(), (Doubles{1000, 1000, 1000}));
  EXPECT_EQ(sum(ones({2048, 3}, DType::f16), {0}).to_vector<double>(), (Doubles{2048, 2048, 2048}));
}

TEST(Reduce, BitsDoNotDependOnThreads) {
  for (const Shape& shape : {Shape{300'000}, Shape{700, 1000}, Shape{100'000, 7}, Shape{3, 40'000, 5}}) {
    const Tensor x = random_normal(shape, 11);
    for (int dim = 0; dim <= shape.size(); ++dim) {
      const std::vector<int> dims = dim == shape.size() ? std::vector<int>{} : std::vector<int>{dim};
      const Tensor one = sum(x, dims), largest = max(x, dims);
      set_threads(4);
      const Tensor four = sum(x, dims), largest_four = max(x, dims);
      set_threads(1);
      EXPECT_TRUE(same_bits(four, one)) << to_string(shape) << dim;
      EXPECT_TRUE(same_bits(largest_four, largest));
    }
  }
}

TEST(Reduce, DtypesOfResults) {
  EXPECT_EQ(sum(zeros({2}, DType::boolean)).dtype(), DType::i64);
  EXPECT_EQ(sum(zeros({2}, DType::i32)).dtype(), DType::i64);
  EXPECT_EQ(sum(zeros({2}, DType::bf16)).dtype(), DType::bf16);
  EXPECT_EQ(max(zeros({2}, DType::u8)).dtype(), DType::u8);
  EXPECT_EQ(argmax(zeros({2}), 0).dtype(), DType::i64);
  EXPECT_EQ(any(zeros({2})).dtype(), DType::boolean);
  EXPECT_THROW(mean(zeros({2}, DType::i64)), Error);
}

TEST(Reduce, BoolCountsAndIntegersStayExact) {
  EXPECT_EQ(sum(ones({300}, DType::boolean)).item<std::int64_t>(), 300);
  const std::int64_t big = (std::int64_t{1} << 53) + 1;
  EXPECT_EQ(sum(Tensor::from<std::int64_t>({big, 1}, {2})).to_vector<std::int64_t>()[0], big + 1);
  EXPECT_EQ(prod(Tensor::from<std::int32_t>({100'000, 100'000}, {2})).to_vector<std::int64_t>()[0], 10'000'000'000);
}

TEST(Reduce, OverNothing) {
  const Tensor x = zeros({0, 3});
  EXPECT_EQ(sum(x).item<double>(), 0);
  EXPECT_EQ(sum(x, {0}).to_vector<double>(), (Doubles{0, 0, 0}));
  EXPECT_EQ(sum(x, {1}).shape(), (Shape{0}));
  EXPECT_EQ(prod(x).item<double>(), 1);
  EXPECT_TRUE(std::isnan(mean(x).item<double>()));
  EXPECT_TRUE(all(x).item<bool>());
  EXPECT_FALSE(any(x).item<bool>());
  EXPECT_THROW(max(x, {0}), Error);
  EXPECT_THROW(argmax(x, 0), Error);
  EXPECT_EQ(max(x, {1}).shape(), (Shape{0}));
}

TEST(Reduce, ExtremesAndNan) {
  const Tensor x = Tensor::from<float>({1, -3, 2, 7, kNotANumber, 5}, {2, 3});
  EXPECT_EQ(max(select(x, 0, 0)).item<double>(), 2);
  EXPECT_EQ(min(select(x, 0, 0)).item<double>(), -3);
  EXPECT_TRUE(std::isnan(max(x).item<double>()));
  EXPECT_TRUE(std::isnan(min(x, {1}).to_vector<double>()[1]));
  EXPECT_EQ(argmax(x, 1).to_vector<std::int64_t>(), (Ints{2, 1})) << "NaN is the largest";
  EXPECT_EQ(argmax(x, 0).to_vector<std::int64_t>(), (Ints{1, 1, 1}));
  EXPECT_EQ(argmax(Tensor::from<float>({4, 9, 9, 1}, {4}), 0, true).to_vector<std::int64_t>(), (Ints{1}));
  EXPECT_EQ(max(full({4}, -kInfinite)).item<double>(), -kInfinite);
}

TEST(Reduce, AnyAndAll) {
  const Tensor x = Tensor::from<float>({0, 0, 0, -0.5f, 1, kNotANumber}, {2, 3});
  EXPECT_EQ(any(x, {1}).to_vector<bool>(), (std::vector<bool>{false, true}));
  EXPECT_EQ(all(x, {1}).to_vector<bool>(), (std::vector<bool>{false, true}));
  EXPECT_EQ(any(x, {0}).to_vector<bool>(), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(all(x, {0}).to_vector<bool>(), (std::vector<bool>{false, false, false}));
}

TEST(Reduce, AccumulatesIntoADestination) {
  const Tensor x = Tensor::from<float>({1, 2, 3, 4}, {2, 2});
  const Tensor out = Tensor::from<float>({10, 20}, {2});
  call_into(op::sum_to, SumToAttrs{{2}}, out, true, x);
  EXPECT_EQ(out.to_vector<double>(), (Doubles{14, 26}));
  call_into(op::sum, ReduceAttrs{0b10, false}, out, false, x);
  EXPECT_EQ(out.to_vector<double>(), (Doubles{3, 7}));
}

TEST(Reduce, SumToNamesShapesThatDoNotBroadcast) {
  try {
    sum_to(zeros({2, 3}), {2, 2});
    FAIL();
  } catch (const Error& e) { EXPECT_NE(e.message().find("[2,2]"), std::string::npos); }
}

TEST(Reduce, Gradients) {
  const Tensor x = cast(random_normal({3, 4, 2}, 9), DType::f64);
  const auto check = [&](const testing::TensorFunction& fn) { EXPECT_TRUE(grad_check(fn, std::span(&x, 1))); };
  check([](std::span<const Tensor> in) { return square(sum(in[0], {0, 2})); });
  check([](std::span<const Tensor> in) { return square(mean(in[0], {1}, true)); });
  check([](std::span<const Tensor> in) { return square(sum_to(in[0], {4, 1})); });
  check([](std::span<const Tensor> in) { return square(max(in[0], {1})); });
  check([](std::span<const Tensor> in) { return square(min(in[0])); });
  check([](std::span<const Tensor> in) { return prod(in[0], {1}); });
}

TEST(Reduce, GradientOfAProductWithZeros) {
  // d/dx_i is the product of the others: none, one and two zeros per row.
  const Tensor x = Tensor::from<double>({2, 3, 4, 2, 0, 4, 0, 0, 4}, {3, 3});
  const Tensor ones_grad = ones({3}, DType::f64);
  const auto g =
      testing::gradients([](std::span<const Tensor> in) { return prod(in[0], {1}); }, std::span(&x, 1), ones_grad);
  EXPECT_EQ(g[0].to_vector<double>(), (Doubles{12, 8, 6, 0, 8, 0, 0, 0, 0}));
}

TEST(Reduce, EqualExtremesShareTheGradient) {
  const Tensor x = Tensor::from<double>({5, 1, 5}, {3});
  const auto g =
      testing::gradients([](std::span<const Tensor> in) { return max(in[0]); }, std::span(&x, 1), ones({}, DType::f64));
  EXPECT_EQ(g[0].to_vector<double>(), (Doubles{0.5, 0, 0.5}));
}

TEST(Var, Golden) {
  const testing::Golden golden("indexed");
  for (const std::string& test_case : golden.cases("var_")) {
    std::vector<int> dims;
    for (int d = 0; d < 8; ++d)
      if (golden.integer(test_case, "dims") >> d & 1) dims.push_back(d);
    const auto correction = static_cast<int>(golden.integer(test_case, "correction"));
    testing::expect_golden(golden, test_case, {"x"}, [&](auto in) { return var(in[0], dims, correction); });
  }
}

// The variance of 0, 1, ..., n - 1 is (n^2 - 1) / 12, whatever constant is added; sums of squares less squares of sums
// would have no digit left. Rows, columns, a wide row of columns, and results that are split.
TEST(Var, OfNumbersFarFromZero) {
  const auto n = std::int64_t{1} << 17;
  const double exact = (static_cast<double>(n) * static_cast<double>(n) - 1) / 12;
  for (const double away : {0.0, 8.0e6}) {
    const Tensor row = add(arange(n, DType::f32), away);
    EXPECT_NEAR(var(row, {}, 0).item<double>() / exact, 1, 1e-6) << away;
    const Tensor columns = expand(reshape(row, {n, 1}), {n, 3});
    for (const double v : var(columns, {0}, 0).to_vector<double>()) EXPECT_NEAR(v / exact, 1, 1e-6) << away;
  }
  const Tensor wide = add(expand(reshape(arange(40, DType::f32), {40, 1}), {40, 1100}), 8.0e6);
  for (const double v : var(contiguous(wide), {0}, 0).to_vector<double>()) EXPECT_NEAR(v, 133.25, 1e-4);
}

TEST(Var, SixteenBitStatisticsAreTakenInF32) {
  const Tensor x = cast(add(mul(random_normal({4, 5000}, 3), 0.5), 30), DType::bf16), wide = cast(x, DType::f64);
  const auto actual = var(x, {1}).to_vector<double>(), exact = var(wide, {1}).to_vector<double>();
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i] / exact[i], 1, 0x1p-8);
}

TEST(Var, TooFewElementsGiveNan) {
  for (const Tensor& v : {var(ones({1})), var(ones({2, 3}), {1}, 3), var(zeros({2, 0}), {1}, 0)})
    for (const double x : v.to_vector<double>()) EXPECT_TRUE(std::isnan(x));
  EXPECT_EQ(var(ones({1}), {}, 0).item<double>(), 0);
  EXPECT_EQ(var(zeros({0, 3}), {1}).shape(), (Shape{0}));
  EXPECT_THROW(var(arange(3)), Error);
  EXPECT_THROW(var(ones({3}), {}, -1), Error);
}

TEST(Var, ShapesAndBitsOnAnyNumberOfThreads) {
  EXPECT_EQ(var(zeros({2, 3, 4}), {0, 2}, 1, true).shape(), (Shape{1, 3, 1}));
  for (const Shape& shape : {Shape{300'000}, Shape{70'000, 5}, Shape{30, 4000}}) {
    const Tensor x = random_normal(shape, 2);
    const Tensor one = var(x, {0});
    set_threads(3);
    EXPECT_TRUE(same_bits(var(x, {0}), one)) << to_string(shape);
    set_threads(1);
  }
}

}  // namespace
}  // namespace sherd
