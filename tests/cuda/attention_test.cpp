// Attention, by own kernels and by cuDNN, against the CPU's rows in f64 on the same values: tiles that are not full,
// groups, keys after the queries and queries before the keys, any strides.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/cuda/attention/attention.h"
#include "runtime/cuda/device/context.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/attention_attrs.h"
#include "runtime/op/rows/ops.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/on_device.h"
#include "tests/support/draw.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

using cuda::AttentionChoice;

class AttentionTest : public cuda::CudaTest {
 protected:
  void use(AttentionChoice choice) { context().attention().choose(choice); }

 private:
  static cuda::Context& context() { return static_cast<cuda::Context&>(RankContext::current().device(kCuda)); }
};

// The same for our kernels and cuDNN's.
class CudaAttention : public AttentionTest, public ::testing::WithParamInterface<AttentionChoice> {
 protected:
  void SetUp() override {
    AttentionTest::SetUp();
    if (!IsSkipped()) use(GetParam());
  }
};
std::string name_of(const ::testing::TestParamInfo<AttentionChoice>& chosen) {
  constexpr const char* names[] = {"Fast", "Deterministic", "Own"};
  return names[static_cast<int>(chosen.param)];
}
INSTANTIATE_TEST_SUITE_P(Kernels, CudaAttention,
                         ::testing::Values(AttentionChoice::own, AttentionChoice::fast, AttentionChoice::deterministic),
                         name_of);

// Our kernels, whose bits are fixed.
class OwnAttention : public AttentionTest {
 protected:
  void SetUp() override {
    AttentionTest::SetUp();
    if (!IsSkipped()) use(AttentionChoice::own);
  }
};

struct Sizes {
  std::int64_t b, h, g, tq, tk, k;
  Shape q() const { return {b, h, tq, k}; }
  Shape kv() const { return {b, g, tk, k}; }
};

Tensors forward(std::vector<Tensor> in, const AttentionAttrs& attrs) {
  return call_op(op::scaled_dot_product_attention, in, attrs);
}
Tensors backward(std::vector<Tensor> in, const AttentionAttrs& attrs) {
  return call_op(op::scaled_dot_product_attention_backward, in, attrs);
}

std::vector<Tensor> exact(const std::vector<Tensor>& in) {
  std::vector<Tensor> converted_in;
  for (const Tensor& t : in) converted_in.push_back(converted(t, DType::f64));
  return converted_in;
}
// [B, H, T, K] and [B, T, H, K], each viewed as the other.
Tensor positions_first(const Tensor& t) { return permute(t, {0, 2, 1, 3}); }

// q, k, v and the gradient of the result.
std::vector<Tensor> drawn(const Sizes& n, DType dtype) {
  return {draw(normal(n.q()), dtype, 1), draw(normal(n.kv()), dtype, 2), draw(normal(n.kv()), dtype, 3),
          draw(unit(n.q()), dtype, 4)};
}

void expect_equals_cpu(const Sizes& n, DType dtype, bool causal) {
  SCOPED_TRACE(fmt::format("{} q {} k {} causal={}", name(dtype), to_string(n.q()), to_string(n.kv()), causal));
  const AttentionAttrs attrs{.scale = 1 / std::sqrt(static_cast<double>(n.k)), .causal = causal};
  const std::vector<Tensor> in = drawn(n, dtype), in64 = exact(in), there = all_to_device(in);
  const Tensors expected = forward({in64[0], in64[1], in64[2]}, attrs);
  const Tensors out = forward({there[0], there[1], there[2]}, attrs);
  const double limit = 2 * tolerance(dtype);
  EXPECT_TRUE(near(on_host(out[0]), expected[0], limit));
  // Scores are summed in f32 whatever the inputs are.
  EXPECT_TRUE(near(on_host(out[1]), expected[1], dtype == DType::f64 ? 1e-12 : 2e-5));
  const Tensors gradients64 = backward({in64[3], in64[0], in64[1], in64[2], expected[0], expected[1]}, attrs);
  const Tensors gradients = backward({there[3], there[0], there[1], there[2], out[0], out[1]}, attrs);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(near(on_host(gradients[i]), gradients64[i], 2 * limit)) << "gradient " << i;
}

