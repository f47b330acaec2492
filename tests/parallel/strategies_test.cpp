// Strategies: what they hold, what they move, and that none of them changes what is trained. Oracles: one rank on the
// whole batch, full_shard bit for bit where the arithmetic is the same, and bytes by their formulas.
#include <gtest/gtest.h>

#include <memory>

#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/hazards.h"
#include "tests/parallel/replay.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using enum nn::ShardedOver;

TEST(Strategies, AreCalledByTheirNames) {
  EXPECT_EQ(nn::strategy("no_shard").optimizer, none);
  EXPECT_EQ(nn::strategy("replicate").optimizer, none);
  EXPECT_EQ(nn::strategy("shard_optimizer").parameters, none);
  EXPECT_EQ(nn::strategy("shard_optimizer").optimizer, shards);
  EXPECT_TRUE(nn::strategy("shard_grad_op").reshard_after_forward->is_off());
  EXPECT_FALSE(nn::strategy("full_shard").reshard_after_forward.has_value());
  for (const std::string& name : nn::strategy_names()) {
    const nn::UnitPolicy policy = nn::strategy(name);
    EXPECT_EQ(nn::strategy_name(policy, policy.needs_replicas), name == "replicate" ? "no_shard" : name);
  }
  EXPECT_EQ(nn::strategy_name({.reshard_after_forward = nn::ReshardAfterForward(false)}, true), "hybrid_shard_grad_op");
  EXPECT_EQ(nn::strategy_name({.parameters = none, .optimizer = all}, false), "");
  expect_error([] { nn::strategy("shard_gradop"); }, {"no strategy \"shard_gradop\"", "did you mean shard_grad_op?"});
}

TEST(Strategies, WhatDoesNotFitIsRefused) {
  run_ranks(4, [](const Group& group) {
    Net net(kUneven);
    const DeviceMesh line(group), grid = Grid{2, 2}.mesh(group);
    expect_error([&] { nn::fully_shard(net, line, nn::strategy("hybrid_shard")); },
                 {"mesh(dp=4)", "--mesh replicate=2,dp=2"});
    expect_error([&] { nn::fully_shard(net, line, {.parameters = shards, .optimizer = none}); },
                 {"parameters are sharded over shards, the optimizer over none"});
    expect_error([&] { nn::fully_shard(net, line, nn::strategy("hybrid_shard_state")); }, {"mesh(dp=4)"});
    Net on_line(kUneven);  // where shards and all are the same ranks
    nn::fully_shard(on_line, line, {.parameters = all, .optimizer = shards, .gradients = all});
    EXPECT_EQ(describe(on_line.head.weight.value()), "f32[2,3]{0: dp}");
    nn::fully_shard(*net.blocks.items()[0], grid, nn::strategy("hybrid_shard_state"));
    EXPECT_EQ(describe(net.blocks.items()[0]->linear_layer.weight.value()), "f32[7,5]{0: dp,replicate}");
    nn::fully_shard(net, grid, nn::strategy("hybrid_shard"));
    EXPECT_EQ(describe(net.head.weight.value()), "f32[2,3]{0: dp}");
  });
}

TEST(FullyShard, F60_StrategiesTrainLikeOneRank) {
  for (const char* name : {"no_shard", "shard_optimizer", "shard_grad_op", "full_shard"}) {
    for (int ranks : {1, 2, 3})
      run_ranks(ranks, [=](const Group& group) { expect_parity(group, DeviceMesh(group), nn::strategy(name)); });
    run_ranks(4, [=](const Group& group) { expect_parity(group, Grid{2, 2}.mesh(group), nn::strategy(name)); });
  }
  for (const char* name : {"hybrid_shard", "hybrid_shard_grad_op"})
    run_ranks(4, [=](const Group& group) { expect_parity(group, Grid{2, 2}.mesh(group), nn::strategy(name)); });
}

