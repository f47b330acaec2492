// Rows with an index per element, topk and var on the device: both ways to scatter, lines longer than a block, wrong
// indices. The CPU is the oracle, bit for bit where nothing but the order of sums could differ.
#include <gtest/gtest.h>

#include <limits>

#include "runtime/exec/context.h"
#include "runtime/op/rows/gather.h"
#include "runtime/op/rows/reduce_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "tests/cuda/against_cpu.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

class CudaGather : public cuda::CudaTest {};
class CudaTopK : public cuda::CudaTest {};
using CudaVar = cuda::CudaTest;

void expect_same(std::string_view row, const std::vector<Tensor>& inputs, const Attrs& attrs) {
  const Tensors here = call_row(row, inputs, attrs);
  std::vector<Tensor> moved;
  for (const Tensor& t : inputs) moved.push_back(on_device(t));
  const Tensors there = call_row(row, moved, attrs);
  for (std::size_t i = 0; i < here.size(); ++i)
    EXPECT_TRUE(same_bits(on_host(there[i]), here[i])) << row << ", output " << i;
}

// Values with many digits: their sums depend on the order.
Tensor numbers(const Shape& shape, DType dtype, std::uint64_t seed) {
  const Tensor x = draw(normal(shape), DType::f64, seed) * 1.37;
  return is_floating(dtype) ? cast(x, dtype) : cast(x * 20.0, dtype);
}

// Lines of 3 and 64 are compared entry by entry, those of 65 and 500 are sorted.
TEST_F(CudaGather, ShortAndLongLinesInEveryDtype) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8})
    for (const std::int64_t length : {3, 64, 65, 500})
      for (int dim = 0; dim < 3; ++dim) {
        SCOPED_TRACE(fmt::format("{} lines of {} along {}", name(dtype), length, dim));
        Shape whole{5, 4, 6}, shape{4, 4, 5};
        whole[dim] = 17;
        shape[dim] = length;
        if (length == 500 && dtype != DType::bf16 && dtype != DType::f32) continue;
        const Tensor x = numbers(whole, dtype, 1), source = numbers(shape, dtype, 2);
        const Tensor index = cast(draw(ids(shape, 17), {}, 3), length == 64 ? DType::i32 : DType::i64);
        const DimAttrs attrs{dim};
        expect_same("gather", {x, index}, attrs);
        expect_same("scatter", {x, index, source}, attrs);
        expect_same("scatter_add", {x, index, source}, attrs);
        expect_same("scatter_backward", {x, index}, attrs);
        expect_same("gather_backward", {source, index}, GatherBackwardAttrs{dim, whole});
      }
}

TEST_F(CudaGather, AnyStridesAndOffsets) {
  for (const std::int64_t length : {5, 70}) {
    const Tensor x = permute(numbers({6, 3, 9}, DType::bf16, 4), {2, 0, 1});  // [9, 6, 3]
    const Tensor source = narrow(permute(numbers({8, length + 1, 3}, DType::bf16, 5), {0, 1, 2}), 1, 1, length);
    const Tensor index = permute(draw(ids({length, 3, 8}, 6), {}, 6), {2, 0, 1});
    ASSERT_EQ(index.shape(), source.shape());
    for (const char* row : {"scatter", "scatter_add"}) expect_same(row, {x, index, source}, DimAttrs{1});
    expect_same("gather", {x, index}, DimAttrs{1});
    expect_same("scatter_backward", {x, index}, DimAttrs{1});
  }
}

TEST_F(CudaGather, OnePlaceForAllAndNoEntries) {
  for (const std::int64_t length : {0, 30, 3000}) {
    const Tensor index = zeros({2, length}, DType::i64), source = numbers({2, length}, DType::f32, 7);
    for (const char* row : {"scatter", "scatter_add"})
      expect_same(row, {numbers({2, 3}, DType::f32, 8), index, source}, DimAttrs{1});
    expect_same("gather_backward", {source, index}, GatherBackwardAttrs{1, {2, 3}});
  }
}

TEST_F(CudaGather, AWrongIndexIsNamedAndTouchesNothing) {
  const Device cuda = Device::cuda(0);
  const Tensor x = to(numbers({2, 4}, DType::f32, 9), cuda);
  const auto synchronize = [&] { RankContext::current().device(cuda).synchronize(); };
  for (const std::int64_t length : {3, 80}) {
    Tensor entries = full({2, length}, 1, DType::i64);
    entries.mutable_data<std::int64_t>()[length + 1] = 4;
    entries.mutable_data<std::int64_t>()[length + 2] = -1;
    const Tensor index = to(entries, cuda), source = ones({2, length}, DType::f32, cuda);
    const std::string text = fmt::format("index 4 at position {} is outside of 0..3", length + 1);
    Tensor out = gather(x, 1, index);
    expect_error(synchronize, {"gather: " + text});
    EXPECT_EQ(on_host(out).to_vector<float>()[static_cast<std::size_t>(length + 1)], 0.0f);
    out = scatter_add(x, 1, index, source);
    expect_error(synchronize, {"scatter_add: " + text});
    const auto before = on_host(x).to_vector<float>(), after = on_host(out).to_vector<float>();
    for (std::size_t i : {0, 2, 3, 4, 6, 7}) EXPECT_EQ(after[i], before[i]) << i;
    out = call_row("scatter_backward", {x, index}, DimAttrs{1})[1];
    expect_error(synchronize, {"scatter_backward: " + text});
    EXPECT_EQ(on_host(out).to_vector<float>()[static_cast<std::size_t>(length + 1)], 0.0f);
  }
}

