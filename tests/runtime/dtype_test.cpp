// Oracles: IEEE 754 and bfloat16 bit patterns, PyTorch's promotion table.
#include "runtime/tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/op/rows/ops.h"

namespace sherd {
namespace {

TEST(DType, NamesRoundTripAndUnknownOnesAreErrors) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto t = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(name(t)), t);
  }
  try {
    dtype_from_name("float32");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("float32"), std::string::npos);
    EXPECT_NE(e.message().find("bf16"), std::string::npos);
  }
}

TEST(DType, PromotionIsPyTorchs) {
  using enum DType;
  // Row and column in the order f64 f32 bf16 f16 i64 i32 u8 bool.
  const DType table[kNumDTypes][kNumDTypes] = {
      {f64, f64, f64, f64, f64, f64, f64, f64},      {f64, f32, f32, f32, f32, f32, f32, f32},
      {f64, f32, bf16, f32, bf16, bf16, bf16, bf16}, {f64, f32, f32, f16, f16, f16, f16, f16},
      {f64, f32, bf16, f16, i64, i64, i64, i64},     {f64, f32, bf16, f16, i64, i32, i32, i32},
      {f64, f32, bf16, f16, i64, i32, u8, u8},       {f64, f32, bf16, f16, i64, i32, u8, boolean},
  };
  for (int a = 0; a < kNumDTypes; ++a)
    for (int b = 0; b < kNumDTypes; ++b)
      EXPECT_EQ(promote(static_cast<DType>(a), static_cast<DType>(b)), table[a][b]) << a << " " << b;
}

TEST(DType, Bf16RoundsToNearestEvenAndKeepsDenormals) {
  EXPECT_EQ(bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(bf16(1.00390625f).bits, 0x3f80) << "half way between 1 and 1 + 2^-7: to even";
  EXPECT_EQ(bf16(1.01171875f).bits, 0x3f82) << "half way above an odd one: up";
  EXPECT_EQ(bf16(0x1p-133f).bits, 0x0001) << "the smallest denormal";
  EXPECT_EQ(bf16(3.4e38f).bits, 0x7f80) << "rounds to infinity";
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u))))) << "NaN with low bits only";
}

TEST(DType, EveryHalfSurvivesTheRoundTripThroughFloat) {
  for (std::uint32_t u = 0; u < 0x10000; ++u) {
    f16 h;
    h.bits = static_cast<std::uint16_t>(u);
    const auto x = static_cast<float>(h);
    if (std::isnan(x)) EXPECT_TRUE(std::isnan(static_cast<float>(f16(x))));
    else EXPECT_EQ(f16(x).bits, h.bits) << u;
  }
  EXPECT_EQ(static_cast<float>(f16(65520.0f)), std::numeric_limits<float>::infinity());
  EXPECT_EQ(f16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(f16(0x1p-25f).bits, 0) << "half of the smallest denormal: to even";
  EXPECT_EQ(f16(0x1.8p-24f).bits, 2) << "one and a half: to even";
  EXPECT_EQ(f16(2049.0f).bits, f16(2048.0f).bits);
}

TEST(DType, CastFollowsOneRule) {
  const Tensor x = Tensor::from<float>({-1.75f, 0.0f, 0.25f, 2.5f, 300.0f}, {5});
  EXPECT_EQ(cast(x, DType::i64).to_vector<std::int64_t>(), (std::vector<std::int64_t>{-1, 0, 0, 2, 300}));
  EXPECT_EQ(cast(x, DType::boolean).to_vector<bool>(), (std::vector<bool>{true, false, true, true, true}));
  EXPECT_EQ(cast(x, DType::u8).to_vector<std::int64_t>().back(), 300 - 256) << "wraps";
  const Tensor big = Tensor::from<std::int64_t>({(std::int64_t{1} << 53) + 1, -7}, {2});
  EXPECT_EQ(cast(big, DType::i32).to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, -7}));
  EXPECT_EQ(cast(cast(big, DType::u8), DType::i64).to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 249}));
  EXPECT_EQ(cast(x, DType::f32).impl(), x.impl()) << "an equal dtype is no work";
}

// Rows long enough for vectors. Oracle: the scalar conversions, on every 16-bit pattern and on the f32 patterns around
// each of them, NaNs, denormals and ties included.
template <class T>
void expect_scalar_rule() {
  std::vector<T> halves(1 << 16);
  std::vector<float> floats;
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i].bits = static_cast<std::uint16_t>(i);
    const auto exact = std::bit_cast<std::uint32_t>(static_cast<float>(halves[i]));
    for (const std::uint32_t offset : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u})
      floats.push_back(std::bit_cast<float>(exact + offset));
  }
  const auto count = [](const auto& v) { return static_cast<std::int64_t>(v.size()); };
  const Tensor wide = cast(Tensor::from<T>(halves, {count(halves)}), DType::f32);
  for (std::size_t i = 0; i < halves.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide.data<float>()[i]),
              std::bit_cast<std::uint32_t>(static_cast<float>(halves[i])))
        << "pattern " << i;
  const Tensor narrow = cast(Tensor::from<float>(floats, {count(floats)}), dtype_of<T>);
  for (std::size_t i = 0; i < floats.size(); ++i)
    ASSERT_EQ(narrow.data<T>()[i].bits, T(floats[i]).bits) << std::hexfloat << floats[i];
}

TEST(DType, LongCastsFollowTheScalarRuleBitForBit) {
  expect_scalar_rule<bf16>();
  expect_scalar_rule<f16>();
}

TEST(DType, CastOfStridedTensorsAndOfEveryPair) {
  for (int a = 0; a < kNumDTypes; ++a)
    for (int b = 0; b < kNumDTypes; ++b) {
      const auto from = static_cast<DType>(a), to = static_cast<DType>(b);
      const Tensor x = cast(Tensor::from<std::int64_t>({0, 1, 1, 0, 1, 0}, {2, 3}), from);
      const Tensor y = cast(transpose(x, 0, 1), to);
      EXPECT_EQ(y.dtype(), to);
      EXPECT_EQ(y.to_vector<std::int64_t>(), (std::vector<std::int64_t>{0, 0, 1, 1, 1, 0})) << name(from) << name(to);
    }
}

}  // namespace
}  // namespace sherd