TEST(FullyShard, F60_StrategiesTrainLikeOneRankWithProcesses) {
  for (const char* name : {"no_shard", "shard_optimizer"})
    run_processes(2, [=](const Group& group) { expect_parity(group, DeviceMesh(group), nn::strategy(name)); });
}

// Placements that no strategy has: both axes shard.
TEST(FullyShard, F60_ShardsOverReplicasTrainLikeOneRank) {
  for (const nn::ShardedOver parameters : {none, all})
    run_ranks(4, [=](const Group& group) {
      const nn::UnitPolicy policy{.parameters = parameters, .optimizer = all};
      expect_parity(group, Grid{2, 2}.mesh(group), policy);
    });
}

TEST(FullyShard, F188_ReplicateKeepsAllOnEveryRank) {
  run_ranks(2, [](const Group& group) {
    Net net(kUneven);
    const nn::UnitPolicy policy = nn::strategy("replicate");
    shard(net, DeviceMesh(group), policy, policy);
    net.materialize(nn::Seed{2});
    EXPECT_EQ(describe(net.head.weight.value()), "f32[2,3]{}");
    EXPECT_EQ(net.head.weight.value().local().shape(), (Shape{2, 3}));
    backward(sum(net(own_rows(group, 0))));
    EXPECT_EQ(net.head.weight.grad().local().shape(), (Shape{2, 3}));
    for (const nn::UnitHandle& unit : nn::units(net)) {
      EXPECT_EQ(unit.layout().shards, 1);
      EXPECT_EQ(unit.layout().replicas, 2);
    }
  });
}

// On two ranks a sum has one order, and halves are exact.
TEST(FullyShard, F188_GradientsOfReplicateAreThoseOfShardsBitForBit) {
  run_ranks(2, [](const Group& group) {
    for (const bool is_bf16 : {false, true}) {
      const auto policy = [&](const char* name) { return is_bf16 ? in_bf16(nn::strategy(name)) : nn::strategy(name); };
      PolicyTraining replicated(DeviceMesh(group), policy("no_shard")),
          sharded(DeviceMesh(group), policy("full_shard"));
      const Tensor x = own_rows(group, 3);
      for (PolicyTraining* t : {&replicated, &sharded}) backward(sum(square(t->net(x))));
      const auto a = replicated.net.parameters(), b = sharded.net.parameters();
      for (std::size_t i = 0; i < a.size(); ++i)
        EXPECT_TRUE(same_bits(a[i]->grad().local(), whole(b[i]->grad()))) << a[i]->name();
    }
  });
}

// They shard alike and reduce alike; only when they gather differs.
TEST(Strategies, KeepingParametersNeverChangesABit) {
  for (int ranks : {2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      for (const bool is_bf16 : {false, true}) {
        const auto trained = [&](const char* name) {
          const nn::UnitPolicy policy = nn::strategy(name);
          PolicyTraining t(DeviceMesh(group), is_bf16 ? in_bf16(policy) : policy);
          for (std::uint64_t step = 0; step < 3; ++step) t.step(own_rows(group, step), {});
          std::vector<Tensor> values;
          for (const nn::Parameter* p : t.net.parameters()) values.push_back(p->value().local().detach());
          return values;
        };
        const std::vector<Tensor> expected = trained("full_shard");
        for (const char* name : {"shard_grad_op", "shard_optimizer"}) {
          const std::vector<Tensor> values = trained(name);
          for (std::size_t i = 0; i < values.size(); ++i)
            EXPECT_TRUE(same_bits(values[i], expected[i])) << name << " parameter " << i;
        }
      }
    });
}

