// Initial values: a function of seed, name and element, whatever the layout; and their statistics.
#include "nn/init.h"

#include <gtest/gtest.h>

#include <cmath>

#include "dtensor/api.h"
#include "nn/layers/embedding.h"
#include "nn/layers/linear.h"
#include "nn/layers/norm.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::nn {
namespace {

using testing::expect_error;
using testing::run_ranks;
using testing::same_bits;
using Group = std::shared_ptr<ProcessGroup>;

Tensor drawn(const Shape& shape, const Init& init, std::string_view name = "w", Seed seed = {1},
             DType dtype = DType::f32) {
  const Tensor t = Tensor::empty(shape, dtype);
  fill_initial(t, init, name, seed);
  return t;
}

struct Moments {
  double mean = 0, std = 0, low = 0, high = 0;
};
Moments moments(const Tensor& t) {
  Moments m;
  const auto values = t.to_vector<double>();
  for (double x : values) {
    m.mean += x / static_cast<double>(values.size());
    m.low = std::min(m.low, x);
    m.high = std::max(m.high, x);
  }
  for (double x : values) m.std += (x - m.mean) * (x - m.mean) / static_cast<double>(values.size());
  m.std = std::sqrt(m.std);
  return m;
}

// 40 000 samples: the mean is within 5 std/200 and the deviation within 5 std/sqrt(80000), of a fixed seed.
TEST(Init, NormalAndUniformHaveTheirMoments) {
  const Moments normal = moments(drawn({200, 200}, Init::normal(0.02)));
  EXPECT_NEAR(normal.mean, 0, 5 * 0.02 / 200);
  EXPECT_NEAR(normal.std, 0.02, 5 * 0.02 / std::sqrt(80000.0));
  EXPECT_GT(normal.high, 3.5 * 0.02);
  EXPECT_LT(normal.low, -3.5 * 0.02);
  const Moments uniform = moments(drawn({200, 200}, Init::uniform(0.5)));
  EXPECT_NEAR(uniform.mean, 0, 5 * 0.2887 / 200);
  EXPECT_NEAR(uniform.std, 0.5 / std::sqrt(3.0), 5 * 0.2887 / std::sqrt(80000.0));
  EXPECT_LE(uniform.high, 0.5);
  EXPECT_GE(uniform.low, -0.5);
  EXPECT_GT(uniform.high, 0.499);
  EXPECT_LT(uniform.low, -0.499);
  EXPECT_EQ(drawn({3}, Init::constant(2.5)).to_vector<float>(), std::vector<float>(3, 2.5f));
  EXPECT_EQ(drawn({3}, Init::ones()).to_vector<float>(), std::vector<float>(3, 1));
  EXPECT_EQ(drawn({3}, Init::zeros()).to_vector<float>(), std::vector<float>(3, 0));
}

TEST(Init, DependsOnSeedAndNameAndNothingElse) {
  const Tensor first = drawn({5, 7}, Init::normal(1), "blocks.0.w", {3});
  drawn({100}, Init::normal(1), "another", {3});  // what was drawn before does not count
  EXPECT_TRUE(same_bits(drawn({5, 7}, Init::normal(1), "blocks.0.w", {3}), first));
  EXPECT_FALSE(same_bits(drawn({5, 7}, Init::normal(1), "blocks.1.w", {3}), first));
  EXPECT_FALSE(same_bits(drawn({5, 7}, Init::normal(1), "blocks.0.w", {4}), first));
}

TEST(Init, SixteenBitParametersAreTheRoundedDraws) {
  const Tensor wide = drawn({5, 7}, Init::normal(1)), narrow = drawn({5, 7}, Init::normal(1), "w", {1}, DType::bf16);
  EXPECT_TRUE(same_bits(narrow, cast(wide, DType::bf16)));
}

TEST(Init, F22_F144_TheSameBitsOnAnyNumberOfRanks) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      for (const Init& init : {Init::normal(0.02), Init::uniform(0.3), Init::constant(2)})
        for (const Shape& shape : {Shape{5, 3}, Shape{7}, Shape{2, 3, 5}, Shape{1}, Shape{0, 4}, Shape{9, 1}}) {
          const Tensor expected = drawn(shape, init);
          for (int dim = -1; dim < shape.size(); ++dim) {
            const Spec* spec = Spec::of(mesh, dim < 0 ? Replicate() : Shard(dim));
            const Tensor spread = Tensor::distributed(shape, spec, Tensor::empty(spec->local_shape(shape), DType::f32));
            fill_initial(spread, init, "w", {1});
            EXPECT_TRUE(same_bits(full_tensor(spread), expected)) << describe(spread);
          }
        }
    });
}

// Columns sharded over one axis and rows over another, one dim over both in either order: each rank draws its own box.
TEST(Init, F22_F144_TheSameBitsOnAMeshOfTwoAxes) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    const Shape shape{7, 5};
    const Tensor expected = drawn(shape, Init::normal(1));
    const auto expect_bits = [&](const Spec* spec) {
      const Tensor spread = Tensor::distributed(shape, spec, Tensor::empty(spec->local_shape(shape), DType::f32));
      fill_initial(spread, Init::normal(1), "w", {1});
      EXPECT_TRUE(same_bits(full_tensor(spread), expected)) << describe(spread);
    };
    expect_bits(Spec::of(mesh, {Shard(0), Shard(1)}));
    expect_bits(Spec::of(mesh, {Shard(0), Replicate()}));
    expect_bits(Spec::of(mesh, {Shard(0), Shard(0)}));
    expect_bits(Spec::of(mesh, {Shard(0), Shard(0)}, {1, 0}));
    expect_bits(Spec::of(mesh, {Shard(1), Shard(1)}, {1, 0}));
  });
}

TEST(Init, LayersStartAsTheirDocumentationSays) {
  struct Layers : Module {
    Linear &usual, &chosen;
    Embedding& embedding;
    LayerNorm& norm;
    Layers()
        : usual(add<Linear>("usual", 64, 300)),
          chosen(add<Linear>("chosen", 64, 300, Linear::Options{.bias = true, .init = Init::normal(0.5)})),
          embedding(add<Embedding>("embedding", 300, 64)),
          norm(add<LayerNorm>("norm", 8)) {}
  };
  Layers layers;
  layers.materialize();
  for (const Parameter* p : {&layers.usual.weight, layers.usual.bias}) {  // uniform(1/sqrt(64))
    const Moments m = moments(p->value());
    EXPECT_LE(m.high, 0.125) << p->name();
    EXPECT_GE(m.low, -0.125) << p->name();
    EXPECT_GT(m.high, 0.12) << p->name();
  }
  EXPECT_NEAR(moments(layers.chosen.weight.value()).std, 0.5, 0.02);
  EXPECT_EQ(moments(layers.chosen.bias->value()).std, 0);
  EXPECT_NEAR(moments(layers.embedding.weight.value()).std, 1, 0.03);
  EXPECT_EQ(layers.norm.weight.value().to_vector<float>(), std::vector<float>(8, 1));
  EXPECT_EQ(layers.norm.bias->value().to_vector<float>(), std::vector<float>(8, 0));
}

}  // namespace
}  // namespace sherd::nn
