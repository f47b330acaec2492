// Losses: goldens, the chunked form against the plain one, ignored targets, extreme logits, errors.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/loss.h"
#include "runtime/op/rows/loss_attrs.h"
#include "runtime/op/rows/ops.h"
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
      testing::gradients([](auto in) { return cross_entropy(in[0], in[1]); }, inputs, Tensor::scalar(1, DType::f32));
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
    const auto a = testing::gradients(kChunked, inputs, one), b = testing::gradients(kWhole, inputs, one);
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
  const auto both = testing::gradients(kChunked, inputs, Tensor::scalar(1));
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
  const auto grads = testing::gradients(kChunked, inputs, Tensor::scalar(1));
  EXPECT_LT(account.total_peak() - before, logits_bytes * 3 / 4);  // two buffers of a quarter each, and the small ones
}

TEST(LinearCrossEntropy, SameBitsOnTwoThreads) {
  const auto inputs = many_rows(DType::f32);
  const Tensor loss = kChunked(inputs);
  const auto grads = testing::gradients(kChunked, inputs, Tensor::scalar(1));
  set_threads(2);
  const Tensor loss2 = kChunked(inputs);
  const auto grads2 = testing::gradients(kChunked, inputs, Tensor::scalar(1));
  set_threads(1);
  EXPECT_TRUE(same_bits(loss2, loss));
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(grads2[i], grads[i])) << i;
}

// ---- cross_entropy_parts: columns of the logits over ranks ----

// What ranks combine three numbers per row to, by the formula of op/loss.cpp, over the rows whose targets count.
struct Combined {
  Tensor lse, loss;
};
Combined combined(const std::vector<Tensors>& parts, const Tensor& targets, std::int64_t ignore) {
  Tensor largest = parts[0][0];
  for (const Tensors& p : parts) largest = maximum(largest, p[0]);
  Tensor total, at_target;
  for (const Tensors& p : parts) {
    const Tensor s = mul(p[1], exp(sub(p[0], largest)));
    total = total.defined() ? add(total, s) : s;
    at_target = at_target.defined() ? add(at_target, p[2]) : p[2];
  }
  const Tensor counts = not_equal(targets, full({}, static_cast<double>(ignore), DType::i64));
  const Tensor log_sum = log(total), losses = add(sub(largest, at_target), log_sum);
  return {add(largest, log_sum), div(sum(where(counts, losses, full({}, 0, losses.dtype()))),
                                     cast(sum(cast(counts, DType::i64)), losses.dtype()))};
}

Tensors call_row(const Op& row, std::vector<Tensor> inputs, const CrossEntropyAttrs& attrs) {
  return call_op(row, inputs, attrs);
}

// One rank has no columns, one has more than half of them, and one has masked columns (-inf) only.
TEST(CrossEntropyParts, CombineToTheWhole) {
  constexpr std::int64_t kV = 43, kFirst[] = {0, 7, 7, 30, 40, kV}, kIgnore = 5;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    SCOPED_TRACE(name(dtype));
    Tensor logits = draw(normal({6, 9, kV}), dtype, 1);
    logits = cat({narrow(logits, 2, 0, 40), full({6, 9, 3}, -std::numeric_limits<double>::infinity(), dtype)}, 2);
    const Tensor targets = draw(ids({6, 9}, 40), DType::i64, 2);
    const Tensors whole = call_row(op::cross_entropy, {logits, targets}, {.ignore_index = kIgnore});
    const Tensor slope = call_row(op::cross_entropy_backward,
                                  {Tensor::scalar(0.7, whole[0].dtype()), logits, targets, whole[1], whole[2]},
                                  {.ignore_index = kIgnore})[0];
    std::vector<Tensors> parts;
    for (int r = 0; r < 5; ++r) {
      const CrossEntropyAttrs attrs{.ignore_index = kIgnore, .part = {kFirst[r], kV}};
      const Tensor here = narrow(logits, 2, kFirst[r], kFirst[r + 1] - kFirst[r]);
      parts.push_back(call_row(op::cross_entropy_parts, {here, targets}, attrs));
      const Tensor slope_here =
          call_row(op::cross_entropy_backward,
                   {Tensor::scalar(0.7, whole[0].dtype()), here, targets, whole[1], whole[2]}, attrs)[0];
      EXPECT_TRUE(same_bits(slope_here, contiguous(narrow(slope, 2, kFirst[r], kFirst[r + 1] - kFirst[r])))) << r;
    }
    const Combined result = combined(parts, targets, kIgnore);
    const double ulp = dtype == DType::f64 ? 0x1p-52 : 0x1p-23;
    EXPECT_NEAR(result.loss.item<double>() / whole[0].item<double>(), 1, 4 * ulp);
    const Tensor one =
        combined({call_row(op::cross_entropy_parts, {logits, targets}, {.ignore_index = kIgnore})}, targets, kIgnore)
            .lse;
    const Tensor counts = not_equal(targets, full({}, kIgnore, DType::i64)), zero = full({}, 0, one.dtype());
    EXPECT_TRUE(same_bits(where(counts, one, zero), whole[1])) << "one rank's log-sum-exp";
    EXPECT_TRUE(near(where(counts, result.lse, zero), whole[1], 4 * ulp));
  }
}

