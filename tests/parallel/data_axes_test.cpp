// Axes with data of their own, given as names of the whole mesh: one or several to shard over, to replicate over, or
// none of them. Oracles: the same model on one rank, and bits and counts of the call that is given a slice.
#include <gtest/gtest.h>

#include <memory>

#include "nn/optim/adamw.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using nn::DataAxes;
using nn::UnitPolicy;
constexpr std::int64_t kRowsOf8Ranks = 24;  // of a batch: divide by 1, 2, 4 and 8 ranks

DeviceMesh grid_of(const Group& group, int replicas, int dp, int cp) {
  return DeviceMesh(group, {{"replicate", replicas}, {"dp", dp}, {"cp", cp}});
}

Side on_rows_of(Net& net, const Group& group) {
  return {net,
          [&net, &group](std::uint64_t step) {
            return mean_square(net(slice_of(batch_of(kRowsOf8Ranks, 5, step, "x"), *group)),
                               slice_of(batch_of(kRowsOf8Ranks, 2, step, "y"), *group));
          },
          group.get()};
}
Side on_whole_batch(Net& net) {
  return {net, [&net](std::uint64_t step) {
            return mean_square(net(batch_of(kRowsOf8Ranks, 5, step, "x")), batch_of(kRowsOf8Ranks, 2, step, "y"));
          }};
}

/// One way to name the three axes, and what comes of it.
struct AxesCase {
  DataAxes axes;
  std::string weight;  ///< of the first block, f32[7,5]
  int shards, replicas;
};

void expect_trained(const Group& group, const DeviceMesh& mesh, const AxesCase& c) {
  Net net(kUneven), reference(kUneven);
  const UnitPolicy options{.data_axes = c.axes};
  shard(net, mesh, options, options);
  net.materialize(nn::Seed{3});
  reference.materialize(nn::Seed{3});
  const nn::UnitHandle unit = nn::unit_of(*net.blocks.items()[0]);
  EXPECT_EQ(describe(net.blocks.items()[0]->linear_layer.weight.sharded_value()), c.weight);
  EXPECT_EQ(unit.layout().shards, c.shards);
  EXPECT_EQ(unit.layout().replicas, c.replicas);
  expect_trains_alike(on_rows_of(net, group), on_whole_batch(reference), {.steps = 3, .max_norm = 0.1});
}

TEST(FullyShard, F189_AxesOfTheWholeMeshByName) {
  const AxesCase cases[] = {
      {{.shard = {"dp", "cp"}, .replicate = {"replicate"}}, "f32[7,5]{0: dp_cp}", 4, 2},
      {{.shard = {"cp"}, .replicate = {"replicate", "dp"}}, "f32[7,5]{0: cp}", 2, 4},
      {{.shard = {"replicate", "dp", "cp"}}, "f32[7,5]{0: replicate_dp_cp}", 8, 1},
      {{.replicate = {"replicate", "dp", "cp"}}, "f32[7,5]{}", 1, 8},
  };
  for (const AxesCase& c : cases)
    run_ranks(8, [&](const Group& group) { expect_trained(group, grid_of(group, 2, 2, 2), c); });
}

TEST(FullyShard, F189_AxesOfTheWholeMeshByNameWithProcesses) {
  run_processes(4, [](const Group& group) {
    expect_trained(group, grid_of(group, 1, 2, 2),
                   {{.shard = {"dp", "cp"}, .replicate = {"replicate"}}, "f32[7,5]{0: dp_cp}", 4, 1});
  });
}

// The plan is on a slice of the mesh that the call names axes of.
TEST(FullyShard, F189_NamesBesideTensorParallelism) {
  run_ranks(8, [](const Group& group) {
    for (const bool shards : {true, false}) {
      const DeviceMesh root(group, {{"dp", 2}, {"cp", 2}, {"tp", 2}});
      ResidualNet net(5, 9), reference(5, 9);
      nn::parallelize(net, root["tp"], plan_of(true));
      const std::vector<std::string> data{"dp", "cp"};
      const UnitPolicy options{.data_axes = shards ? DataAxes{.shard = data} : DataAxes{.replicate = data}};
      shard(net, root, options, options);
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      EXPECT_EQ(describe(net.blocks.items()[0]->up.weight.sharded_value()),
                shards ? "f32[9,5]{0: tp,dp,cp}" : "f32[9,5]{0: tp}");
      expect_trains_alike(on_rows(net, root, *group), on_all_rows(reference),
                          {.steps = 2, .max_norm = 0.1, .value_limit = 2e-5});
    }
  });
}