// Lines of several chunks of a block; more elements found than are ordered by comparing; many that are equal.
TEST_F(CudaTopK, LinesOfEveryLength) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8})
    for (const auto& [n, k] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 2}, {33, 33}, {700, 50}, {2600, 1300}}) {
      SCOPED_TRACE(fmt::format("{} of {} in {}", k, n, name(dtype)));
      if (n > 2000 && dtype != DType::f32 && dtype != DType::i64 && dtype != DType::bf16) continue;
      expect_same("topk", {numbers({3, n}, dtype, 10)}, TopKAttrs{k, 1});
    }
  expect_same("topk", {draw(flags({2, 300}), {}, 11)}, TopKAttrs{170, 1});
}

TEST_F(CudaTopK, AlongEveryDimOfEveryLayout) {
  const Tensor x = numbers({4, 37, 3}, DType::f32, 12);
  for (const Tensor& t : {x, permute(x, {2, 0, 1}), permute(x, {1, 2, 0})})
    for (int dim = 0; dim < 3; ++dim) expect_same("topk", {t}, TopKAttrs{2, dim});
}

// Lines that several blocks share. Few different values: of those that equal the last one, the first are taken,
// whichever block finds them.
TEST_F(CudaTopK, LongLinesInParts) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::f32, DType::bf16, DType::i64, DType::u8}) {
    const Tensor few = cast(draw(ids({2, 20'000}, 9), DType::f32, 13), dtype);
    for (const std::int64_t k : {1, 300}) expect_same("topk", {few}, TopKAttrs{k, 1});
    expect_same("topk", {permute(few, {1, 0})}, TopKAttrs{7, 0});
  }
  Tensor x = numbers({33'001}, DType::f32, 14);
  for (const std::int64_t at : {0, 8'250, 16'499, 16'500, 33'000}) {
    x.mutable_data<float>()[at] = kNan;
    x.mutable_data<float>()[at / 2 + 1] = kInf;
  }
  expect_same("topk", {x}, TopKAttrs{9, 0});
  expect_same("topk", {x}, TopKAttrs{1100, 0});  // ordered by sorting
  expect_same("topk", {draw(flags({16'384}), {}, 15)}, TopKAttrs{40, 0});
}

TEST_F(CudaTopK, SpecialValues) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::from<float>({0.0f, -kInf, kNan, -0.0f, kInf, -kNan, 0.0f, -1e-40f, 1e-40f, -kInf}, {10});
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const std::int64_t k : {1, 4, 6, 10}) {
      const Tensor there = topk(to(cast(x, dtype), Device::cuda(0)), k).second;
      EXPECT_TRUE(same_bits(on_host(there), topk(cast(x, dtype), k).second)) << name(dtype) << k;
    }
}

TEST_F(CudaVar, FarFromZeroInRowsColumnsAndParts) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Tensor x = add(numbers({60'000}, dtype, 13), 5000);
    expect_as_on_cpu("var", {x}, VarAttrs{{0b1, false}, 1});
    expect_as_on_cpu("var", {reshape(x, {3000, 20})}, VarAttrs{{0b01, false}, 0});
    expect_as_on_cpu("var", {reshape(x, {20, 3000})}, VarAttrs{{0b10, true}, 1});
    expect_as_on_cpu("var", {reshape(x, {30, 20, 100})}, VarAttrs{{0b101, false}, 2});
  }
  // By vectors with and without a tail, one element at a time, and between gaps.
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor x = add(numbers({21, 3000}, dtype, 13), 3);
    for (const VarAttrs& attrs : {VarAttrs{{0b10, false}, 1}, VarAttrs{{0b10, true}, 0}, VarAttrs{{0b11, false}, 1}}) {
      expect_as_on_cpu("var", {x}, attrs);
      expect_as_on_cpu("var", {reshape(narrow(reshape(x, {63'000}), 0, 0, 3003), {1, 3003})}, attrs);
      expect_as_on_cpu("var", {x}, attrs, 1, [](const Tensor& t) { return narrow(t, 1, 1, 1001); });
      expect_as_on_cpu("var", {x}, attrs, 1, [](const Tensor& t) { return narrow(t, 1, 16, 512); });
    }
  }
  const Tensor few = on_device(ones({3, 2}));
  for (const double v : on_host(var(few, {1}, 2)).to_vector<double>()) EXPECT_TRUE(std::isnan(v));
  for (const double v : on_host(var(on_device(zeros({3, 0})), {1}, 0)).to_vector<double>()) EXPECT_TRUE(std::isnan(v));
}

}  // namespace
}  // namespace sherd::testing
