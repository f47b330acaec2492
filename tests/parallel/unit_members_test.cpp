// Parameters that fully_shard leaves whole: small ones stay replicated, ignored ones stay as they are. Against one rank
// on the whole batch, with what is communicated counted in calls and bytes.
#include <gtest/gtest.h>

#include "nn/checkpoint/training_state.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/shard_keeper.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
constexpr std::int64_t kBiases = 10 + 7 + 5, kWeights = 60 + 70 + 35;
constexpr std::int64_t kThreshold = 64;  // bytes: more than any bias has, fewer than any weight

TEST(FullyShard, SmallParametersStayReplicatedAndTrainLikeOneRank) {
  for (const int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      Net net(kTwoBlocks), reference(kTwoBlocks);
      const nn::UnitPolicy options{.replicate_below_bytes = kThreshold};
      shard(net, DeviceMesh(group), options, options);
      net.materialize(nn::Seed{11});
      reference.materialize(nn::Seed{11});
      expect_same_bits(net, reference);
      const bool is_split = group->size() > 1;
      EXPECT_EQ(Spec::from(net.head.bias->value()).is_replicated(), is_split);
      EXPECT_EQ(nn::unit_of(net).parts().size(), is_split ? 2u : 1u);
      EXPECT_EQ(nn::unit_of(net).parameters().size(), 2u);
      expect_trains_alike(on_slices(net, *group, 6, 5), on_batches(reference, 6, 5),
                          {.steps = 6, .max_norm = 0.1, .gradient_limit = 1e-5});
    });
}

TEST(FullyShard, SmallParametersAreReducedInOneLaunchPerUnit) {
  for (const int ranks : {2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      Net net(kTwoBlocks);
      const nn::UnitPolicy options{.replicate_below_bytes = kThreshold};
      shard(net, DeviceMesh(group), options, options);
      net.materialize();
      const CommCounts before = settled_counts(*group);
      backward(sum(net(batch_of(2, 6, 0, "x"))));
      CommCounts step = settled_counts(*group);
      step -= before;
      EXPECT_EQ(step.all_gather.calls, 2 * 2 + 1);
      EXPECT_EQ(step.all_gather.bytes, 4 * (2 * kWeights - 35)) << "the root's stay";
      EXPECT_EQ(step.reduce_scatter.calls, 3);
      EXPECT_EQ(step.reduce_scatter.bytes, 4 * kWeights);
      EXPECT_EQ(step.all_reduce.calls, 3);
      EXPECT_EQ(step.all_reduce.bytes, 4 * kBiases);
    });
}

TEST(FullyShard, SmallParametersAreAveragedOverReplicasToo) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"replicate", 2}, {"dp", 2}});
    Net net(kTwoBlocks), reference(kTwoBlocks);
    const nn::UnitPolicy options{.replicate_below_bytes = kThreshold};
    shard(net, mesh, options, options);
    net.materialize(nn::Seed{11});
    reference.materialize(nn::Seed{11});
    expect_trains_alike(on_slices(net, *group, 6, 5), on_batches(reference, 6, 5), {.steps = 4, .max_norm = 0.1});
    const CommCounts before = settled_counts(*group);
    backward(sum(net(batch_of(2, 6, 0, "x"))));
    CommCounts over_all = settled_counts(*group);
    over_all -= before;
    EXPECT_EQ(over_all.all_reduce.calls, 3);
    EXPECT_EQ(over_all.all_reduce.bytes, 4 * kBiases);
  });
}

TEST(FullyShard, SmallParametersUnderTensorParallelism) {
  for (const Grid3& grid : {Grid3{1, 2, 2}, Grid3{2, 2, 1}})
    for (const bool sequence : {false, true})
      run_ranks(grid.ranks(), [&](const Group& group) {
        const DeviceMesh root = grid.mesh(group);
        ResidualNet net(5, 8), reference(5, 8);
        if (grid.replicas > 1) root.flatten({"replicate", "dp"});  // what is averaged over both
        shard_2d(net, root, grid, sequence, {.replicate_below_bytes = kThreshold});
        net.materialize(nn::Seed{11});
        reference.materialize(nn::Seed{11});
        EXPECT_TRUE(Spec::from(net.blocks.items()[0]->gain.weight.value()).is_replicated());
        EXPECT_FALSE(Spec::from(net.blocks.items()[0]->up.weight.value()).is_replicated());
        expect_trains_alike(on_rows(net, root, *group), on_all_rows(reference),
                            {.steps = 4, .max_norm = 0.1, .gradient_limit = 2e-5, .value_limit = 2e-5});
      });
}

// 7 rows on two ranks of tensor parallelism: 4 and 3. Whether they are small is one answer for both.
TEST(FullyShard, SmallParametersOfUnevenShardsAreTheSameOnAllRanks) {
  const Grid3 grid{1, 2, 2};
  run_ranks(grid.ranks(), [&](const Group& group) {
    const DeviceMesh root = grid.mesh(group);
    ResidualNet net(5, 7), reference(5, 7);
    shard_2d(net, root, grid, true, {.replicate_below_bytes = 4 * 4});  // f32[7]: 16 bytes on one, 12 on the other
    net.materialize(nn::Seed{11});
    reference.materialize(nn::Seed{11});
    const nn::Parameter& bias = *net.blocks.items()[0]->up.bias;
    EXPECT_EQ(bias.shape(), (Shape{7}));
    EXPECT_EQ(describe(bias.sharded_value()), "f32[7]{0: tp,dp}");
    expect_trains_alike(on_rows(net, root, *group), on_all_rows(reference),
                        {.steps = 2, .max_norm = 0.1, .gradient_limit = 2e-5, .value_limit = 2e-5});
  });
}

