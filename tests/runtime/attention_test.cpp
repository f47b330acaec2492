// Attention and rope. Oracles: PyTorch goldens, the formula in f64 by plain rows of the table, complex rotation.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/attention_attrs.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/draw.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden_case.h"

namespace sherd::testing {
namespace {

TensorFunction attention(bool causal, double scale = 0) {
  return [=](auto in) { return scaled_dot_product_attention(in[0], in[1], in[2], causal, scale); };
}

// softmax(scale q k^T + mask) v with the full matrix of scores, heads of keys repeated.
TensorFunction plain_attention(bool causal) {
  return [=](std::span<const Tensor> in) {
    const Tensor& q = in[0];
    const std::int64_t b = q.size(0), h = q.size(1), tq = q.size(2), width = q.size(3);
    const std::int64_t g = in[1].size(1), tk = in[1].size(2);
    const auto repeat = [&](const Tensor& t) {
      return reshape(expand(unsqueeze(t, 2), {b, g, h / g, tk, width}), {b, h, tk, width});
    };
    Tensor scores = matmul(q, transpose(repeat(in[1]), -1, -2)) * (1 / std::sqrt(static_cast<double>(width)));
    std::vector<double> mask;
    for (std::int64_t i = 0; i < tq; ++i)
      for (std::int64_t j = 0; j < tk; ++j) mask.push_back(causal && j > i + tk - tq ? -1e30 : 0);
    scores = scores + Tensor::from<double>(mask, {tq, tk});
    return matmul(softmax(scores, -1), repeat(in[2]));
  };
}

std::vector<Tensor> drawn(const Shape& q, const Shape& kv, DType dtype) {
  return {draw(normal(q), dtype, 1), draw(normal(kv), dtype, 2), draw(normal(kv), dtype, 3)};
}

TEST(Attention, Golden) {
  const Golden golden("attention");
  for (const std::string& test_case : golden.cases("sdpa"))
    expect_golden(golden, test_case, {"q", "k", "v"}, attention(golden.flag(test_case, "causal")));
}

// Several tiles both ways, ends that fill no tile, more keys than queries, groups.
TEST(Attention, TilesEqualTheWholeMatrix) {
  for (const auto& [q, kv] : std::vector<std::pair<Shape, Shape>>{{{2, 2, 150, 16}, {2, 2, 150, 16}},
                                                                  {{1, 4, 33, 24}, {1, 2, 130, 24}},
                                                                  {{1, 3, 1, 8}, {1, 1, 200, 8}},
                                                                  {{2, 2, 64, 5}, {2, 1, 64, 5}}})
    for (const bool causal : {true, false}) {
      SCOPED_TRACE(fmt::format("{} {} causal={}", to_string(q), to_string(kv), causal));
      const auto exact_inputs = drawn(q, kv, DType::f64), inputs = drawn(q, kv, DType::f32);
      const Tensor cotangent = draw(normal(q), DType::f64, 4);
      const Tensor exact = plain_attention(causal)(exact_inputs);
      const auto exact_grads = gradients(plain_attention(causal), exact_inputs, cotangent);
      EXPECT_TRUE(near(attention(causal)(exact_inputs), exact));
      EXPECT_TRUE(near(attention(causal)(inputs), exact));
      const auto grads64 = gradients(attention(causal), exact_inputs, cotangent);
      const auto grads32 = gradients(attention(causal), inputs, cast(cotangent, DType::f32));
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(near(grads64[i], exact_grads[i], 1e-11)) << "gradient " << i;
        EXPECT_TRUE(near(grads32[i], exact_grads[i], 5e-5)) << "gradient " << i;  // sums over 150 queries
      }
    }
}

TEST(Attention, CentralDifferences) {
  for (const bool causal : {true, false}) {
    EXPECT_TRUE(grad_check(attention(causal, 0.7), drawn({1, 2, 3, 4}, {1, 1, 5, 4}, DType::f64)));
    EXPECT_TRUE(grad_check(attention(causal), drawn({2, 2, 70, 3}, {2, 2, 70, 3}, DType::f64), {.along_lines = true}));
  }
}

TEST(Attention, ProjectionsAreReadWhereTheyAre) {
  // q, k and v are slices of one projection [B, T, 3, H, K], seen as [B, H, T, K].
  const Tensor qkv = draw(normal({2, 40, 3, 4, 8}), DType::f32, 1);
  std::vector<Tensor> views, copies;
  for (int i = 0; i < 3; ++i) {
    views.push_back(permute(select(qkv, 2, i), {0, 2, 1, 3}));
    copies.push_back(dense_copy(views.back()));
  }
  Accounting& account = RankContext::current().allocator().accounting();
  account.reset_peaks();
  const Tensor y = attention(true)(views);
  EXPECT_EQ(account.peak(MemoryCategory::workspace), 0);
  EXPECT_TRUE(same_bits(y, attention(true)(copies)));
  const Tensor cotangent = permute(draw(normal({2, 40, 4, 8}), DType::f32, 2), {0, 2, 1, 3});
  const auto from_views = gradients(attention(true), views, cotangent);
  const auto from_copies = gradients(attention(true), copies, dense_copy(cotangent));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(from_views[i], from_copies[i])) << i;
}

