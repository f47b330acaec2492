// Losses: goldens, the chunked form against the whole one, ignored targets, extreme logits, errors.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/op/loss.h"
#include "runtime/op/ops.h"
#include "tests/support/draw.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden_case.h"

namespace sherd::testing {
namespace {

const TensorFunction kChunked = [](auto in) { return linear_cross_entropy(in[0], in[1], in[2]); };
const TensorFunction kWhole = [](auto in) { return cross_entropy(linear(in[0], in[1]), in[2]); };

TEST(CrossEntropy, Golden) {
  const Golden golden("loss");
  for (const std::string& test_case : golden.cases()) {
    const std::int64_t ignore = golden.integer(test_case, "ignore_index");
    if (test_case.starts_with("linear"))
      expect_golden(golden, test_case, {"x", "weight", "targets"},
                    [&](auto in) { return linear_cross_entropy(in[0], in[1], in[2], ignore); });
    else
      expect_golden(golden, test_case, {"logits", "targets"},
                    [&](auto in) { return cross_entropy(in[0], in[1], ignore); });
  }
}

TEST(CrossEntropy, UniformLogitsGiveLogV) {
  const Tensor targets = Tensor::from<std::int32_t>({0, 6, 3}, {3});
  EXPECT_NEAR(cross_entropy(zeros({3, 7}), targets).item<double>(), std::log(7.0), 1e-6);
}

TEST(CrossEntropy, ExtremeLogits) {
  const Tensor logits = Tensor::from<float>({1e30f, 0, 0, -1e4f, 0, 1e4f}, {2, 3});
  EXPECT_EQ(cross_entropy(logits, Tensor::from<std::int64_t>({0, 2}, {2})).item<float>(), 0);
  EXPECT_NEAR(cross_entropy(logits, Tensor::from<std::int64_t>({-100, 0}, {2})).item<float>(), 2e4f, 1e-2f);
}

TEST(CrossEntropy, NothingToPredictIsZeroWithZeroGradient) {
  const Tensor logits = draw(normal({4, 5}), DType::f32, 1);
  const Tensor ignored = Tensor::from<std::int64_t>({-100, -100, -100, -100}, {4});
  EXPECT_EQ(cross_entropy(logits, ignored).item<float>(), 0);
  const Tensor inputs[] = {logits, ignored};
  const auto grads =
      gradients([](auto in) { return cross_entropy(in[0], in[1]); }, inputs, Tensor::scalar(1, DType::f32));
  EXPECT_TRUE(same_bits(grads[0], zeros({4, 5})));
  EXPECT_EQ(cross_entropy(zeros({0, 5}), zeros({0}, DType::i64)).item<float>(), 0);
  EXPECT_EQ(linear_cross_entropy(zeros({0, 3}), zeros({5, 3}), zeros({0}, DType::i64)).item<float>(), 0);
}

TEST(CrossEntropy, SixteenBitLogitsGiveAnF32Loss) {
  const Tensor logits = draw(normal({6, 33}), DType::bf16, 1), targets = draw(ids({6}, 33), DType::i64, 2);
  const Tensor loss = cross_entropy(logits, targets);
  EXPECT_EQ(loss.dtype(), DType::f32);
  EXPECT_TRUE(same_bits(loss, cross_entropy(cast(logits, DType::f32), targets)));
}

// 2100 rows are three chunks, the last one short.
std::vector<Tensor> many_rows(DType dtype) {
  static_assert(loss_chunk_rows(50) == 1024);
  return {draw(normal({21, 100, 12}), dtype, 1), draw(normal({50, 12}), dtype, 2),
          draw(ids({21, 100}, 50), DType::i64, 3)};
}

TEST(LinearCrossEntropy, ChunksEqualTheWhole) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    SCOPED_TRACE(name(dtype));
    const auto inputs = many_rows(dtype);
    const Tensor chunked = kChunked(inputs), whole = kWhole(inputs);
    EXPECT_NEAR(chunked.item<double>(), whole.item<double>(), 1e-6);
    const Tensor one = Tensor::scalar(1, chunked.dtype());
    const auto a = gradients(kChunked, inputs, one), b = gradients(kWhole, inputs, one);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(near(a[i], b[i], tolerance(dtype))) << i;
  }
}