TEST_P(CudaAttention, TensorCoreTilesEqualTheCpu) {
  for (const Sizes& n : std::vector<Sizes>{{1, 2, 1, 130, 130, 64},  // three tiles, the last of two rows
                                           {1, 1, 1, 64, 150, 72},   // keys after the queries, K between two widths
                                           {1, 4, 2, 33, 65, 128},
                                           {2, 2, 2, 5, 7, 5}})  // rows that are no multiple of 16 bytes
    for (const bool causal : {true, false}) expect_equals_cpu(n, DType::bf16, causal);
  expect_equals_cpu({1, 2, 1, 70, 70, 200}, DType::bf16, true);  // two blocks share the columns of a gradient
  expect_equals_cpu({1, 2, 1, 70, 66, 40}, DType::f16, true);    // the first queries see no key
  expect_equals_cpu({1, 1, 1, 20, 20, 136}, DType::f16, false);
}

TEST_F(OwnAttention, TilesWithoutTensorCoresEqualTheCpu) {
  for (const bool causal : {true, false}) {
    expect_equals_cpu({1, 2, 1, 70, 70, 33}, DType::f32, causal);
    expect_equals_cpu({2, 2, 2, 33, 40, 7}, DType::f64, causal);
  }
  expect_equals_cpu({1, 2, 2, 40, 36, 150}, DType::f64, true);  // two blocks share the columns of a result
  expect_equals_cpu({1, 1, 1, 34, 34, 260}, DType::bf16, true);
}

// q, k and v are views of one projection [B, T, H + 2 G, K]: read in place, results have the same dim order.
TEST_F(OwnAttention, ProjectionsAreReadWhereTheyAre) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Tensor qkv = draw(normal({2, 70, 4, 64}), dtype, 1);
    const std::vector<Tensor> parts = split(to(qkv, kCuda), 2, {2, 1, 1}), host_parts = split(qkv, 2, {2, 1, 1});
    std::vector<Tensor> views, copies;
    for (std::size_t i = 0; i < 3; ++i) {
      views.push_back(positions_first(parts[i]));
      copies.push_back(to(dense_copy(positions_first(host_parts[i])), kCuda));
    }
    const AttentionAttrs attrs{.scale = 0.125, .causal = true};
    const Tensors from_views = forward(views, attrs), from_copies = forward(copies, attrs);
    EXPECT_TRUE(positions_first(from_views[0]).is_contiguous());
    EXPECT_TRUE(same_bits(positions_first(on_host(positions_first(from_views[0]))), on_host(from_copies[0])));
    const Tensor grad = draw(unit({2, 2, 70, 64}), dtype, 2);
    const auto gradients_of = [&](const std::vector<Tensor>& in, const Tensors& out) {
      return backward({to(grad, kCuda), in[0], in[1], in[2], out[0], out[1]}, attrs);
    };
    const Tensors of_views = gradients_of(views, from_views), of_copies = gradients_of(copies, from_copies);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(positions_first(of_views[i]).is_contiguous());
      EXPECT_TRUE(same_bits(positions_first(on_host(positions_first(of_views[i]))), on_host(of_copies[i])))
          << "gradient " << i;
    }
  }
}

// Elements of a row may be apart: keys [B, G, K, Tk] seen as [B, G, Tk, K].
TEST_F(OwnAttention, ElementsOfARowMayBeApart) {
  const Sizes n{1, 2, 1, 40, 40, 24};
  const std::vector<Tensor> in = all_to_device(drawn(n, DType::bf16));
  const Tensor turned = to(dense_copy(transpose(drawn(n, DType::bf16)[1], 2, 3)), kCuda);
  const AttentionAttrs attrs{.scale = 0.2, .causal = true};
  const Tensors expected = forward({in[0], in[1], in[2]}, attrs);
  EXPECT_TRUE(same_bits(on_host(forward({in[0], transpose(turned, 2, 3), in[2]}, attrs)[0]), on_host(expected[0])));
}

TEST_P(CudaAttention, AQueryThatSeesNoKeyGivesZeros) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const std::vector<Tensor> in = all_to_device(drawn({1, 1, 1, 5, 2, 8}, dtype));
    const Tensors out = forward({in[0], in[1], in[2]}, AttentionAttrs{.scale = 1, .causal = true});
    const std::vector<double> values = out[0].to_vector<double>(), lse = out[1].to_vector<double>();
    for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(values[i], 0);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(lse[i], -INFINITY);
    EXPECT_TRUE(std::isfinite(lse[3]));
    const Tensors gradients =
        backward({in[3], in[0], in[1], in[2], out[0], out[1]}, AttentionAttrs{.scale = 1, .causal = true});
    for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(gradients[0].to_vector<double>()[i], 0);
    for (const double x : gradients[1].to_vector<double>()) EXPECT_TRUE(std::isfinite(x));
  }
}