TEST(FullyShard, SmallParametersTakeThePolicysTypes) {
  run_ranks(2, [](const Group& group) {
    const nn::MixedPrecision policy{.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
    const auto gradients = [&](std::int64_t bytes) {
      Net net(kTwoBlocks);
      const nn::UnitPolicy options{.mp_policy = policy, .replicate_below_bytes = bytes};
      shard(net, DeviceMesh(group), options, options);
      net.materialize(nn::Seed{11});
      const Tensor y = net(slice_of(batch_of(4, 6, 0, "x"), *group));
      EXPECT_EQ(y.dtype(), DType::bf16);
      backward(sum(square(y)));
      std::vector<Tensor> result;
      for (const nn::Parameter* p : net.parameters()) {
        EXPECT_EQ(p->grad().dtype(), DType::f32);
        result.push_back(whole(p->grad()));
      }
      return result;
    };
    const std::vector<Tensor> replicated = gradients(kThreshold), sharded = gradients(0);
    for (std::size_t i = 0; i < sharded.size(); ++i) EXPECT_TRUE(near(replicated[i], sharded[i])) << i;
  });
}

TEST(FullyShard, F16_IgnoredParametersStayAsTheyAre) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      Net net(kTwoBlocks), reference(kTwoBlocks), local(kTwoBlocks);
      for (Net* model : {&net, &reference, &local}) model->materialize(nn::Seed{4});
      nn::Parameter& ignored = net.head.weight;
      const Ref<Storage> storage = ignored.value().storage();
      const nn::UnitPolicy options{.ignored = {&ignored}};
      shard(net, DeviceMesh(group), options, options);
      EXPECT_EQ(nn::ShardKeeper::of(ignored), nullptr);
      for (const nn::UnitHandle& unit : nn::units(net))
        for (const nn::Parameter* p : unit.parameters()) EXPECT_NE(p, &ignored);

      const Tensor x = batch_of(12, 6, 0, "x"), y = batch_of(12, 5, 0, "y");
      const CommCounts before = settled_counts(*group);
      backward(mean_square(net(slice_of(x, *group)), slice_of(y, *group)));
      CommCounts step = settled_counts(*group);
      step -= before;
      if (group->size() > 1) { EXPECT_EQ(step.reduce_scatter.bytes, 4 * (net.num_parameters() - ignored.numel())); }
      EXPECT_EQ(step.all_reduce.calls, 0);
      backward(mean_square(reference(x), y));
      backward(mean_square(local(slice_of(x, *group)), slice_of(y, *group)));
      for (const auto& [name, p] : net.named_parameters()) {
        const Tensor& grad = p->grad();
        if (p == &ignored) continue;
        EXPECT_TRUE(near(grad.local(), part_of(reference.parameter(name).grad().detach(), grad))) << name;
      }
      EXPECT_TRUE(near(ignored.grad(), local.head.weight.grad())) << "this rank's own";

      nn::AdamW optimizer(net.parameters(), {.lr = 0.1});
      optimizer.step_and_clear();
      net(slice_of(x, *group));
      EXPECT_TRUE(ignored.value().storage() == storage);
      EXPECT_FALSE(ignored.value().is_distributed());
    });
}

TEST(FullyShard, F16_IgnoredParametersOnMetaGetTheirInitialValues) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks), reference(kTwoBlocks);
    const nn::UnitPolicy options{.ignored = {&net.head.weight}};
    shard(net, DeviceMesh(group), options, options);
    net.materialize(nn::Seed{4});
    reference.materialize(nn::Seed{4});
    EXPECT_TRUE(same_bits(net.head.weight.value(), reference.head.weight.value()));
    EXPECT_TRUE(same_bits(whole(net.head.bias->value()), reference.head.bias->value()));
  });
}

TEST(FullyShard, F16_IgnoredAndReplicatedParametersAreSavedOnce) {
  const TempDir dir;
  run_ranks(2, [&](const Group& group) {
    Net saved(kTwoBlocks), loaded(kTwoBlocks);
    const nn::UnitPolicy options{.replicate_below_bytes = kThreshold, .ignored = {&saved.head.weight}};
    shard(saved, DeviceMesh(group), options, options);
    shard(loaded, DeviceMesh(group));
    saved.materialize(nn::Seed{4});
    loaded.materialize(nn::Seed{5});
    nn::save_checkpoint(dir.path(), ckpt::Manifest{}, nn::training_state(saved), *group);
    nn::load_checkpoint(ckpt::CheckpointReader(dir.path()), nn::training_state(loaded));
    const auto a = saved.parameters(), b = loaded.parameters();
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(same_bits(whole(a[i]->value()), whole(b[i]->value()))) << a[i]->name();
  });
}

TEST(FullyShard, F16_MistakesWithIgnoredAndSmallParametersAreNamed) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    const DeviceMesh mesh(group);
    expect_error([&] { nn::fully_shard(net, mesh, {.replicate_below_bytes = -1}); }, {"replicate_below_bytes", "-1"});
    expect_error([&] { nn::fully_shard(net, mesh, {.ignored = {nullptr}}); }, {"null"});
    nn::fully_shard(net.head, mesh);
    expect_error([&] { nn::fully_shard(net, mesh, {.ignored = {&net.head.weight}}); },
                 {"head.weight", "a unit has it already"});
  });
}

}  // namespace
}  // namespace sherd::testing