TEST(LinearCrossEntropy, CentralDifferencesOverChunks) {
  EXPECT_TRUE(grad_check(kChunked, many_rows(DType::f64), {.along_lines = true}));
}

TEST(LinearCrossEntropy, WeightThatIsNoParameter) {
  const auto fn = [](auto in) { return linear_cross_entropy(in[0], mul(in[1], in[1]), in[2]); };
  EXPECT_TRUE(grad_check(fn, many_rows(DType::f64), {.along_lines = true}));
}

TEST(LinearCrossEntropy, OnlyWhatIsWantedIsDifferentiated) {
  const auto inputs = many_rows(DType::f32);
  const auto both = gradients(kChunked, inputs, Tensor::scalar(1));
  Slot weight("weight", true);
  weight.set(inputs[1]);
  backward(linear_cross_entropy(inputs[0], weight.value(), inputs[2]));
  EXPECT_TRUE(same_bits(weight.grad(), both[1]));
  Slot x("x", true);
  x.set(inputs[0]);
  backward(linear_cross_entropy(x.value(), inputs[1], inputs[2]));
  EXPECT_TRUE(same_bits(x.grad(), both[0]));
}

TEST(LinearCrossEntropy, NeverHoldsAllLogits) {
  const std::int64_t rows = 4096, v = 512, k = 8;
  const std::vector<Tensor> inputs = {draw(normal({rows, k}), DType::f32, 1), draw(normal({v, k}), DType::f32, 2),
                                      draw(ids({rows}, v), DType::i64, 3)};
  Accounting& account = RankContext::current().allocator().accounting();
  account.reset_peaks();
  const std::int64_t before = account.total(), logits_bytes = rows * v * 4;
  const auto grads = gradients(kChunked, inputs, Tensor::scalar(1));
  EXPECT_LT(account.total_peak() - before, logits_bytes * 3 / 4);  // two buffers of a quarter each, and the small ones
}

TEST(LinearCrossEntropy, SameBitsOnTwoThreads) {
  const auto inputs = many_rows(DType::f32);
  const Tensor loss = kChunked(inputs);
  const auto grads = gradients(kChunked, inputs, Tensor::scalar(1));
  set_threads(2);
  const Tensor loss2 = kChunked(inputs);
  const auto grads2 = gradients(kChunked, inputs, Tensor::scalar(1));
  set_threads(1);
  EXPECT_TRUE(same_bits(loss2, loss));
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(grads2[i], grads[i])) << i;
}

TEST(CrossEntropy, ErrorsNameTargetPositionAndClasses) {
  const Tensor logits = zeros({2, 2, 65}), weight = zeros({65, 65});
  const Tensor wrong = Tensor::from<std::int64_t>({1, 2, 65, 3}, {2, 2});
  expect_error([&] { cross_entropy(logits, wrong); }, {"target 65 at position 2", "0 to 64", "cross_entropy"});
  expect_error([&] { linear_cross_entropy(logits, weight, wrong); }, {"target 65 at position 2", "0 to 64"});
  const Tensor negative = Tensor::from<std::int64_t>({1, -1, 0, 3}, {2, 2});
  expect_error([&] { cross_entropy(logits, negative); }, {"target -1 at position 1", "-100 is ignored"});
  expect_error([&] { cross_entropy(logits, zeros({2, 3}, DType::i64)); }, {"[2,2]", "[2,3]"});
  expect_error([&] { cross_entropy(logits, zeros({2, 2})); }, {"i32 or i64", "f32"});
  expect_error([&] { linear_cross_entropy(logits, zeros({9, 64}), wrong); }, {"65 and 64"});
}

}  // namespace
}  // namespace sherd::testing