// Three of four axes have data: what is whole on their ranks is averaged over replicas and shards in one group, which
// the whole mesh does not have by itself.
TEST(FullyShard, F189_WhatIsWholeOnAllRanksBesideAFurtherAxis) {
  run_ranks(8, [](const Group& group) {
    for (const bool is_small : {true, false}) {
      const DeviceMesh root(group, {{"replicate", 2}, {"dp", 2}, {"cp", 1}, {"tp", 2}});
      ResidualNet net(5, 9), reference(5, 9);
      nn::parallelize(net, root["tp"], plan_of(true));
      UnitPolicy top = is_small ? UnitPolicy() : nn::strategy("no_shard");
      top.data_axes = DataAxes{.shard = {"dp", "cp"}, .replicate = {"replicate"}};
      UnitPolicy blocks = top;
      if (is_small) blocks.replicate_below_bytes = 64;  // more than gains and biases have, fewer than other weights
      shard(net, root, blocks, top);
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      const ResidualBlock& block = *net.blocks.items()[0];
      EXPECT_TRUE(Spec::from(block.gain.weight.sharded_value()).is_replicated());
      EXPECT_EQ(nn::unit_of(*net.blocks.items()[0]).layout().shards, is_small ? 2 : 1);
      expect_trains_alike(on_rows(net, root, *group), on_all_rows(reference),
                          {.steps = 2, .max_norm = 0.1, .value_limit = 2e-5});
    }
  });
}

// A group of its own costs memory and a call of the whole mesh: it is there only for strategies that communicate in it.
TEST(FullyShard, F189_AllDataAxesAreJoinedOnlyWhereTheStrategyNeedsIt) {
  struct Joined {
    const char* strategy;
    std::int64_t replicate_below_bytes;
    bool expected;
  };
  const Joined cases[] = {{"hybrid_shard", 0, false},
                          {"hybrid_shard_state", 0, false},
                          {"shard_optimizer", 0, false},
                          {"hybrid_shard", 64, true},
                          {"no_shard", 0, true}};
  for (const Joined& c : cases)
    run_ranks(8, [&](const Group& group) {
      const DeviceMesh root(group, {{"replicate", 2}, {"dp", 2}, {"cp", 1}, {"tp", 2}});
      UnitPolicy options = nn::strategy(c.strategy);
      options.replicate_below_bytes = c.replicate_below_bytes;
      options.data_axes = DataAxes{.shard = {"dp", "cp"}, .replicate = {"replicate"}};
      Net net(kUneven);
      nn::fully_shard(net, root, options);
      const DeviceMesh data = DeviceMesh::concatenate({root["replicate"], root["dp_cp"]});
      const int both[] = {0, 1};
      EXPECT_EQ(data.joint_group(both) != nullptr, c.expected) << c.strategy;
    });
}

// A mesh that was put together by hand: the remedy names axes that the whole mesh has, and is one.
TEST(FullyShard, F189_AGroupThatIsMissingIsNamedByAxesOfTheWholeMesh) {
  run_ranks(8, [](const Group& group) {
    const DeviceMesh root(group, {{"replicate", 2}, {"dp", 2}, {"cp", 1}, {"tp", 2}});
    const DeviceMesh data = root.concatenate({root["replicate"], root.flatten({"dp", "cp"})});
    Net net(kUneven);
    const auto wrap = [&] { nn::fully_shard(net, data, nn::strategy("no_shard")); };
    expect_error(wrap, {"mesh(replicate=2,dp_cp=2)", "flatten({\"replicate\", \"dp\", \"cp\"}) on mesh(replicate=2"});
    EXPECT_FALSE(nn::is_fully_sharded(net));
    root.flatten({"replicate", "dp", "cp"});
    wrap();
    EXPECT_EQ(nn::unit_of(net).layout().replicas, 4);
  });
}

