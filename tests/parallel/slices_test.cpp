// reshard_after_forward = k: what stays after forward, who gathers what from whom in backward, and that nothing else
// changes. Oracles: one rank on the whole batch, and resharding to all ranks bit for bit.
#include "nn/parallel/shard/unit/unit_slices.h"

#include <gtest/gtest.h>

#include <memory>

#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/print_units.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/hazards.h"
#include "tests/parallel/replay.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

nn::UnitPolicy to_ranks(nn::ReshardAfterForward k, bool is_bf16 = false) {
  const nn::UnitPolicy policy{.reshard_after_forward = k};
  return is_bf16 ? in_bf16(policy) : policy;
}

nn::Parameter& first_weight(const PolicyTraining& t) { return t.net.blocks.items()[0]->linear_layer.weight; }

TEST(FullyShard, F8_NumbersOfRanksThatDoNotDivideAreRefused) {
  run_ranks(4, [](const Group& group) {
    Net net(kUneven);
    const DeviceMesh line(group), grid(group, {{"replicate", 2}, {"dp", 2}});
    for (const int wrong : {0, -1, 3, 5, 8})
      expect_error([&] { nn::fully_shard(net, line, to_ranks(wrong)); }, {"must divide the 4 ranks", "1..4"});
    expect_error([&] { nn::fully_shard(net, grid, to_ranks(4)); }, {"must divide the 2 ranks"});
    expect_error([&] { nn::fully_shard(net, grid.flatten({"replicate", "dp"}), to_ranks(2)); },
                 {"\"replicate_dp\"", "is flattened", "groups of 2 ranks"});
    EXPECT_FALSE(nn::is_fully_sharded(net));
    nn::fully_shard(net, line, to_ranks(2));
    expect_error([&] { nn::units(net).set_reshard_after_forward(3); }, {"must divide the 4 ranks"});
  });
}

// What is set later means what the option means, where FSDP2 takes a number for true.
TEST(FullyShard, F9_F202_WhatIsSetAfterTheCallMeansWhatTheOptionMeans) {
  run_ranks(4, [](const Group& group) {
    PolicyTraining t(DeviceMesh(group), {});
    const Tensor x = own_rows(group, 0);
    const auto after_forward = [&] {
      const Tensor loss = sum(t.net(x));
      const std::string placed = describe(first_weight(t).value());
      backward(loss);
      t.optimizer->clear_gradients();
      return placed;
    };
    nn::units(t.net).set_reshard_after_forward(2);
    EXPECT_EQ(after_forward(), "f32[7,5]{0: dp_inner}");
    nn::units(t.net).set_reshard_after_forward(4);
    EXPECT_EQ(after_forward(), "f32[7,5]{0: dp}");
    nn::units(t.net).set_reshard_after_forward(1);
    EXPECT_EQ(after_forward(), "f32[7,5]");
    nn::units(t.net).set_reshard_after_forward(2);
    const Tensor loss = sum(t.net(x));
    nn::units(t.net).set_reshard_after_forward(true);  // slices that are there go
    EXPECT_EQ(describe(first_weight(t).value()), "f32[7,5]{0: dp}");
    backward(loss);
    EXPECT_EQ(after_forward(), "f32[7,5]{0: dp}");
  });
}

// Rows of 7 over 2: 4 and 3. Ranks 0 and 2, and 1 and 3, have the same ones.
TEST(FullyShard, F32_AfterForwardShardsOfKRanksAreRegistered) {
  for (const bool is_bf16 : {false, true})
    run_ranks(4, [&](const Group& group) {
      PolicyTraining t(DeviceMesh(group), to_ranks(2, is_bf16));
      const Tensor expected = whole(first_weight(t).value());
      const Tensor loss = sum(t.net(own_rows(group, 0)));
      const Tensor slice = first_weight(t).value();
      EXPECT_EQ(describe(slice), is_bf16 ? "bf16[7,5]{0: dp_inner}" : "f32[7,5]{0: dp_inner}");
      const bool is_first = group->rank() % 2 == 0;
      EXPECT_TRUE(same_bits(slice.local().detach(),
                            cast(narrow(expected, 0, is_first ? 0 : 4, is_first ? 4 : 3), slice.dtype())));
      EXPECT_EQ(describe(first_weight(t).sharded_value()), "f32[7,5]{0: dp}");
      for (const nn::UnitHandle& unit : nn::units(t.net)) EXPECT_FALSE(unit.is_gathered()) << unit.name();
      backward(loss);
      EXPECT_EQ(describe(first_weight(t).value()), "f32[7,5]{0: dp}");
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
    });
}