TEST_P(CudaAttention, NoKeysAndNoQueries) {
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const Sizes& n : std::vector<Sizes>{{1, 2, 1, 3, 0, 8}, {1, 2, 1, 0, 3, 8}, {0, 2, 1, 3, 3, 8}}) {
      const std::vector<Tensor> in = all_to_device(drawn(n, dtype));
      const AttentionAttrs attrs{.scale = 1, .causal = false};
      const Tensors out = forward({in[0], in[1], in[2]}, attrs);
      for (const double x : out[0].to_vector<double>()) EXPECT_EQ(x, 0);
      for (const Tensor& gradient : backward({in[3], in[0], in[1], in[2], out[0], out[1]}, attrs))
        for (const double x : gradient.to_vector<double>()) EXPECT_EQ(x, 0);
    }
}

// A key that is NaN reaches the queries that see it, and only these.
TEST_P(CudaAttention, NanStaysWithThoseThatSeeIt) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const std::vector<Tensor> in = drawn({1, 1, 1, 8, 8, 8}, dtype);
    std::vector<double> keys = in[1].to_vector<double>();
    keys[5 * 8 + 3] = NAN;
    const Tensor k = converted(Tensor::from<double>(keys, {1, 1, 8, 8}), dtype);
    const Tensors out =
        forward({to(in[0], kCuda), to(k, kCuda), to(in[2], kCuda)}, AttentionAttrs{.scale = 1, .causal = true});
    const std::vector<double> values = out[0].to_vector<double>();
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(values[i]), i / 8 >= 5) << i;
  }
}

TEST_P(CudaAttention, LargeScoresDoNotOverflow) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
    for (const double scale : {300.0, -300.0}) {
      const std::vector<Tensor> in = drawn({1, 1, 1, 8, 8, 16}, dtype), there = all_to_device(in), in64 = exact(in);
      const AttentionAttrs attrs{.scale = scale, .causal = false};
      const Tensors expected = forward({in64[0], in64[1], in64[2]}, attrs);
      const Tensors out = forward({there[0], there[1], there[2]}, attrs);
      EXPECT_TRUE(near(on_host(out[0]), expected[0], tolerance(dtype)));
    }
}

TEST_F(OwnAttention, ARecordedGraphRepeatsIt) {
  DeviceContext& context = RankContext::current().device(kCuda);
  const std::vector<Tensor> in = all_to_device(drawn({1, 2, 1, 20, 20, 16}, DType::bf16));
  const AttentionAttrs attrs{.scale = 0.25, .causal = true};
  const auto step = [&] {
    const Tensors out = forward({in[0], in[1], in[2]}, attrs);
    const Tensors gradients = backward({in[3], in[0], in[1], in[2], out[0], out[1]}, attrs);
    return std::vector<Tensor>{out[0], out[1], gradients[0], gradients[1], gradients[2]};
  };
  const std::vector<Tensor> eager = step();
  std::vector<Tensor> recorded;
  const std::unique_ptr<DeviceGraph> graph = context.record([&] { recorded = step(); });
  for (int replay = 0; replay < 2; ++replay) {
    graph->launch();
    for (std::size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(same_bits(on_host(recorded[i]), on_host(eager[i]))) << i;
  }
}

TEST(AttentionChoice, TensorCoresNeedSharedMemory) {
  const auto takes = [](DType dtype, int k, std::size_t kilobytes) {
    return cuda::flash_takes({.dtype = dtype, .b = 1, .h = 1, .g = 1, .tq = 1, .tk = 1, .k = k}, kilobytes << 10);
  };
  EXPECT_TRUE(takes(DType::bf16, 128, 99));  // what the smallest devices have
  EXPECT_FALSE(takes(DType::bf16, 256, 99));
  EXPECT_TRUE(takes(DType::f16, 256, 163));
  EXPECT_FALSE(takes(DType::f16, 257, 227));
  EXPECT_FALSE(takes(DType::f32, 64, 227));
}

TEST(AttentionChoice, IsNamedOrRefused) {
  EXPECT_EQ(cuda::attention_choice(""), AttentionChoice::fast);
  EXPECT_EQ(cuda::attention_choice("fast"), AttentionChoice::fast);
  EXPECT_EQ(cuda::attention_choice("deterministic"), AttentionChoice::deterministic);
  EXPECT_EQ(cuda::attention_choice("own"), AttentionChoice::own);
  expect_error([] { cuda::attention_choice("slow"); }, {"SHERD_ATTENTION", "slow", "deterministic"});
}

}  // namespace
}  // namespace sherd::testing
