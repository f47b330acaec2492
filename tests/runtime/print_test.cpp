// Oracle: the printed text, by hand, after PyTorch's conventions.
#include <gtest/gtest.h>

#include <limits>

#include "runtime/op/rows/ops.h"

namespace sherd {
namespace {

TEST(Print, WholeNumbersHaveNoDecimals) {
  EXPECT_EQ(to_string(Tensor::from<float>({1, 2, 10, -4}, {2, 2})), "[[ 1.,  2.],\n [10., -4.]] f32[2,2]");
  EXPECT_EQ(to_string(Tensor::from<std::int64_t>({1, -20}, {2})), "[  1, -20] i64[2]");
  EXPECT_EQ(to_string(Tensor::from<bool>({true, false}, {2})), "[ true, false] bool[2]");
}

TEST(Print, OtherNumbersHaveFour) {
  EXPECT_EQ(to_string(Tensor::from<float>({0.5f, -1.25f}, {2})), "[ 0.5000, -1.2500] f32[2]");
  EXPECT_EQ(to_string(Tensor::scalar(0.5)), "0.5000 f32[]");
}

TEST(Print, FarApartMagnitudesAreScientific) {
  EXPECT_EQ(to_string(Tensor::from<float>({0.5f, 2048.5f}, {2})), "[5.0000e-01, 2.0485e+03] f32[2]");
}

TEST(Print, NotANumberAndInfinity) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_string(Tensor::from<float>({1, -inf, std::numeric_limits<float>::quiet_NaN()}, {3})),
            "[  1., -inf,  nan] f32[3]");
}

TEST(Print, LongDimsShowTheirEnds) {
  EXPECT_EQ(to_string(arange(7)), "[0, 1, 2, ..., 4, 5, 6] i64[7]");
  EXPECT_EQ(to_string(arange(6)), "[0, 1, 2, 3, 4, 5] i64[6]");
  EXPECT_EQ(to_string(reshape(arange(14), {7, 2})),
            "[[ 0,  1],\n [ 2,  3],\n [ 4,  5],\n ...,\n [ 8,  9],\n [10, 11],\n [12, 13]] i64[7,2]");
}

TEST(Print, MatricesAreApartAndEmptyOnesEmpty) {
  EXPECT_EQ(to_string(reshape(arange(4), {2, 1, 2})), "[[[0, 1]],\n\n [[2, 3]]] i64[2,1,2]");
  EXPECT_EQ(to_string(zeros({0})), "[] f32[0]");
  EXPECT_EQ(to_string(zeros({2, 0})), "[[],\n []] f32[2,0]");
}

TEST(Print, ViewsPrintInTheirOwnOrder) {
  EXPECT_EQ(to_string(transpose(reshape(arange(4), {2, 2}), 0, 1)), "[[0, 2],\n [1, 3]] i64[2,2]");
}

TEST(Print, BigIntegersAreExact) {
  EXPECT_EQ(to_string(Tensor::from<std::int64_t>({9007199254740993}, {1})), "[9007199254740993] i64[1]");
}

TEST(Print, WithoutValuesOnlyTheDescription) {
  EXPECT_EQ(to_string(Tensor()), "undefined");
  EXPECT_EQ(to_string(zeros({2}, DType::bf16, Device::meta())), "bf16[2](meta)");
}

}  // namespace
}  // namespace sherd