// Calls in an update of two micro-batches; G units.
TEST(Strategies, GatherAndReduceAsOftenAsTheyMust) {
  struct Expected {
    const char* name;
    std::int64_t gathers, reductions, sums;
  };
  constexpr std::int64_t kG = kUnits;
  for (const Expected& e : {Expected{"no_shard", 0, 0, 2 * kG},
                            {"shard_optimizer", kG, 2 * kG, 0},
                            {"shard_grad_op", 2 * kG, 2 * kG, 0},
                            {"full_shard", 2 * (2 * kG - 1), 2 * kG, 0}})
    run_ranks(2, [&](const Group& group) {
      PolicyTraining t(DeviceMesh(group), nn::strategy(e.name));
      for (std::uint64_t step = 0; step < 3; ++step) {
        const CommCounts before = settled_counts(*group);
        t.step(own_rows(group, step), {});
        CommCounts seen = settled_counts(*group);
        seen -= before;
        EXPECT_EQ(seen.all_gather.calls, e.gathers) << e.name;
        EXPECT_EQ(seen.reduce_scatter.calls, e.reductions) << e.name;
        EXPECT_EQ(seen.all_reduce.calls, e.sums) << e.name;
        for (const nn::UnitHandle& unit : nn::units(t.net)) EXPECT_FALSE(unit.is_unsharded()) << e.name;
      }
    });
}

// One gather serves evaluation and the passes of the next update.
TEST(Strategies, ShardOptimizerGathersOncePerUpdate) {
  run_ranks(2, [](const Group& group) {
    PolicyTraining t(DeviceMesh(group), nn::strategy("shard_optimizer"));
    t.step(own_rows(group, 0), {});
    const CommCounts before = settled_counts(*group);
    {
      GradMode off(false);
      for (std::uint64_t i = 0; i < 3; ++i) t.net(own_rows(group, i));
    }
    t.step(own_rows(group, 1), {});
    EXPECT_EQ(settled_counts(*group).all_gather.calls - before.all_gather.calls, kUnits);
  });
}

TEST(Strategies, F77_ReplayBitwiseWhatEagerDoes) {
  for (const char* name : {"no_shard", "shard_optimizer", "shard_grad_op"})
    for (const bool is_bf16 : {false, true})
      run_ranks(2, [&](const Group& group) {
        const nn::UnitPolicy policy = is_bf16 ? in_bf16(nn::strategy(name)) : nn::strategy(name);
        PolicyTraining eager(DeviceMesh(group), policy), captured(DeviceMesh(group), policy);
        expect_replays_bitwise(group, eager, captured, 6,
                               [&](std::uint64_t i) { return std::pair(own_rows(group, i), own_rows(group, i)); });
      });
}

TEST(Strategies, F177_HaveNoHazards) {
  for (const char* name : {"no_shard", "shard_optimizer"})
    for (const bool is_bf16 : {false, true})
      run_ranks(2, [&](const Group& group) {
        HazardChecker checker;
        {
          PolicyTraining t(DeviceMesh(group), is_bf16 ? in_bf16(nn::strategy(name)) : nn::strategy(name));
          for (std::uint64_t step = 0; step < 3; ++step) t.step(own_rows(group, step), {});
        }
        EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
        EXPECT_GT(checker.num_checked(), 100);
      });
}

// What is kept is written over, or gone, once it may be wrong.
TEST(Strategies, KeptParametersAreNeverStale) {
  run_ranks(2, [](const Group& group) {
    PolicyTraining t(DeviceMesh(group), nn::strategy("shard_optimizer"));
    const Tensor x = own_rows(group, 0);
    const auto output = [&] {
      GradMode off(false);
      return t.net(x).detach();
    };
    const Tensor before = output();
    EXPECT_GT(held(MemoryCategory::unsharded), 0);
    EXPECT_TRUE(same_bits(output(), before));
    nn::reset_after_error(t.net);
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
    EXPECT_TRUE(same_bits(output(), before));
    nn::Parameter& weight = t.net.head.weight;
    fill_into(weight.sharded_value().local().detach(), 0);
    fill_into(t.net.head.bias->sharded_value().local().detach(), 0);
    const Tensor after = output();
    EXPECT_TRUE(same_bits(after, full(after.shape(), 0, DType::f32)));
  });
}

}  // namespace
}  // namespace sherd::testing