/// A net that has made an update, and what it moved between the ranks of each axis.
struct Updated {
  Net net{kUneven};
  CommCounts over_replicas, over_shards;
  Updated(const Group& group, const DeviceMesh& root, const DeviceMesh& mesh, const UnitPolicy& options) {
    shard(net, mesh, options, options);
    net.materialize(nn::Seed{4});
    nn::AdamW optimizer(net.parameters(), {.lr = 0.05});
    const CommCounts replicas = settled_counts(root.group("replicate")), shards = settled_counts(root.group("dp"));
    backward(sum(square(net(slice_of(batch_of(12, 5, 0, "x"), *group)))));
    over_replicas = counts_since(replicas, root.group("replicate"));
    over_shards = counts_since(shards, root.group("dp"));
    optimizer.step_and_clear();
  }
};

TEST(FullyShard, F189_NamesGiveTheBitsAndTheCountsOfASlice) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh root(group, {{"replicate", 2}, {"dp", 2}});
    Updated sliced(group, root, root, {});
    Updated named(group, root, root, {.data_axes = DataAxes{.shard = {"dp"}, .replicate = {"replicate"}}});
    const auto mine = named.net.parameters(), theirs = sliced.net.parameters();
    for (std::size_t i = 0; i < mine.size(); ++i)
      EXPECT_TRUE(same_bits(mine[i]->sharded_value().local(), theirs[i]->sharded_value().local())) << mine[i]->name();
    for (const Updated* each : {&sliced, &named}) {
      EXPECT_EQ(each->over_replicas.all_reduce.calls, kUnits);
      EXPECT_EQ(each->over_shards.reduce_scatter.calls, kUnits);
      EXPECT_EQ(each->over_shards.reduce_scatter.bytes, sliced.over_shards.reduce_scatter.bytes);
      EXPECT_EQ(each->over_shards.all_gather.bytes, sliced.over_shards.all_gather.bytes);
    }
    EXPECT_EQ(root.concatenate({root["replicate"], root["dp"]}), root) << "no axis was flattened";
  });
}

// Nothing is gathered, and gradients are averaged over all ranks in one launch per unit, whatever else is said.
TEST(FullyShard, F189_NoneToShardIsNoShard) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh root(group, {{"a", 2}, {"b", 2}});
    const DeviceMesh flat = root.flatten({"a", "b"});
    Net net(kUneven);
    const UnitPolicy options{.reshard_after_forward = nn::ReshardAfterForward(2),
                             .data_axes = DataAxes{.replicate = {"a", "b"}}};
    shard(net, root, options, options);
    net.materialize(nn::Seed{4});
    const CommCounts before = settled_counts(flat.group());
    backward(sum(square(net(slice_of(batch_of(12, 5, 0, "x"), *group)))));
    const CommCounts seen = counts_since(before, flat.group());
    EXPECT_EQ(seen.all_gather.calls, 0);
    EXPECT_EQ(seen.reduce_scatter.calls, 0);
    EXPECT_EQ(seen.all_reduce.calls, kUnits);
    EXPECT_EQ(seen.all_reduce.bytes, 4 * net.num_parameters());
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
}

TEST(FullyShard, F189_NamesThatDoNotFitAreRefused) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh = grid_of(group, 2, 2, 1);
    Net net(kUneven);
    const auto refused = [&](const DataAxes& axes, std::initializer_list<std::string_view> parts) {
      expect_error([&] { nn::fully_shard(net, mesh, {.data_axes = axes}); }, parts);
    };
    refused({}, {"data_axes names no axis", "mesh(replicate=2,dp=2,cp=1)"});
    refused({.shard = {"data"}}, {"\"data\"", "mesh(replicate=2,dp=2,cp=1)"});
    refused({.shard = {"replicate"}, .replicate = {"dp"}},
            {"\"dp\" replicates", "not before \"replicate\"", "make the mesh"});
    refused({.shard = {"dp"}, .replicate = {"dp"}}, {"\"dp\" replicates", "name each once"});
    refused({.shard = {"cp", "dp"}}, {"in the order of the mesh", "\"dp\" comes too late"});
    UnitPolicy hybrid = nn::strategy("hybrid_shard");
    hybrid.data_axes = DataAxes{.replicate = {"dp"}};
    expect_error([&] { nn::fully_shard(net, mesh, hybrid); }, {"no axis to shard over", "hybrid", "no_shard"});
    EXPECT_FALSE(nn::is_fully_sharded(net));
  });
}

}  // namespace
}  // namespace sherd::testing
