// layer_norm and rms_norm on the device against the CPU's: rows that registers hold, with one access and with several,
// rows that are read again, odd lengths, many rows per block.
#include <gtest/gtest.h>

#include "runtime/op/rows/norm_attrs.h"
#include "tests/cuda/against_cpu.h"
#include "tests/cuda/cuda_test.h"

namespace sherd::testing {
namespace {

using CudaNorm = cuda::CudaTest;

constexpr double kSlack = 10;  // dweight sums over all rows; x is divided by a small deviation

void check_norms(std::int64_t rows, std::int64_t d, DType dtype, bool affine) {
  SCOPED_TRACE(fmt::format("{} rows of {} in {}", rows, d, name(dtype)));
  const Tensor x = draw(normal({rows, d}), dtype, 1), grad = draw(normal({rows, d}), dtype, 2);
  const Tensor weight = affine ? draw(normal({d}), dtype, 3) : Tensor();
  const Tensor bias = affine ? draw(normal({d}), dtype, 4) : Tensor();
  const NormAttrs attrs{1e-5};
  expect_as_on_cpu("rms_norm", {x, weight}, attrs, kSlack);
  expect_as_on_cpu("layer_norm", {x, weight, bias}, attrs, kSlack);
  const Tensors of_layer = call_row("layer_norm", {x, weight, bias}, attrs);
  const Tensors of_rms = call_row("rms_norm", {x, weight}, attrs);
  expect_as_on_cpu("rms_norm_backward", {grad, x, weight, of_rms[1]}, {}, kSlack);
  expect_as_on_cpu("layer_norm_backward", {grad, x, weight, of_layer[1], of_layer[2]}, {}, kSlack);
}

TEST_F(CudaNorm, RowsOfEveryLength) {
  for (std::int64_t d : {1, 8, 9, 64, 100, 768, 1000})
    for (DType dtype : {DType::f32, DType::bf16, DType::f64}) check_norms(7, d, dtype, true);
}

TEST_F(CudaNorm, LongRows) {
  check_norms(5, 2048, DType::bf16, true);
  check_norms(3, 8192, DType::f16, true);
  check_norms(2, 4096, DType::f32, false);
  check_norms(2, 16'392, DType::bf16, true);  // more than registers hold
  check_norms(2, 8200, DType::f32, true);
}

TEST_F(CudaNorm, ManyRows) {
  check_norms(700, 32, DType::f32, true);
  check_norms(301, 72, DType::bf16, false);
  check_norms(90, 33, DType::f32, true);
}

TEST_F(CudaNorm, WithoutParametersOrRows) {
  check_norms(6, 40, DType::f32, false);
  check_norms(6, 41, DType::bf16, false);
  check_norms(0, 16, DType::f32, true);
}

// Storages that start between two vectors.
TEST_F(CudaNorm, UnalignedStorages) {
  const View view = [](const Tensor& t) { return narrow(t, 0, 3, t.shape()[0] - 3); };
  expect_as_on_cpu("rms_norm", {draw(normal({67}), DType::bf16, 1), draw(normal({67}), DType::bf16, 2)},
                   NormAttrs{1e-5}, kSlack, view);
}

// Closed form: of a row of alternating -1 and 1 the mean is 0 and the deviation 1.
TEST_F(CudaNorm, ClosedForm) {
  std::vector<float> values(4096);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 2 ? 3.0f : 1.0f;
  const Tensor x = to(Tensor::from<float>(values, {1, 4096}), Device::cuda(0));
  const auto y = layer_norm(x, Tensor(), Tensor(), 0).to_vector<float>();
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], i % 2 ? 1.0f : -1.0f) << i;
}

}  // namespace
}  // namespace sherd::testing