void expect_gathers(const Group& group) {
  const DeviceMesh mesh(group);
  PolicyTraining t(mesh, to_ranks(2));
  const DeviceMesh split = nn::split_for_slices(mesh, 2);
  EXPECT_EQ(split.group("dp_inner").size(), 2);
  EXPECT_EQ(split.coordinate(1), group->rank() % 2) << "consecutive ranks";
  for (std::uint64_t step = 0; step < 3; ++step) {
    CommCounts all = settled_counts(*group), inner = settled_counts(split.group("dp_inner"));
    const CommCounts outer = settled_counts(split.group("dp_outer"));
    const Tensor loss = sum(square(t.net(own_rows(group, step))));
    EXPECT_EQ(counts_since(all, *group).all_gather.calls, kUnits);
    EXPECT_EQ(counts_since(inner, split.group("dp_inner")).all_gather.calls, 0);
    all = settled_counts(*group);
    backward(loss);
    EXPECT_EQ(counts_since(all, *group).all_gather.calls, 0) << "backward stays in its group";
    EXPECT_EQ(counts_since(all, *group).reduce_scatter.calls, kUnits) << "one reduction over all ranks";
    const CommCounts within = counts_since(inner, split.group("dp_inner"));
    EXPECT_EQ(within.all_gather.calls, kUnits);
    EXPECT_EQ(within.all_gather.bytes, 4 * t.net.num_parameters());
    EXPECT_EQ(within.reduce_scatter.calls, 0);
    const CommCounts across = counts_since(outer, split.group("dp_outer"));
    EXPECT_EQ(across.all_gather.calls + across.reduce_scatter.calls, 0);
    t.optimizer->step_and_clear();
  }
}

TEST(FullyShard, F32_BackwardGathersAmongKConsecutiveRanks) { run_ranks(4, expect_gathers); }

TEST(FullyShard, F32_BackwardGathersAmongKConsecutiveRanksWithProcesses) { run_processes(4, expect_gathers); }

// N elements: 1/k of them in the type that modules compute in, from forward to backward.
TEST(FullyShard, F32_BytesAfterForward) {
  for (const bool is_bf16 : {false, true})
    run_ranks(4, [&](const Group& group) {
      PolicyTraining t(DeviceMesh(group), to_ranks(2, is_bf16), kEven);
      const std::int64_t n = t.net.num_parameters(), bytes = (is_bf16 ? 2 : 4) * n / 2;
      for (int step = 0; step < 2; ++step) {
        const Tensor loss = sum(t.net(batch_of(2, 64, 0, "x")));
        EXPECT_GE(held(MemoryCategory::unsharded), bytes);
        EXPECT_LE(static_cast<double>(held(MemoryCategory::unsharded)), 1.01 * static_cast<double>(bytes));
        EXPECT_LE(static_cast<double>(held(MemoryCategory::parameters)), 1.01 * static_cast<double>(n));
        backward(loss);
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
        t.optimizer->step_and_clear();
      }
    });
}

// The same gathers and reductions of the same numbers, from elsewhere.
TEST(FullyShard, F60_ReshardingToKRanksNeverChangesABit) {
  for (const auto& [ranks, k] : {std::pair(4, 2), {6, 2}, {6, 3}})
    for (const bool is_bf16 : {false, true})
      run_ranks(ranks, [&, k = k](const Group& group) {
        PolicyTraining slices(DeviceMesh(group), to_ranks(k, is_bf16)),
            shards(DeviceMesh(group), to_ranks(true, is_bf16));
        for (std::uint64_t step = 0; step < 3; ++step)
          for (PolicyTraining* t : {&slices, &shards}) t->step(own_rows(group, step), {});
        const auto a = slices.net.parameters(), b = shards.net.parameters();
        for (std::size_t i = 0; i < a.size(); ++i)
          EXPECT_TRUE(same_bits(a[i]->value().local(), b[i]->value().local())) << a[i]->name();
      });
}

