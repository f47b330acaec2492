// matmul and linear: goldens, layouts without copies, accumulation in place, and the words of their errors. Values and
// vjps of every shape are the sweep's (op_sweep_test.cpp).
#include <gtest/gtest.h>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/cpu/gemm/gemm.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/draw.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden_case.h"

namespace sherd::testing {
namespace {

const TensorFunction kLinear = [](auto in) { return linear(in[0], in[1], in[2]); };
const TensorFunction kMatmul = [](auto in) { return matmul(in[0], in[1]); };

TEST(Matmul, Golden) {
  const Golden golden("product");
  for (const std::string& test_case : golden.cases("matmul")) expect_golden(golden, test_case, {"a", "b"}, kMatmul);
}

TEST(Linear, Golden) {
  const Golden golden("product");
  for (const std::string& test_case : golden.cases("linear"))
    expect_golden(golden, test_case, {"x", "weight", "bias"}, kLinear);
}

TEST(Matmul, VectorsAsInPyTorch) {
  const Tensor v = Tensor::from<float>({1, 2, 3}, {3}), m = Tensor::from<float>({1, 0, 0, 1, 1, 1}, {3, 2});
  EXPECT_TRUE(near(matmul(v, m), Tensor::from<float>({4, 5}, {2})));
  EXPECT_TRUE(near(matmul(transpose(m, 0, 1), v), Tensor::from<float>({4, 5}, {2})));
  EXPECT_TRUE(near(matmul(v, v), Tensor::from<float>({14}, {})));
  EXPECT_TRUE(near(linear(v, transpose(m, 0, 1)), Tensor::from<float>({4, 5}, {2})));
  for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{{{3}, {3}}, {{3}, {2, 3, 4}}, {{2, 4, 3}, {3}}}) {
    const Tensor inputs[] = {draw(normal(a), DType::f64, 1), draw(normal(b), DType::f64, 2)};
    EXPECT_TRUE(grad_check(kMatmul, inputs));
  }
}

// Views such as a projection's transpose, a head's slice or a repeated matrix reach the product without a copy.
TEST(Matmul, CommonLayoutsTakeNoScratch) {
  const Tensor wide = draw(normal({4, 6, 40}), DType::f32, 1), b = draw(normal({4, 10, 6}), DType::f32, 2);
  const Tensor slice = narrow(wide, 2, 5, 10);  // rows 40 apart
  const Tensor heads = permute(draw(normal({4, 6, 3, 10}), DType::f32, 3), {0, 2, 1, 3});
  const Tensor repeated = expand(unsqueeze(draw(normal({10, 6}), DType::f32, 4), 0), {4, 10, 6});
  Accounting& account = RankContext::current().allocator().accounting();
  account.reset_peaks();
  const Tensor y1 = matmul(slice, b), y2 = matmul(transpose(b, 1, 2), transpose(slice, 1, 2)),
               y3 = matmul(slice, repeated);
  const Tensor y4 = matmul(heads, expand(unsqueeze(b, 1), {4, 3, 10, 6}));
  EXPECT_EQ(account.peak(MemoryCategory::workspace), 0);
  EXPECT_TRUE(near(y1, matmul(dense_copy(slice), b)));
  EXPECT_TRUE(near(y2, transpose(y1, 1, 2)));
  EXPECT_TRUE(near(y3, matmul(dense_copy(slice), dense_copy(repeated))));
  EXPECT_TRUE(near(select(y4, 1, 1), matmul(dense_copy(select(heads, 1, 1)), b)));
}

// The gradient of a weight is written to its destination, contributions are added there, and no copy of it exists
// meanwhile.
TEST(Linear, WeightGradientIsWrittenInPlace) {
  Slot weight("weight", true);
  weight.set(draw(normal({64, 48}), DType::f32, 1));
  const Tensor x = draw(normal({8, 48}), DType::f32, 2), grad = draw(normal({8, 64}), DType::f32, 3);
  backward(linear(x, weight.value()), {.grad = grad});
  const Tensor first = dense_copy(weight.grad());
  const void* const place = weight.grad().raw();
  const Tensor out = linear(x, weight.value());
  Accounting& account = RankContext::current().allocator().accounting();
  account.reset_peaks();
  const std::int64_t before = account.total();
  backward(out, {.grad = grad});
  EXPECT_EQ(account.total_peak(), before);
  EXPECT_EQ(weight.grad().raw(), place);
  EXPECT_TRUE(near(weight.grad(), add(first, first)));
}

TEST(Linear, OwnKernelGivesTheSameGradients) {
  const Tensor inputs[] = {draw(normal({3, 7, 33}), DType::f32, 1), draw(normal({20, 33}), DType::f32, 2),
                           draw(normal({20}), DType::f32, 3)};
  const Tensor cotangent = draw(normal({3, 7, 20}), DType::f32, 4);
  const auto library = testing::gradients(kLinear, inputs, cotangent);
  const cpu::UseGemmBackend use(cpu::GemmBackend::blocked);
  const auto blocked = testing::gradients(kLinear, inputs, cotangent);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(near(blocked[i], library[i], 3e-5)) << i;
}

TEST(Matmul, ErrorsNameBothValues) {
  const Tensor a = zeros({8, 16}), b = zeros({8, 4});
  expect_error([&] { matmul(a, b); }, {"inner dimensions differ: 16 and 8", "matmul", "f32[8,16]  f32[8,4]"});
  expect_error([&] { matmul(a, zeros({16, 4}, DType::bf16)); }, {"dtypes differ: f32 and bf16"});
  expect_error([&] { matmul(zeros({2, 2}, DType::i64), zeros({2, 2}, DType::i64)); }, {"floating-point", "i64"});
  expect_error([&] { matmul(zeros({2, 3, 4}), zeros({3, 4, 5})); }, {"[2]", "[3]", "do not broadcast"});
  expect_error([&] { linear(a, zeros({4, 8})); }, {"inner dimensions differ: 16 and 8", "linear"});
  expect_error([&] { linear(a, zeros({4, 16}), zeros({5})); }, {"bias is [4]", "[5]"});
  expect_error([&] { linear(a, zeros({16})); }, {"weight is [out, in]", "[16]"});
}

}  // namespace
}  // namespace sherd::testing
