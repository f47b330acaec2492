// Cross entropy on the device against the CPU's, and what it says of targets that are no class.
#include <gtest/gtest.h>

#include <limits>

#include "runtime/op/rows/loss.h"
#include "runtime/op/rows/loss_attrs.h"
#include "tests/cuda/against_cpu.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using CudaLoss = cuda::CudaTest;

const CrossEntropyAttrs kAttrs{.ignore_index = 1};  // some targets are ignored

void check_loss(std::int64_t rows, std::int64_t v, DType dtype) {
  SCOPED_TRACE(fmt::format("{} rows of {} classes in {}", rows, v, name(dtype)));
  const Tensor logits = draw(normal({rows, v}), dtype, 1), targets = draw(ids({rows}, v), dtype, 2);
  expect_as_on_cpu("cross_entropy", {logits, targets}, kAttrs);
  const Tensors out = call_row("cross_entropy", {logits, targets}, kAttrs);
  const Tensor grad = full({}, 0.5, out[0].dtype());
  expect_as_on_cpu("cross_entropy_backward", {grad, logits, targets, out[1], out[2]}, kAttrs);
}

TEST_F(CudaLoss, EveryVocabulary) {
  for (std::int64_t v : {1, 2, 7, 64, 257, 5003})
    for (DType dtype : {DType::f32, DType::bf16, DType::f64}) check_loss(9, v, dtype);
  check_loss(2, 50'257, DType::bf16);
  check_loss(1500, 8, DType::f16);
}

TEST_F(CudaLoss, SmallIntegerTargets) {
  const Tensor logits = draw(normal({2, 3, 12}), DType::f32, 1);
  expect_as_on_cpu("cross_entropy", {logits, converted(draw(ids({2, 3}, 12), DType::f32, 2), DType::i32)}, kAttrs);
}

TEST_F(CudaLoss, NothingCounts) {
  expect_as_on_cpu("cross_entropy", {draw(normal({4, 8}), DType::f32, 1), full({4}, 1, DType::i64)}, kAttrs);
  expect_as_on_cpu("cross_entropy", {draw(normal({0, 8}), DType::f32, 1), full({0}, 1, DType::i64)}, kAttrs);
}

TEST_F(CudaLoss, MaskedClasses) {
  const float inf = std::numeric_limits<float>::infinity();
  for (std::int64_t v : {16, 5000}) {
    Tensor logits = draw(normal({2, v}), DType::f32, 1);
    std::fill_n(logits.mutable_data<float>(), v - 1, -inf);
    std::fill_n(logits.mutable_data<float>() + v, v / 2, -inf);
    expect_as_on_cpu("cross_entropy", {logits, full({2}, static_cast<double>(v - 1), DType::i64)}, kAttrs);
  }
}

// Equal logits: the loss is log V, each probability 1 / V.
TEST_F(CudaLoss, ClosedForm) {
  const Device cuda = Device::cuda(0);
  const Tensor logits = to(full({3, 1000}, 2.5), cuda), targets = to(full({3}, 7, DType::i64), cuda);
  EXPECT_NEAR(cross_entropy(logits, targets).item<float>(), std::log(1000.0), 1e-5);
}

TEST_F(CudaLoss, ATargetThatIsNoClassIsNamedAtTheNextWait) {
  const Device cuda = Device::cuda(0);
  for (const std::int64_t wrong : {std::int64_t{12}, std::int64_t{-3}}) {
    const Tensor targets = to(Tensor::from<std::int64_t>({3, wrong, 4}, {3}), cuda);
    const Tensor logits = to(draw(normal({3, 12}), DType::f32, 1), cuda);
    expect_error([&] { (void)cross_entropy(logits, targets).item<float>(); },
                 {"cross_entropy", std::to_string(wrong), "position 1"});
  }
}

TEST_F(CudaLoss, LinearCrossEntropyInChunks) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = draw(unit({70, 12}), dtype, 1), weight = draw(unit({40, 12}), dtype, 2);
    expect_as_on_cpu("linear_cross_entropy", {x, weight, draw(ids({70}, 40), dtype, 3)}, kAttrs);
  }
}

TEST_F(CudaLoss, PartsOfTheVocabulary) {
  const CrossEntropyAttrs attrs{.ignore_index = 1, .part = {100, 9000}};
  for (DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (std::int64_t here : {0, 3, 64, 5003}) {
      SCOPED_TRACE(fmt::format("{} columns in {}", here, name(dtype)));
      const Tensor logits = draw(normal({70, here}), dtype, 1), targets = draw(ids({70}, 300), dtype, 2);
      expect_as_on_cpu("cross_entropy_parts", {logits, targets}, attrs);
      const Tensor lse = draw(statistic({70}), dtype, 3), one = draw(statistic({}), dtype, 4);
      expect_as_on_cpu("cross_entropy_backward", {one, logits, targets, lse, one}, attrs, 4);
      if (here > 64) continue;
      const Tensor x = draw(unit({70, 12}), dtype, 1), weight = draw(unit({here, 12}), dtype, 2);
      expect_as_on_cpu("linear_cross_entropy_parts", {x, weight, targets}, attrs, 4);
    }
}

// Chunks are large enough that a product is not bound by reading the weight, and at most half a gigabyte of bf16.
TEST(LossChunks, OfADevice) {
  constexpr auto cuda = Device::Kind::cuda;
  static_assert(loss_chunk_rows(128'256, cuda) == 2048);
  static_assert(loss_chunk_rows(50'257, cuda) == 4096);
  static_assert(loss_chunk_rows(1'000'000, cuda) == 1024);
  static_assert(loss_chunk_rows(50) == 1024);
}

}  // namespace
}  // namespace sherd::testing