TEST(FullyShard, F60_ReshardingToKRanksTrainsLikeOneRank) {
  for (const bool prefetch : {true, false}) {
    run_ranks(4, [=](const Group& group) { expect_parity(group, DeviceMesh(group), to_ranks(2), prefetch); });
    run_ranks(4, [=](const Group& group) {
      expect_parity(group, DeviceMesh(group, {{"replicate", 1}, {"dp", 4}}), to_ranks(2), prefetch);
    });
  }
}

TEST(FullyShard, F60_ReshardingToKRanksTrainsLikeOneRankWithProcesses) {
  run_processes(4, [](const Group& group) { expect_parity(group, DeviceMesh(group), to_ranks(2)); });
}

// Beside replicas, which may own parts of the shards, and beside tensor parallelism: both levels at once.
TEST(FullyShard, F60_SlicesBesideReplicasAndTensorParallelism) {
  for (const bool has_state : {false, true})
    run_ranks(8, [=](const Group& group) {
      const DeviceMesh mesh(group, {{"replicate", 2}, {"dp", 4}});
      Net net(kUneven), reference(kUneven);
      nn::UnitPolicy policy = nn::strategy(has_state ? "hybrid_shard_state" : "hybrid_shard");
      policy.reshard_after_forward = 2;
      shard(net, mesh, policy, policy);
      net.materialize(nn::Seed{2});
      reference.materialize(nn::Seed{2});
      for (std::uint64_t micro = 0; micro < 2; ++micro) {
        const Tensor x = batch_of(8, 5, micro, "x");
        const Tensor loss = sum(net(slice_of(x, *group)));
        EXPECT_EQ(describe(net.head.weight.value()), "f32[2,3]{0: dp_inner}");
        backward(mul(loss, 8));
        backward(sum(reference(x)));
      }
      expect_same_gradients(net, reference);
    });
  run_ranks(8, [](const Group& group) {
    const Grid3 grid{1, 4, 2};
    const DeviceMesh root = grid.mesh(group);
    ResidualNet net(5, 8), reference(5, 8);
    shard_2d(net, root, grid, true, to_ranks(2));
    net.materialize(nn::Seed{2});
    reference.materialize(nn::Seed{2});
    const Tensor x = batch3(4, 3, 0, "x");
    const Tensor loss = sum(square(net(rows_of(x, root))));
    EXPECT_EQ(describe(net.blocks.items()[0]->up.weight.value()), "f32[8,5]{0: tp,dp_inner}");
    backward(mul(loss, 4));
    backward(sum(square(reference(x))));
    expect_same_gradients(net, reference, 1e-4);
  });
}

// Until backward every gather is of the slices; evaluation in between leaves none.
TEST(FullyShard, F68_SlicesServeAllForwardsBeforeABackward) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group);
    Net net(kUneven), reference(kUneven);
    shard(net, mesh, to_ranks(2), to_ranks(2));
    net.materialize(nn::Seed{2});
    reference.materialize(nn::Seed{2});
    const auto forward = [&](std::uint64_t i) { return mul(sum(net(own_rows(group, i))), 4); };
    const CommCounts before = settled_counts(*group);
    const Tensor first = forward(0), second = forward(1);
    EXPECT_EQ(counts_since(before, *group).all_gather.calls, kUnits);
    {
      const GradMode off(false);
      net(own_rows(group, 2));
      EXPECT_EQ(describe(net.head.weight.value()), "f32[2,3]{0: dp}");
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
    }
    backward(second);
    backward(first);
    for (std::uint64_t i = 0; i < 2; ++i) backward(sum(reference(batch_of(12, 5, i, "x"))));
    expect_same_gradients(net, reference);
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
}

