// Reductions on the device against the CPU's: the shapes and strides that choose between rows and columns, vectors and
// elements, one pass and several.
#include <gtest/gtest.h>

#include <limits>

#include "runtime/cuda/rows/reduce_plan.h"
#include "runtime/op/rows/reduce_attrs.h"
#include "tests/cuda/against_cpu.h"
#include "tests/cuda/cuda_test.h"

namespace sherd::testing {
namespace {

using CudaReduce = cuda::CudaTest;

constexpr double kLongSum = 10;  // sums of thousands of values of either sign

struct ReduceForm {
  Shape shape;
  std::uint64_t mask;
};

// Teams of one thread to a block; vectors with and without a tail; columns; several parts; no elements.
const std::vector<ReduceForm> kReduceForms = {
    {{5}, 1},
    {{300, 3}, 0b10},
    {{7, 40}, 0b10},
    {{3, 1000}, 0b10},
    {{70'001}, 1},
    {{2, 40'000}, 0b10},
    {{40, 24}, 0b01},
    {{600, 264}, 0b01},
    {{3000, 4}, 0b01},
    {{20'000, 3}, 0b01},
    {{4, 30, 24}, 0b010},
    {{4, 6, 5, 8}, 0b0101},
    {{4, 6, 5, 8}, 0b1010},
    {{6, 1, 8}, 0b010},
    {{0, 4}, 0b01},
    {{4, 0}, 0b01},
};

TEST_F(CudaReduce, SumsOfEveryForm) {
  for (const ReduceForm& f : kReduceForms)
    for (DType dtype : {DType::f32, DType::bf16, DType::f64})
      expect_as_on_cpu("sum", {draw(normal(f.shape), dtype, 1)}, ReduceAttrs{f.mask, false}, kLongSum);
}

TEST_F(CudaReduce, ExtremesOfEveryForm) {
  for (const ReduceForm& f : kReduceForms) {
    if (numel(f.shape) == 0) continue;
    for (const char* row : {"max", "min"})
      expect_as_on_cpu(row, {draw(normal(f.shape), DType::f16, 1)}, ReduceAttrs{f.mask, true});
  }
}

TEST_F(CudaReduce, TheOtherRows) {
  const ReduceAttrs rows{0b10, false}, columns{0b01, false};
  for (const ReduceAttrs& attrs : {rows, columns}) {
    expect_as_on_cpu("prod", {draw(unit({40, 20}), DType::f32, 1)}, attrs);
    expect_as_on_cpu("mean", {draw(normal({600, 130}), DType::f16, 1)}, attrs);
    for (const char* row : {"any", "all", "sum", "prod", "max"})
      expect_as_on_cpu(row, {draw(flags({40, 3}), DType::f32, 1)}, attrs);
    for (DType dtype : {DType::i64, DType::i32, DType::u8})
      for (const char* row : {"sum", "max", "min"})
        expect_as_on_cpu(row, {converted(draw(ids({70, 33}, 100), dtype, 1), dtype)}, attrs);
  }
  expect_as_on_cpu("sum_to", {draw(normal({6, 50, 24}), DType::f32, 1)}, SumToAttrs{{50, 1}});
  expect_as_on_cpu("any", {draw(normal({0, 3}), DType::f32, 1)}, columns);
  expect_as_on_cpu("all", {draw(normal({0, 3}), DType::f32, 1)}, columns);
  expect_as_on_cpu("mean", {draw(normal({0, 3}), DType::f32, 1)}, columns);
}

TEST_F(CudaReduce, ViewsOfEveryKind) {
  const View views[] = {
      [](const Tensor& t) { return permute(t, {2, 0, 1}); },
      [](const Tensor& t) { return permute(t, {1, 2, 0}); },
      [](const Tensor& t) { return narrow(t, 2, 1, 17); },                      // unaligned
      [](const Tensor& t) { return narrow(t, 1, 3, 16); },                      // aligned, with gaps
      [](const Tensor& t) { return expand(narrow(t, 0, 1, 1), {5, 40, 24}); },  // stride 0
  };
  for (View view : views)
    for (std::uint64_t mask = 0; mask < 8; ++mask)
      expect_as_on_cpu("sum", {draw(normal({6, 40, 24}), DType::f32, 2)}, ReduceAttrs{mask, false}, kLongSum, view);
}

TEST_F(CudaReduce, SumsOfWholeNumbersAreExact) {
  for (const Shape& shape : {Shape{200'003}, Shape{20'000, 10}, Shape{999, 201}}) {
    const Tensor x = to(cast(arange(numel(shape), DType::i64), DType::f32), Device::cuda(0));
    const auto n = static_cast<double>(numel(shape));
    EXPECT_EQ(sum(Tensor::make_dense(x.storage(), shape, DType::f32, x.device())).item<float>(),
              static_cast<float>(n * (n - 1) / 2));
  }
}

TEST_F(CudaReduce, ResultsAddToADestination) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const Shape& shape : {Shape{2000, 24}, Shape{9, 24}}) {
      const Tensor x = draw(normal(shape), dtype, 1), base = draw(normal({24}), dtype, 2);
      const Tensor expected = dense_copy(base), actual = to(base, Device::cuda(0));
      Tensor in[] = {x}, in_device[] = {to(x, Device::cuda(0))};
      call_op_into(op::sum, in, ReduceAttrs{0b01, false}, expected, true);
      call_op_into(op::sum, in_device, ReduceAttrs{0b01, false}, actual, true);
      EXPECT_TRUE(near(actual, expected, tolerance(dtype) * kLongSum));
    }
}

TEST_F(CudaReduce, NaNAndInfinity) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (std::int64_t n : {4, 40, 5000}) {
    Tensor x = draw(normal({2, n}), DType::f32, 1);
    x.mutable_data<float>()[n / 2] = nan;
    x.mutable_data<float>()[n + n / 3] = inf;
    for (const char* row : {"sum", "max", "min", "prod", "argmax", "any"}) {
      expect_as_on_cpu(row, {x}, ReduceAttrs{0b10, false});
      expect_as_on_cpu(row, {x}, ReduceAttrs{0b01, false}, kLongSum);
    }
  }
}

TEST_F(CudaReduce, ArgmaxTakesTheFirstOfEquals) {
  expect_as_on_cpu("argmax", {draw(distinct({3, 500}), DType::f32, 1)}, ReduceAttrs{0b10, false});
  expect_as_on_cpu("argmax", {draw(distinct({50, 24}), DType::bf16, 1)}, ReduceAttrs{0b01, true});
  for (std::int64_t n : {9, 300, 9000}) {
    expect_as_on_cpu("argmax", {draw(ids({3, n}, 4), DType::f32, 1)}, ReduceAttrs{0b10, false});
    const float low = -std::numeric_limits<float>::infinity();
    expect_as_on_cpu("argmax", {full({2, n}, low, DType::f32)}, ReduceAttrs{0b10, false});
  }
}

// Index arithmetic beyond 31 bits, without the memory.
TEST(ReducePlan, WalksBeyond31Bits) {
  constexpr std::int64_t big = std::int64_t{1} << 33;
  const cuda::IndexWalk dense(Shape{big, 3}, Strides{3, 1});
  EXPECT_EQ(dense.ndim(), 1);
  EXPECT_EQ(dense.offset(3 * big - 1), 3 * big - 1);
  const cuda::IndexWalk strided(Shape{5, big / 4, 3}, Strides{7, 100, 1});
  EXPECT_EQ(strided.offset(((4 * (big / 4)) + 123'456'789) * 3 + 2), 4 * 7 + 123'456'789 * std::int64_t{100} + 2);
  const cuda::IndexWalk none(Shape{0, big}, Strides{big, 2});
  EXPECT_EQ(none.offset(0), 0);
}

TEST(ReducePlan, PartsCoverEveryItem) {
  for (std::int64_t n : {1, 100, 16'385, 1'000'003, 300'000'001})
    for (std::int64_t kept : {1, 2, 50, 3000}) {
      const cuda::ReducePlan rows = cuda::plan_reduction(Shape{kept, n}, Strides{n, 1}, 0b10, 4);
      EXPECT_GE(rows.parts * rows.items_per_part, rows.items);
      EXPECT_LT((rows.parts - 1) * rows.items_per_part, std::max<std::int64_t>(rows.items, 1));
      const cuda::ReducePlan columns = cuda::plan_reduction(Shape{n, kept}, Strides{kept, 1}, 0b01, 4);
      EXPECT_GE(columns.parts * columns.items_per_part, columns.items);
    }
}

}  // namespace
}  // namespace sherd::testing
