// softmax and log_softmax on the device against the CPU's: rows in registers and rows read again, columns, odd lengths,
// unaligned rows, infinities.
#include <gtest/gtest.h>

#include <limits>

#include "runtime/op/rows/view_attrs.h"
#include "tests/cuda/against_cpu.h"
#include "tests/cuda/cuda_test.h"

namespace sherd::testing {
namespace {

using CudaSoftmax = cuda::CudaTest;

struct SoftmaxForm {
  Shape shape;
  int dim;
};

// Teams of a lane, of a warp, of a block; rows held and not (17'000 of 16 bits is more than a block holds); columns.
const std::vector<SoftmaxForm> kSoftmaxForms = {{{3, 7}, 1},      {{50, 24}, 1},    {{5, 1}, 1},      {{3, 1032}, 1},
                                                {{2, 4104}, 1},   {{2, 17'001}, 1}, {{1, 20'000}, 1}, {{40, 70}, 0},
                                                {{3, 100, 5}, 1}, {{2, 3, 33}, 1},  {{0, 3}, 1}};

TEST_F(CudaSoftmax, EveryForm) {
  for (const SoftmaxForm& f : kSoftmaxForms)
    for (DType dtype : {DType::f32, DType::bf16, DType::f64})
      for (const char* row : {"softmax", "log_softmax"})
        expect_as_on_cpu(row, {draw(normal(f.shape), dtype, 1)}, DimAttrs{f.dim});
}

TEST_F(CudaSoftmax, DerivativesOfEveryForm) {
  for (const SoftmaxForm& f : kSoftmaxForms)
    for (DType dtype : {DType::f32, DType::f16, DType::f64})
      for (const char* row : {"softmax_backward", "log_softmax_backward"})
        expect_as_on_cpu(row, {draw(normal(f.shape), dtype, 1), draw(unit(f.shape), dtype, 2)}, DimAttrs{f.dim}, 20);
}

// A storage that starts between two vectors, and rows that do.
TEST_F(CudaSoftmax, UnalignedRows) {
  const View view = [](const Tensor& t) { return narrow(t, 0, 3, 1026); };
  for (DType dtype : {DType::f32, DType::bf16}) {
    expect_as_on_cpu("softmax", {draw(normal({1029}), dtype, 1)}, DimAttrs{0}, 1, view);
    expect_as_on_cpu("log_softmax", {draw(normal({7, 257}), dtype, 1)}, DimAttrs{1});
  }
}

TEST_F(CudaSoftmax, MaskedAndInfiniteValues) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t n : {8, 33, 9000, 40'000}) {
    Tensor x = draw(normal({5, n}), DType::f32, 1);
    auto* at = x.mutable_data<float>();
    for (std::int64_t j = 0; j + 1 < n; ++j) at[j] = -inf;  // one value left
    std::fill_n(at + n, n, -inf);
    at[2 * n + n / 2] = nan;
    at[3 * n + n / 2] = inf;
    std::fill_n(at + 4 * n, n / 2, -inf);
    for (const char* row : {"softmax", "log_softmax"}) expect_as_on_cpu(row, {x}, DimAttrs{1});
  }
  Tensor column = full({64, 2}, -inf);
  column.mutable_data<float>()[2 * 50] = 3;
  expect_as_on_cpu("softmax", {column}, DimAttrs{0});
}

TEST_F(CudaSoftmax, LargeValuesDoNotOverflow) {
  for (const Shape& shape : {Shape{2, 40}, Shape{1, 9001}})
    for (double shift : {-3e4, 3e4})
      expect_as_on_cpu("log_softmax", {add(draw(normal(shape), DType::f32, 1), full({}, shift))}, DimAttrs{1});
}

}  // namespace
}  // namespace sherd::testing
