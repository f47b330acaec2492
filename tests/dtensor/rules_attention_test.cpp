// Attention and rotary positions in every layout against one rank's.
#include <gtest/gtest.h>

#include "runtime/op/rows/ops.h"
#include "tests/dtensor/one_rank.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct Heads {
  int queries, keys;
};

std::vector<Tensor> attention_inputs(Heads heads, int batch = 2, int positions = 5) {
  return {draw(normal({batch, heads.queries, positions, 4}), DType::f32, 31),
          draw(normal({batch, heads.keys, positions, 4}), DType::f32, 32),
          draw(normal({batch, heads.keys, positions, 4}), DType::f32, 33)};
}

Tensor attend(const std::vector<Tensor>& in, bool causal) {
  return scaled_dot_product_attention(in[0], in[1], in[2], causal);
}

struct Case {
  Heads heads;
  bool causal;
};

TEST(AttentionRules, F141_AnyLayoutOfQueriesAndKeys) {
  const Case cases[] = {{{3, 3}, true}, {{4, 2}, false}, {{6, 3}, true}, {{4, 1}, true}, {{4, 1}, false}};
  for (const auto& [heads, causal] : cases) {
    const Function f = [is_causal = causal](const std::vector<Tensor>& t) { return attend(t, is_causal); };
    on_meshes([&, num = heads](const DeviceMesh& mesh) {
      const std::vector<Tensor> in = attention_inputs(num);
      for (const Spec* of_q : all_layouts(mesh, {Replicate(), Shard(0), Shard(1), Shard(2)}))
        for (const Spec* of_k : all_layouts(mesh, {Replicate(), Shard(1)}))
          expect_as_on_one_rank(f, in, {of_q, of_k, of_k});
    });
  }
}

// Forward and backward.
void expect_free_attention(const DeviceMesh& mesh, Heads heads, bool causal, Placement queries, Placement keys,
                           Placement key_gradients) {
  const std::vector<Tensor> in = attention_inputs(heads, 4, 3);
  Slot q("q", true), k("k", true), v("v", true);
  q.set(laid_out(in[0], Spec::of(mesh, queries)));
  k.set(laid_out(in[1], Spec::of(mesh, keys)));
  v.set(laid_out(in[2], Spec::of(mesh, keys)));
  const Tensor dy = laid_out(in[0], Spec::of(mesh, queries));
  const StrictCommunication strict;
  const Tensor y = attend({q.value(), k.value(), v.value()}, causal);
  EXPECT_EQ(Spec::from(y).placement(0), queries);
  EXPECT_TRUE(near(full_tensor(y), attend(in, causal)));
  backward(y, {.grad = dy});
  EXPECT_EQ(Spec::from(q.grad()).placement(0), queries);
  EXPECT_EQ(Spec::from(k.grad()).placement(0), key_gradients);
  EXPECT_EQ(Spec::from(v.grad()).placement(0), key_gradients);
}

TEST(AttentionRules, F141_BatchAndHeadsCommunicateNothing) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    for (bool causal : {true, false}) {
      expect_free_attention(mesh, {4, 4}, causal, Shard(0), Shard(0), Shard(0));
      expect_free_attention(mesh, {4, 2}, causal, Shard(0), Shard(0), Shard(0));
      expect_free_attention(mesh, {4, 4}, causal, Shard(1), Shard(1), Shard(1));  // 2, 2 and no heads
      expect_free_attention(mesh, {6, 3}, causal, Shard(1), Shard(1), Shard(1));
      expect_free_attention(mesh, {4, 1}, causal, Shard(1), Replicate(), Partial());
    }
    expect_free_attention(mesh, {4, 2}, false, Shard(2), Replicate(), Partial());
  });
}

// Groups of heads that shards would split are not sharded there.
TEST(AttentionRules, F141_TornGroupsMove) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const std::vector<Tensor> in = attention_inputs({6, 3});
    const Spec* by_heads = Spec::of(mesh, Shard(1));
    const StrictCommunication strict;
    EXPECT_THROW(attend({laid_out(in[0], by_heads), laid_out(in[1], by_heads), laid_out(in[2], by_heads)}, true),
                 Error);
  });
}

TEST(AttentionRules, F141_RopeKnowsThePositionsOfAPart) {
  const Arg x = normal({2, 3, 5, 4});
  for (int first : {0, 7})
    expect_in_every_layout([&](const std::vector<Tensor>& in) { return rope(in[0], 100, first); }, x,
                           {Replicate(), Shard(0), Shard(1), Shard(2), Shard(3), Partial(), Partial(ReduceKind::avg)});
  run_ranks(3, [&](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor whole = draw(x, DType::f32, 34);
    for (Placement p : {Shard(0), Shard(1), Shard(2), Partial()})
      expect_free(mesh, [](const std::vector<Tensor>& in) { return rope(in[0]); }, {whole}, {p}, p);
  });
}

}  // namespace
}  // namespace sherd::testing