// The result and the gradients have the dim order of q, k and v in memory, so that merging heads is a view.
TEST(Attention, HeadsAreMergedWithoutACopy) {
  const auto positions_first = [](const Tensor& t) { return permute(t, {0, 2, 1, 3}); };
  std::vector<Tensor> in;
  for (std::uint64_t i = 0; i < 3; ++i)
    in.push_back(positions_first(draw(normal({2, 70, i == 0 ? 4 : 2, 16}), DType::f32, i)));
  const AttentionAttrs attrs{.scale = 0.25f, .causal = true};
  const Tensors out = call_op(op::scaled_dot_product_attention, in, attrs);
  EXPECT_TRUE(positions_first(out[0]).is_contiguous());
  EXPECT_TRUE(out[1].is_contiguous());
  std::vector<Tensor> saved = {out[0], in[0], in[1], in[2], out[0], out[1]};
  for (const Tensor& gradient : call_op(op::scaled_dot_product_attention_backward, saved, attrs))
    EXPECT_TRUE(positions_first(gradient).is_contiguous());
  EXPECT_TRUE(positions_first(rope(in[0])).is_contiguous());
  EXPECT_TRUE(same_bits(rope(in[0]), rope(dense_copy(in[0]))));
}

TEST(Attention, NeverHoldsTheMatrix) {
  const std::int64_t t = 1024;
  const auto inputs = drawn({1, 2, t, 4}, {1, 2, t, 4}, DType::f32);
  Accounting& account = RankContext::current().allocator().accounting();
  account.reset_peaks();
  const std::int64_t before = account.total();
  const auto grads = gradients(attention(true), inputs, draw(normal({1, 2, t, 4}), DType::f32, 4));
  EXPECT_LT(account.total_peak() - before, t * t);  // a quarter of one head's scores in f32
}

TEST(Attention, FirstQueryOfACausalCallSeesTheFirstKeyOnly) {
  const auto in = drawn({1, 1, 50, 4}, {1, 1, 50, 4}, DType::f32);
  EXPECT_TRUE(near(narrow(attention(true)(in), 2, 0, 1), narrow(in[2], 2, 0, 1)));
  // More queries than keys: the first ones see no key and give zeros, with zero gradients.
  const auto few = drawn({1, 1, 5, 4}, {1, 1, 2, 4}, DType::f64);
  const Tensor y = attention(true)(few);
  EXPECT_TRUE(same_bits(narrow(y, 2, 0, 3), zeros({1, 1, 3, 4}, DType::f64)));
  EXPECT_TRUE(grad_check(attention(true), few));
}

TEST(Attention, EmptyAndOne) {
  for (const Shape& shape : {Shape{0, 2, 3, 4}, Shape{2, 0, 3, 4}, Shape{2, 2, 0, 4}, Shape{1, 2, 3, 0}}) {
    const auto inputs = drawn(shape, shape, DType::f32);
    const auto grads = gradients(attention(true), inputs, Tensor::empty(shape, DType::f32));
    for (const Tensor& g : grads) EXPECT_EQ(g.shape(), shape);
  }
  const auto no_keys = drawn({1, 2, 3, 4}, {1, 2, 0, 4}, DType::f32);
  EXPECT_TRUE(same_bits(attention(false)(no_keys), zeros({1, 2, 3, 4})));
  const auto one = drawn({1, 1, 1, 1}, {1, 1, 1, 1}, DType::f32);
  EXPECT_TRUE(near(attention(true)(one), one[2]));
}

TEST(Attention, LargeScoresAndScale) {
  auto in = drawn({1, 1, 70, 8}, {1, 1, 70, 8}, DType::f32);
  const Tensor y = attention(true, 1e4)(in);
  for (const double value : y.to_vector<double>()) ASSERT_TRUE(std::isfinite(value));
  const Tensor scaled[] = {in[0] * 2.0, in[1], in[2]};
  EXPECT_TRUE(near(attention(false, 0.25)(scaled), attention(false, 0.5)(in)));
}