TEST(CrossEntropyParts, NothingHereAndNothingThatCounts) {
  const Tensor targets = Tensor::from<std::int64_t>({1, -100}, {2});
  const auto all = call_row(op::cross_entropy_parts, {zeros({2, 0}), targets}, {.part = {4, 4}});
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(all[0].to_vector<double>(), (std::vector<double>{-inf, 0}));
  EXPECT_EQ(all[1].to_vector<double>(), (std::vector<double>{0, 1}));
  EXPECT_EQ(all[2].to_vector<double>(), (std::vector<double>{0, 0}));
  const auto masked = call_row(op::cross_entropy_parts, {full({2, 3}, -inf), targets}, {.part = {1, 4}});
  EXPECT_EQ(masked[0].to_vector<double>(), (std::vector<double>{-inf, 0}));
  EXPECT_EQ(masked[1].to_vector<double>(), (std::vector<double>{0, 1}));
}

TEST(CrossEntropyParts, OfAProductInChunks) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto inputs = many_rows(dtype);
    const Tensor here = narrow(inputs[1], 0, 20, 13);
    const CrossEntropyAttrs attrs{.ignore_index = 3, .part = {20, 50}};
    const Tensors chunked = call_row(op::linear_cross_entropy_parts, {inputs[0], here, inputs[2]}, attrs);
    const Tensors whole = call_row(op::cross_entropy_parts, {linear(inputs[0], here), inputs[2]}, attrs);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(near(chunked[i], whole[i], tolerance(dtype))) << i;
  }
}

TEST(CrossEntropyParts, ErrorsKnowAllClasses) {
  const Tensor targets = Tensor::from<std::int64_t>({1, 9, 3}, {3}),
               wrong = Tensor::from<std::int64_t>({1, 10, 3}, {3});
  const Tensor logits = zeros({3, 4});
  EXPECT_NO_THROW(call_row(op::cross_entropy_parts, {logits, targets}, {.part = {2, 10}}));
  expect_error([&] { call_row(op::cross_entropy_parts, {logits, wrong}, {.part = {2, 10}}); },
               {"target 10 at position 1", "0 to 9"});
  expect_error(
      [&] { call_row(op::linear_cross_entropy_parts, {zeros({3, 2}), zeros({4, 2}), wrong}, {.part = {2, 10}}); },
      {"target 10 at position 1", "0 to 9"});
  expect_error([&] { call_row(op::cross_entropy_parts, {logits, targets}, {.part = {7, 10}}); },
               {"4 ids from 7 on", "10"});
  expect_error([&] { call_row(op::cross_entropy, {logits, targets}, {.part = {2, 10}}); }, {"cross_entropy_parts"});
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
