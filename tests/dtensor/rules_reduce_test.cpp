// Reductions of tensors in every layout against one rank's, with uneven and empty shards.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/op/rows/ops.h"
#include "tests/dtensor/one_rank.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Reduction = Tensor (*)(Tensor, std::vector<int>, bool);

const std::vector<Placement> kCuts{Replicate(), Shard(0), Shard(1), Shard(2)};

std::vector<Placement> with(std::vector<Placement> list, std::initializer_list<Placement> more) {
  list.insert(list.end(), more);
  return list;
}

void expect_reduction(Reduction f, const Arg& x, const std::vector<Placement>& choices) {
  const std::pair<std::vector<int>, bool> cases[] = {{{0}, false}, {{1}, true}, {{0, 2}, false}, {{}, false}};
  for (const auto& [dims, keep] : cases)
    expect_in_every_layout([&, over = dims, k = keep](const std::vector<Tensor>& in) { return f(in[0], over, k); }, x,
                           choices);
}

TEST(ReduceRules, F132_SumsAndMeansOverAnyCut) {
  const Arg x = normal({3, 5, 2});
  const auto choices = with(kCuts, {Partial(), Partial(ReduceKind::avg)});
  expect_reduction(sum, x, choices);
  expect_reduction(mean, x, choices);
}

TEST(ReduceRules, F132_ExtremaAndProductsOverAnyCut) {
  const Arg x = distinct({3, 5, 2});
  expect_reduction(max, x, with(kCuts, {Partial(ReduceKind::max)}));
  expect_reduction(min, x, with(kCuts, {Partial(ReduceKind::min)}));
  expect_reduction(prod, positive({3, 5, 2}), with(kCuts, {Partial(ReduceKind::product)}));
}

TEST(ReduceRules, F132_AnyAndAllOverAnyCut) {
  const Arg x = distinct({3, 5, 2});
  expect_reduction(
      [](Tensor t, std::vector<int> dims, bool keep) { return any(greater(t, full({}, 1.5)), dims, keep); }, x, kCuts);
  expect_reduction([](Tensor t, std::vector<int> dims, bool keep) { return all(less(t, full({}, 1.5)), dims, keep); },
                   x, kCuts);
}

TEST(ReduceRules, F133_ArgmaxOverAnyCut) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  // Ties: the first; NaN is largest; lines of the least value have a largest too.
  const std::vector<float> values{1, 5, 2, 5, 0, nan, 3, nan, 1, 2, -inf, -inf, -inf, -inf, -inf, 4, 4, 4, 4, 4};
  for (int dim : {0, 1})
    for (bool keep : {false, true})
      on_meshes([&](const DeviceMesh& mesh) {
        const Tensor x = Tensor::from<float>(values, {4, 5});
        for (const Spec* layout : all_layouts(mesh, {Replicate(), Shard(0), Shard(1)}))
          EXPECT_TRUE(same_bits(full_tensor(argmax(laid_out(x, layout), dim, keep)), argmax(x, dim, keep)))
              << layout->describe() << " dim " << dim;
      });
}

// Norms by their rows: the sum (or maximum) over a sharded dim is Partial, and is reduced before the root is taken.
TEST(ReduceRules, F123_NormsOverAnyCut) {
  const auto norm = [](double p) {
    return [p](const std::vector<Tensor>& in) { return pow(sum(pow(abs(in[0]), p), {0}), 1 / p); };
  };
  for (const double p : {1.0, 2.0, 3.0}) expect_in_every_layout(norm(p), positive({5, 3, 2}), with(kCuts, {Partial()}));
  const auto largest = [](const std::vector<Tensor>& in) { return max(abs(in[0]), {0}); };
  expect_in_every_layout(largest, distinct({5, 3, 2}), with(kCuts, {Partial(), Partial(ReduceKind::max)}));
}

// Nothing is communicated before the value is read.
TEST(ReduceRules, F132_ACutDimGivesTerms) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor x = draw(distinct({4, 5}), DType::f32, 5);
    const auto over = [&](Reduction f, int dim) {
      return [f, dim](const std::vector<Tensor>& in) { return f(in[0], {dim}, false); };
    };
    expect_free(mesh, over(sum, 0), {x}, {Shard(0)}, Partial());
    expect_free(mesh, over(mean, 0), {x}, {Shard(0)}, Partial());
    expect_free(mesh, over(max, 1), {x}, {Shard(1)}, Partial(ReduceKind::max));
    expect_free(mesh, over(min, 1), {x}, {Shard(1)}, Partial(ReduceKind::min));
    expect_free(mesh, over(prod, 0), {x}, {Shard(0)}, Partial(ReduceKind::product));
    expect_free(mesh, over(sum, 0), {x}, {Shard(1)}, Shard(0));
    expect_free(mesh, over(sum, 1), {x}, {Partial()}, Partial());
    expect_free(mesh, over(max, 1), {x}, {Partial(ReduceKind::max)}, Partial(ReduceKind::max));
    const Tensor flags = draw(normal({4, 5}), DType::f32, 6);
    const auto is_positive = [](const std::vector<Tensor>& in) { return greater(in[0], zeros({}, DType::f32)); };
    expect_free(
        mesh, [&](const std::vector<Tensor>& in) { return any(is_positive(in), {0}); }, {flags}, {Shard(0)},
        Partial(ReduceKind::max));
    expect_free(
        mesh, [&](const std::vector<Tensor>& in) { return all(is_positive(in), {0}); }, {flags}, {Shard(0)},
        Partial(ReduceKind::min));
  });
}