TEST(FullyShard, F77_ReshardingToKRanksReplaysBitwise) {
  for (const bool is_bf16 : {false, true})
    run_ranks(4, [&](const Group& group) {
      PolicyTraining eager(DeviceMesh(group), to_ranks(2, is_bf16)), captured(DeviceMesh(group), to_ranks(2, is_bf16));
      expect_replays_bitwise(group, eager, captured, 6,
                             [&](std::uint64_t i) { return std::pair(own_rows(group, i), own_rows(group, i)); });
      for (const nn::UnitHandle& unit : nn::units(captured.net)) EXPECT_EQ(unit.late_gathers(), 0) << unit.name();
    });
}

// A recorded step that begins with slices of an eager forward, or leaves some to one.
TEST(FullyShard, F77_SlicesLeftBeforeTheStepAreOfNoUse) {
  run_ranks(4, [](const Group& group) {
    PolicyTraining eager(DeviceMesh(group), to_ranks(2)), captured(DeviceMesh(group), to_ranks(2));
    auto step = compile_once([&](const Tensor& x, const Tensor& y) { return captured.step(x, y); }, {.group = group});
    for (std::uint64_t i = 0; i < 9; ++i) {
      const Tensor x = own_rows(group, i);
      if (i % 2 == 1)
        for (PolicyTraining* t : {&eager, &captured}) (void)t->net(x);
      const Tensor expected = eager.step(x, x);
      EXPECT_TRUE(same_bits(step(x, x), expected)) << "step " << i << " " << step.why();
      EXPECT_EQ(held(MemoryCategory::unsharded), 0) << "step " << i;
    }
    EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
    const auto a = captured.net.parameters(), e = eager.net.parameters();
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(same_bits(a[i]->value().local(), e[i]->value().local())) << a[i]->name();
  });
}

TEST(FullyShard, F177_ReshardingToKRanksHasNoHazards) {
  run_ranks(4, [](const Group& group) {
    HazardChecker checker;
    {
      PolicyTraining t(DeviceMesh(group), to_ranks(2));
      for (std::uint64_t step = 0; step < 3; ++step) t.step(own_rows(group, step), {});
    }
    EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
    EXPECT_GT(checker.num_checked(), 100);
  });
}

TEST(FullyShard, F43_SlicesOfAStepThatIsLeftAreGone) {
  run_ranks(4, [](const Group& group) {
    PolicyTraining t(DeviceMesh(group), to_ranks(2)), other(DeviceMesh(group), to_ranks(2));
    for (PolicyTraining* each : {&t, &other}) each->step(own_rows(group, 0), {});
    expect_left_by_all(
        t.net, *t.optimizer,
        [&] {
          const Tensor loss = sum(square(t.net(own_rows(group, 1))));
          if (group->rank() == 1) register_grad_hook(loss, [](const Tensor&) -> Tensor { fail("the trap"); });
          backward(mul(loss, 1));
        },
        "the trap");
    for (PolicyTraining* each : {&t, &other}) each->step(own_rows(group, 2), {});
    const auto a = t.net.parameters(), e = other.net.parameters();
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(same_bits(a[i]->value().local(), e[i]->value().local())) << a[i]->name();
  });
}

TEST(FullyShard, F29_SlicesFollowAnotherDtype) {
  run_ranks(4, [](const Group& group) {
    Net net(kUneven);
    shard(net, DeviceMesh(group), to_ranks(2), to_ranks(2));
    net.materialize(nn::Seed{2});
    net.cast_to(DType::f64);
    const Tensor loss = sum(net(cast(own_rows(group, 0), DType::f64)));
    EXPECT_EQ(describe(net.head.weight.value()), "f64[2,3]{0: dp_inner}");
    backward(loss);
    EXPECT_EQ(describe(net.head.weight.grad()), "f64[2,3]{0: dp}");
    EXPECT_NE(nn::print_units(net).find("reshard to 2"), std::string::npos) << nn::print_units(net);
  });
}

}  // namespace
}  // namespace sherd::testing
