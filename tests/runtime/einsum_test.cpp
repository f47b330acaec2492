// einsum: PyTorch's values and gradients of every form, what its rows do with integers, empty dims and 16 bits, and the
// words of its errors. (Which rows it takes: tests/compile/einsum_test.cpp; sharded: tests/dtensor/einsum_test.cpp.)
#include "runtime/op/rows/einsum.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "runtime/op/rows/ops.h"
#include "tests/support/draw.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden_case.h"

namespace sherd::testing {
namespace {

std::string text_of(const GoldenTensor& codes) {
  std::string text;
  for (const std::int64_t code : codes.i64) text += static_cast<char>(code);
  return text;
}

TEST(Einsum, EveryFormIsPyTorchsInValuesAndGradients) {
  const Golden golden("einsum");
  int checked = 0;
  for (const std::string& test_case : golden.cases()) {
    const std::string equation = text_of(golden.at(test_case + ".equation"));
    SCOPED_TRACE(equation);
    expect_golden(golden, test_case, golden.names(test_case, "in"),
                  [&](std::span<const Tensor> in) { return einsum(equation, in); });
    ++checked;
  }
  EXPECT_GE(checked, 50);
}

TEST(Einsum, OperandsMayLieInAnyWay) {
  const Golden golden("einsum");
  for (const std::string test_case : {"scores_heads_inside", "inner_two_turned", "to_heads", "convolution", "linear",
                                      "matrix_turned", "batch_diagonal", "values"}) {
    const std::string equation = text_of(golden.at(test_case + ".equation"));
    for (const auto& stride : {with_reversed_strides, with_gaps}) {
      std::vector<Tensor> in;
      for (const std::string& name : golden.names(test_case, "in"))
        in.push_back(stride(golden_tensor(golden, test_case + ".in." + name, DType::f32)));
      EXPECT_TRUE(near(einsum(equation, in), golden_tensor(golden, test_case + ".out", DType::f32))) << equation;
    }
  }
}

TEST(Einsum, AProductIsTheRowsOwnBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor a = draw(normal({2, 9, 33}), dtype, 1), b = draw(normal({2, 33, 7}), dtype, 2);
    const Tensor weight = draw(normal({5, 33}), dtype, 3);
    EXPECT_TRUE(same_bits(einsum("bij,bjk->bik", a, b), matmul(a, b)));
    EXPECT_TRUE(same_bits(einsum("...d,ed->...e", a, weight), linear(a, weight)));
    EXPECT_TRUE(same_bits(einsum("ed,...d->...e", weight, a), linear(a, weight)));
  }
}

// With x = 1 + 2^-7: x * x - (1 + 2^-6) is 2^-14, of which a product rounded to bf16 has lost all.
TEST(Einsum, DotsOf16BitsAddUpInF32) {
  const Tensor a = cast(Tensor::from<float>({1.0078125F, -1.015625F}, {1, 2}), DType::bf16);
  const Tensor b = cast(Tensor::from<float>({1.0078125F, 1}, {1, 2}), DType::bf16);
  const Tensor y = einsum("bi,bi->b", a, b);
  EXPECT_EQ(y.dtype(), DType::bf16);
  EXPECT_EQ(y.item<float>(), 0x1p-14F);
}

TEST(Einsum, WhatOnlyNamesDimsIsAView) {
  const Tensor x = draw(normal({2, 3, 4}), DType::f32, 4);
  for (const char* equation : {"ijk", "ijk->kij", "...", "a...->...a"})
    EXPECT_EQ(einsum(equation, x).storage()->id(), x.storage()->id()) << equation;
  EXPECT_TRUE(same_bits(einsum("i...k->k...i", x), permute(x, {2, 1, 0})));
  EXPECT_TRUE(same_bits(einsum("", Tensor::scalar(3)), Tensor::scalar(3)));
}

TEST(Einsum, IntegersKeepTheirTypeAndBoolsAreSets) {
  const Tensor a = Tensor::from<std::int32_t>({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor b = Tensor::from<std::int32_t>({1, 0, 2, 1, 0, 3}, {3, 2});
  const Tensor y = einsum("ij,jk->ki", a, b);
  EXPECT_EQ(y.dtype(), DType::i32);
  EXPECT_EQ(y.to_vector<int>(), (std::vector<int>{5, 14, 11, 23}));
  EXPECT_EQ(einsum("ij->", a).dtype(), DType::i32);
  EXPECT_EQ(einsum("ii", einsum("ij,kj->ik", a, a)).item<int>(), 91);
  const Tensor left = equal(a, Tensor::scalar(2, DType::i32)), right = equal(b, Tensor::scalar(2, DType::i32));
  EXPECT_EQ(einsum("ij,jk->ik", left, right).to_vector<bool>(), (std::vector<bool>{true, false, false, false}));
}

TEST(Einsum, DimsWithoutElements) {
  const Tensor a = zeros({2, 0}), b = zeros({0, 3});
  EXPECT_EQ(einsum("ij,jk->ik", a, b).to_vector<float>(), std::vector<float>(6, 0));
  EXPECT_EQ(einsum("ij,jk->ik", b, zeros({3, 0})).shape(), (Shape{0, 0}));
  EXPECT_EQ(einsum("ij,j->i", a, ones({1})).to_vector<float>(), std::vector<float>(2, 0));
  EXPECT_EQ(einsum("ii->i", zeros({0, 0})).shape(), (Shape{0}));
  EXPECT_EQ(einsum("ii->", zeros({0, 0})).item<float>(), 0);
  EXPECT_EQ(einsum("ii->i", full({1, 1}, 7)).item<float>(), 7);
}

TEST(Einsum, ADiagonalIsUntouchedByWhatLiesBesideIt) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::from<float>({1, inf, NAN, -inf, 2, inf, NAN, NAN, 3}, {3, 3});
  EXPECT_EQ(einsum("ii->i", x).to_vector<float>(), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(einsum("ii", x).item<float>(), 6);
}

TEST(Einsum, ShapesWithoutValues) {
  const Device meta = Device::meta();
  const Tensor y = einsum("bqhd,bkhd->bhqk", Tensor::empty({64, 4096, 32, 128}, DType::bf16, meta),
                          Tensor::empty({64, 4096, 32, 128}, DType::bf16, meta));
  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(y.shape(), (Shape{64, 32, 4096, 4096}));
}

TEST(Einsum, ErrorsNameTheLabelAndTheOperand) {
  const Tensor a = zeros({2, 3}), b = zeros({4, 5});
  const auto expect = [&](std::string_view equation, std::vector<Tensor> in, std::string_view message) {
    expect_error([&] { einsum(equation, in); }, {message, fmt::format("\"{}\" of", equation)});
  };
  expect("ij,jk->ik", {a, b}, "subscript j has size 4 in operand 1 and 3 in one before it");
  expect("...i,...i", {a, zeros({5, 3})}, "dim -1 of the ellipsis has size 5 in operand 1 and 2");
  expect("ij,jk->ik", {a}, "the equation has 2 operands, the call 1");
  expect("ij", {a, b}, "the equation has 1 operands, the call 2");
  expect("ij,jk->iz", {a, zeros({3, 4})}, "subscript z of the output is in no operand");
  expect("ij->ii", {a}, "subscript i stands twice in the output");
  expect("ijk->i", {a}, "\"ijk\" names 3 dims, operand 0 has 2");
  expect("i->i", {a}, "\"i\" names 1 dims, operand 0 has 2");
  expect("i...jk", {a}, "\"i...jk\" names 3 dims beside its ellipsis, operand 0 has 2");
  expect("ii->i", {a}, "subscript i stands twice in operand 0, for sizes 2 and 3");
  expect("i1->i", {a}, "subscripts are letters or \"...\", got '1' in \"i1\"");
  expect("i..j", {a}, "got '.'");
  expect("......", {a}, "more than one ellipsis");
  expect("ij->j->i", {a}, "got '-'");
  expect("ij>i", {a}, "got '>'");
  expect("ij->i,j", {a}, "got ','");
  expect("ij->... ...", {a}, "more than one ellipsis");
  expect("", {}, "the equation has 1 operands, the call 0");
  expect("ij,jk->ik", {a, zeros({3, 2}, DType::f64)}, "dtypes differ: f32 of operand 0 and f64 of operand 1");
  expect("ij,i", {a, Tensor()}, "operand 1 is undefined");
  expect("abcde,fghij->abcdefghij", {zeros({1, 1, 1, 1, 2}), zeros({1, 1, 1, 1, 2})}, "at most 8 dims");
}

}  // namespace
}  // namespace sherd::testing
