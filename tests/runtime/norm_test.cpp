// softmax, log_softmax, layer_norm, rms_norm: goldens, extreme values, 16-bit floats, errors.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/op/rows/ops.h"
#include "tests/support/draw.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden_case.h"

namespace sherd::testing {
namespace {

TEST(Softmax, Golden) {
  const Golden golden("softmax");
  for (const std::string& test_case : golden.cases()) {
    const int dim = static_cast<int>(golden.integer(test_case, "dim"));
    const bool log = test_case.starts_with("log_");
    expect_golden(golden, test_case, {"x"},
                  [&](auto in) { return log ? log_softmax(in[0], dim) : softmax(in[0], dim); });
  }
}

TEST(Softmax, LargeValuesNeitherOverflowNorVanish) {
  const Tensor x = Tensor::from<float>({1e4f, 1e4f, -1e4f, -3e38f, -1e4f, 3e38f}, {2, 3});
  EXPECT_TRUE(near(softmax(x, 1), Tensor::from<float>({0.5f, 0.5f, 0, 0, 0, 1}, {2, 3})));
  const Tensor logs = log_softmax(x, 1);
  EXPECT_NEAR(logs.to_vector<float>()[0], -std::log(2.0f), 1e-6);
  EXPECT_EQ(logs.to_vector<float>()[5], 0);
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(
      near(softmax(Tensor::from<float>({-inf, 0, -inf, 0}, {4}), 0), Tensor::from<float>({0, 0.5f, 0, 0.5f}, {4})));
}

TEST(Softmax, MovedDimEqualsMovedResult) {
  const Tensor x = draw(normal({3, 70, 37}), DType::f32, 1);
  EXPECT_TRUE(near(softmax(x, 1), transpose(softmax(transpose(x, 1, 2), 2), 1, 2)));
  EXPECT_TRUE(near(log_softmax(x, -3), permute(log_softmax(permute(x, {1, 2, 0}), 2), {2, 0, 1})));
}

TEST(Norm, Golden) {
  const Golden golden("norm");
  for (const std::string& test_case : golden.cases()) {
    const double eps = golden.number(test_case, "eps");
    if (test_case.starts_with("layer_norm"))
      expect_golden(golden, test_case, {"x", "weight", "bias"},
                    [&](auto in) { return layer_norm(in[0], in[1], in[2], eps); });
    else expect_golden(golden, test_case, {"x", "weight"}, [&](auto in) { return rms_norm(in[0], in[1], eps); });
  }
}

// In f32, a sum of squares instead of a second pass over the row would lose every digit of this variance.
TEST(Norm, SmallVarianceAroundALargeMean) {
  std::vector<float> values;
  for (int i = 0; i < 64; ++i) values.push_back(4096.0f + static_cast<float>(i % 2) * 0.25f);
  const auto y = layer_norm(Tensor::from<float>(values, {64}), {}, {}, 0).to_vector<float>();
  for (std::size_t i = 0; i < 64; ++i) EXPECT_NEAR(y[i], i % 2 ? 1 : -1, 1e-5);
}

TEST(Norm, SixteenBitInputsAreRoundedOnce) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor x = draw(normal({5, 48}), dtype, 1), w = draw(normal({48}), dtype, 2),
                 b = draw(normal({48}), dtype, 3);
    const Tensor exact = layer_norm(cast(x, DType::f32), cast(w, DType::f32), cast(b, DType::f32));
    EXPECT_TRUE(same_bits(layer_norm(x, w, b), cast(exact, dtype)));
    EXPECT_TRUE(same_bits(rms_norm(x, w), cast(rms_norm(cast(x, DType::f32), cast(w, DType::f32)), dtype)));
    EXPECT_TRUE(same_bits(softmax(x, 0), cast(softmax(cast(x, DType::f32), 0), dtype)));
  }
}

TEST(Norm, ErrorsNameBothValues) {
  expect_error([] { layer_norm(zeros({2, 8}), zeros({4}), {}); }, {"weight is [8]", "[4]", "layer_norm"});
  expect_error([] { layer_norm(zeros({2, 8}), {}, zeros({1, 8})); }, {"bias is [8]", "[1,8]"});
  expect_error([] { rms_norm(zeros({2, 8}), zeros({8}, DType::bf16)); }, {"dtypes differ", "f32", "bf16"});
  expect_error([] { rms_norm(zeros({2, 8}, DType::i64), {}); }, {"floating-point", "i64"});
  expect_error([] { softmax(zeros({2, 8}), 2); }, {"2"});
}

}  // namespace
}  // namespace sherd::testing