// Sums are f32 whatever the CPU multiplies; factors of products are of the inputs' type at the worst. Sizes of odd
// pairs.
TEST(Attention, SixteenBitInputsLoseOneRounding) {
  for (const auto& [dtype, limit] : {std::pair{DType::bf16, 0.015}, {DType::f16, 0.002}})
    for (const auto& [q, kv] : std::vector<std::pair<Shape, Shape>>{{{1, 4, 70, 16}, {1, 2, 70, 16}},
                                                                    {{1, 2, 33, 24}, {1, 2, 131, 24}},
                                                                    {{1, 1, 1, 8}, {1, 1, 600, 8}},
                                                                    {{2, 2, 65, 5}, {2, 1, 65, 5}}})
      for (const bool causal : {true, false}) {
        SCOPED_TRACE(fmt::format("{} {} {} causal={}", name(dtype), to_string(q), to_string(kv), causal));
        const auto in = drawn(q, kv, dtype);
        std::vector<Tensor> wide;
        for (const Tensor& t : in) wide.push_back(cast(t, DType::f64));
        const Tensor cotangent = draw(normal(q), dtype, 4);
        EXPECT_TRUE(near(attention(causal)(in), plain_attention(causal)(wide), limit));
        const auto grads = gradients(attention(causal), in, cotangent);
        const auto exact = gradients(plain_attention(causal), wide, cast(cotangent, DType::f64));
        for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(near(grads[i], exact[i], 2 * limit)) << "gradient " << i;
      }
}

TEST(Attention, SameBitsOnTwoThreads) {
  const auto in = drawn({3, 4, 100, 16}, {3, 2, 100, 16}, DType::f32);
  const Tensor cotangent = draw(normal({3, 4, 100, 16}), DType::f32, 4);
  const Tensor y = attention(true)(in);
  const auto grads = gradients(attention(true), in, cotangent);
  set_threads(2);
  const Tensor y2 = attention(true)(in);
  const auto grads2 = gradients(attention(true), in, cotangent);
  set_threads(1);
  EXPECT_TRUE(same_bits(y2, y));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(grads2[i], grads[i])) << i;
}

TEST(Attention, ErrorsNameBothValues) {
  const auto call = [](const Shape& q, const Shape& k, const Shape& v) {
    return [=] { scaled_dot_product_attention(zeros(q), zeros(k), zeros(v)); };
  };
  expect_error(call({1, 3, 4, 8}, {1, 2, 4, 8}, {1, 2, 4, 8}), {"3 query heads are no multiple of 2 key heads"});
  expect_error(call({1, 2, 4, 8}, {1, 2, 4, 6}, {1, 2, 4, 6}), {"8 elements per head", "6"});
  expect_error(call({1, 2, 4, 8}, {1, 2, 4, 8}, {1, 2, 5, 8}), {"one shape", "[1,2,4,8]", "[1,2,5,8]"});
  expect_error(call({2, 4, 8}, {2, 4, 8}, {2, 4, 8}), {"[B, H, T, K]", "[2,4,8]"});
  expect_error(call({1, 2, 4, 8}, {3, 2, 4, 8}, {3, 2, 4, 8}), {"batch sizes", "1 and 3"});
}

TEST(Rope, Golden) {
  const Golden golden("attention");
  for (const std::string& test_case : golden.cases("rope"))
    expect_golden(golden, test_case, {"x"}, [&](auto in) {
      return rope(in[0], golden.number(test_case, "theta"), golden.integer(test_case, "first_position"));
    });
}

// The table is built by recurrence; far from the start it is still exact.
TEST(Rope, FarPositionsAgainstTheExactAngle) {
  const std::int64_t first = 100000, positions = 130, k = 8;
  const Tensor x = draw(normal({1, 1, positions, k}), DType::f64, 1);
  const auto y = rope(x, 10000, first).to_vector<double>(), values = x.to_vector<double>();
  for (std::int64_t t = 0; t < positions; ++t)
    for (std::int64_t i = 0; i < k / 2; ++i) {
      const double angle = static_cast<double>(first + t) * std::pow(10000.0, -2.0 * static_cast<double>(i) / k);
      const auto at = static_cast<std::size_t>(t * k + i);
      EXPECT_NEAR(y[at], values[at] * std::cos(angle) - values[at + k / 2] * std::sin(angle), 1e-10);
      EXPECT_NEAR(y[at + k / 2], values[at + k / 2] * std::cos(angle) + values[at] * std::sin(angle), 1e-10);
    }
}

TEST(Rope, APositionDoesNotDependOnWhereTheCallStarts) {
  const Tensor x = draw(normal({1, 2, 100, 6}), DType::f32, 1);
  const Tensor whole = rope(x, 10000, 3);
  EXPECT_TRUE(same_bits(rope(narrow(x, 2, 77, 20), 10000, 80), narrow(whole, 2, 77, 20)));
}

TEST(Rope, Errors) {
  expect_error([] { rope(zeros({1, 1, 2, 5})); }, {"K is even, got 5"});
  expect_error([] { rope(zeros({2, 4})); }, {"[B, H, T, K]", "[2,4]"});
  expect_error([] { rope(zeros({1, 1, 2, 4}), 10000, -1); }, {"first_position", "-1"});
}

}  // namespace
}  // namespace sherd::testing