// pytorch #183794: one candidate that had to reduce its Partial input first made the candidates after it gather
// sharded dims too. Averages along one axis do so here; sharding along both then stays as it is.
TEST(ReduceRules, F132_WhatMustBeReducedSpoilsNothingElse) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    const std::pair<Reduction, ReduceKind> rows[] = {
        {sum, ReduceKind::sum}, {max, ReduceKind::max}, {min, ReduceKind::min}, {prod, ReduceKind::product}};
    const Tensor x = draw(positive({4, 6}), DType::f32, 5);
    for (const auto& [f, kind] : rows)
      for (int round = 0; round < 2; ++round) {
        const Tensor averages = laid_out(x, Spec::of(mesh, {Partial(ReduceKind::avg), Shard(1)}));
        EXPECT_TRUE(near(full_tensor(f(averages, {}, false)), f(x, {}, false))) << to_string(Partial(kind));
        const StrictCommunication strict;
        const Tensor cut = f(laid_out(x, Spec::of(mesh, {Shard(0), Shard(1)})), {}, false);
        for (int axis : {0, 1}) EXPECT_EQ(Spec::from(cut).placement(axis), Partial(kind));
        EXPECT_TRUE(near(full_tensor(cut), f(x, {}, false))) << to_string(Partial(kind));
      }
  });
}

// Two of 4 ranks hold none of 2 rows; one holds none of 3 rows sharded by 2 and then by 2.
TEST(ReduceRules, F132_PartsWithoutElementsInEveryType) {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u8}) {
    const bool is_signed = dtype != DType::u8;
    const auto values = [&](std::vector<double> v) {
      const Shape shape{static_cast<std::int64_t>(v.size()), 1};
      return cast(Tensor::from<double>(v, shape), dtype);
    };
    // Extrema that zero would hide.
    const std::vector<double> below = is_signed ? std::vector<double>{-3, -7, -5} : std::vector<double>{3, 7, 5};
    const std::vector<double> above{30, 70, 50};
    on_meshes([&](const DeviceMesh& mesh) {
      for (int count : {1, 2, 3})
        for (const Spec* layout : all_layouts(mesh, {Replicate(), Shard(0)})) {
          const auto first = [&](std::vector<double> v) {
            v.resize(static_cast<std::size_t>(count));
            return values(v);
          };
          EXPECT_TRUE(same_bits(full_tensor(max(laid_out(first(below), layout))), max(first(below))))
              << name(dtype) << " " << layout->describe() << " " << count;
          EXPECT_TRUE(same_bits(full_tensor(min(laid_out(first(above), layout))), min(first(above))))
              << name(dtype) << " " << layout->describe() << " " << count;
          if (is_floating(dtype)) {
            EXPECT_TRUE(near(full_tensor(mean(laid_out(first(above), layout))), mean(first(above))));
          }
        }
    });
  }
}

TEST(ReduceRules, F132_MeansOfHalfPrecisionStayInRange) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor x = full({4096, 3}, 60, DType::f16);  // the sum of a column is beyond f16
    EXPECT_TRUE(near(full_tensor(mean(laid_out(x, Spec::of(mesh, Shard(0))), {0})), mean(x, {0})));
  });
}

TEST(ReduceRules, F132_IntegersSumToWideOnes) {
  on_meshes([](const DeviceMesh& mesh) {
    const Tensor x = full({5, 3}, 200, DType::u8);
    for (const Spec* layout : all_layouts(mesh, {Replicate(), Shard(0), Shard(1)}))
      EXPECT_TRUE(same_bits(full_tensor(sum(laid_out(x, layout), {0})), sum(x, {0})));
  });
}

// What broadcasting repeated is summed again.
TEST(ReduceRules, F132_SumToUndoesBroadcasting) {
  const Arg x = normal({3, 5, 2});
  for (const Shape& to : {Shape{3, 5, 2}, Shape{5, 2}, Shape{5, 1}, Shape{1, 5, 1}, Shape{2}, Shape{}, Shape{1}})
    expect_in_every_layout([&](const std::vector<Tensor>& in) { return sum_to(in[0], to); }, x,
                           with(kCuts, {Partial()}));
  const Arg one = normal({1, 4});
  for (const Shape& to : {Shape{1, 4}, Shape{1, 1}, Shape{4}})
    expect_in_every_layout([&](const std::vector<Tensor>& in) { return sum_to(in[0], to); }, one,
                           {Replicate(), Shard(0), Shard(1)});
}

TEST(ReduceRules, ACutTensorWithoutElementsIsRefusedOnAllRanks) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor x = laid_out(zeros({0, 4}, DType::f32), Spec::of(mesh, Shard(0)));
    EXPECT_THROW(max(x, {0}), Error);
    EXPECT_TRUE(same_bits(full_tensor(sum(x, {0})), zeros({4}, DType::f32)));
    EXPECT_TRUE(std::isnan(full_tensor(mean(x, {0})).to_vector<double>()[0]));
  });
}

}  // namespace
}  // namespace sherd::testing
