// Gradients that wait for a reduction, looked at, changed, dropped and reduced by hand. Oracles: a plain model that
// trains on this rank's rows alone, one on the whole batch, and reductions inside of a pass, bit for bit.
#include "nn/parallel/shard/wrap/fully_shard.h"

#include <gtest/gtest.h>

#include <memory>

#include "dtensor/api.h"
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
constexpr Grid kPendingGrids[] = {{1, 1}, {1, 2}, {2, 2}, {1, 3}};

nn::UnitPolicy policy_of(bool is_bf16) {
  nn::UnitPolicy options;
  if (is_bf16) options.mp_policy = {.param_dtype = DType::bf16};
  return options;
}

/// A sharded net; a plain one that sees this rank's rows alone, and one that sees the whole batch.
struct WaitingNets {
  const Group& group;
  Net net{kUneven}, local{kUneven}, reference{kUneven};
  WaitingNets(const Group& ranks, const DeviceMesh& mesh, bool is_bf16 = false) : group(ranks) {
    shard(net, mesh, policy_of(is_bf16), policy_of(is_bf16));
    for (Net* each : {&net, &local, &reference}) each->materialize(nn::Seed{2});
  }
  Tensor batch(int micro) const { return batch_of(12, 5, static_cast<std::uint64_t>(micro), "x"); }
  void backward_sharded(int micro) {
    backward(mul(sum(net(slice_of(batch(micro), *group))), static_cast<double>(group->size())));
  }
  void backward_all(int micro) {
    backward_sharded(micro);
    backward(mul(sum(local(slice_of(batch(micro), *group))), static_cast<double>(group->size())));
    backward(sum(reference(batch(micro))));
  }
  const Tensor& local_gradient(const nn::Parameter& p) const {
    for (const auto& [name, mine] : local.named_parameters())
      if (name == p.name()) return mine->grad();
    fail("no parameter {}", p.name());
  }
};

std::int64_t all_calls(const DeviceMesh& mesh) {
  std::int64_t total = 0;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const CommCounts seen = settled_counts(mesh.group(axis));
    for (const CommCounts::Item& item : {seen.all_gather, seen.reduce_scatter, seen.all_reduce, seen.broadcast,
                                         seen.barrier, seen.all_to_all, seen.send, seen.recv})
      total += item.calls;
  }
  return total;
}

/// The tensors themselves, in the order of pending_gradients().
std::vector<const TensorImpl*> pending_tensors(nn::Module& net) {
  std::vector<const TensorImpl*> list;
  for (const nn::Units::PendingGradient& g : nn::units(net).pending_gradients())
    list.push_back((g.full.defined() ? g.full.local() : g.shard).impl());
  return list;
}

void expect_same_gradient_bits(const nn::Module& a, const nn::Module& b) {
  const auto mine = a.parameters(), theirs = b.parameters();
  for (std::size_t i = 0; i < mine.size(); ++i)
    EXPECT_TRUE(same_bits(mine[i]->grad().local(), theirs[i]->grad().local())) << mine[i]->name();
}

void expect_pending_seen(const Group& group, const Grid& grid) {
  const DeviceMesh mesh = grid.mesh(group);
  WaitingNets nets(group, mesh);
  EXPECT_TRUE(nn::units(nets.net).pending_gradients().empty());
  nn::units(nets.net).set_requires_gradient_sync(false);
  std::vector<const TensorImpl*> first;
  for (int micro = 0; micro < 3; ++micro) {
    nets.backward_all(micro);
    const std::int64_t before = all_calls(mesh);
    const std::vector<nn::Units::PendingGradient> pending = nn::units(nets.net).pending_gradients();
    EXPECT_EQ(pending.size(), nets.net.parameters().size());
    for (const nn::Units::PendingGradient& g : pending) {
      EXPECT_TRUE(near(g.full, nets.local_gradient(*g.parameter), 1e-5)) << g.parameter->name();
      EXPECT_EQ(g.kind, ReduceKind::avg);
      EXPECT_FALSE(g.shard.defined());
      EXPECT_FALSE(g.parameter->grad().defined());
    }
    if (micro == 0) first = pending_tensors(nets.net);
    EXPECT_EQ(pending_tensors(nets.net), first) << "micro-batch " << micro;
    EXPECT_EQ(all_calls(mesh), before);
  }
  EXPECT_EQ(nn::units(*nets.net.blocks.items()[0]).pending_gradients().size(), 2) << "of this module alone";
  nn::units(nets.net).set_requires_gradient_sync(true);
  nn::finalize_backward(nets.net).wait();
  EXPECT_TRUE(nn::units(nets.net).pending_gradients().empty());
  expect_same_gradients(nets.net, nets.reference);
}

TEST(FullyShard, F170_WhatWaitsIsSeenWithoutCollectives) {
  for (const Grid& grid : kPendingGrids)
    run_ranks(grid.ranks(), [&](const Group& group) { expect_pending_seen(group, grid); });
  run_processes(2, [](const Group& group) { expect_pending_seen(group, {1, 2}); });
}

// Called again it has nothing to reduce, and leaves the gradients as they are.
TEST(FullyShard, F170_ReducingByHandIsReducingInAPassBitForBit) {
  for (const Grid& grid : kPendingGrids)
    for (const bool is_bf16 : {false, true})
      run_ranks(grid.ranks(), [&](const Group& group) {
        const DeviceMesh mesh = grid.mesh(group);
        WaitingNets in_pass(group, mesh, is_bf16), by_hand(group, mesh, is_bf16);
        nn::units(by_hand.net).set_requires_gradient_sync(false);
        for (int micro = 0; micro < 3; ++micro) {
          nn::units(in_pass.net).set_requires_gradient_sync(micro == 2);
          in_pass.backward_sharded(micro);
          by_hand.backward_sharded(micro);
          for (const nn::Units::PendingGradient& g : nn::units(by_hand.net).pending_gradients())
            EXPECT_EQ(g.full.dtype(), DType::f32) << "of the reduction";
        }
        nn::units(by_hand.net).set_requires_gradient_sync(true);
        nn::finalize_backward(by_hand.net).wait();
        expect_same_gradient_bits(by_hand.net, in_pass.net);
        const std::int64_t before = all_calls(mesh);
        nn::finalize_backward(by_hand.net).wait();
        EXPECT_EQ(all_calls(mesh), before);
        expect_same_gradient_bits(by_hand.net, in_pass.net);
      });
}

TEST(FullyShard, F170_WhatIsWrittenIsReduced) {
  for (const bool is_bf16 : {false, true})
    run_ranks(2, [=](const Group& group) {
      WaitingNets nets(group, DeviceMesh(group), is_bf16);
      nn::units(nets.net).set_requires_gradient_sync(false);
      nets.backward_sharded(0);
      for (nn::Units::PendingGradient& g : nn::units(nets.net).pending_gradients())
        fill_into(g.full, group->rank() + 1);
      nn::units(nets.net).set_requires_gradient_sync(true);
      nn::finalize_backward(nets.net).wait();
      for (const nn::Parameter* p : nets.net.parameters())
        EXPECT_TRUE(same_bits(whole(p->grad()), full(p->shape(), 1.5))) << p->name();  // (1 + 2) / 2
    });
}

TEST(FullyShard, F170_ClearingDropsWhatWaits) {
  for (const bool is_bf16 : {false, true})
    run_ranks(2, [=](const Group& group) {
      const DeviceMesh mesh(group);
      WaitingNets nets(group, mesh, is_bf16), fresh(group, mesh, is_bf16);
      nn::AdamW optimizer(nets.net.parameters(), {.lr = 0.01});
      nn::units(nets.net).set_requires_gradient_sync(false);
      nets.backward_sharded(0);
      nets.net.head.weight.clear_grad();
      const std::vector<nn::Units::PendingGradient> rest = nn::units(nets.net).pending_gradients();
      EXPECT_EQ(rest.size(), nets.net.parameters().size() - 1);
      for (const nn::Units::PendingGradient& g : rest) EXPECT_NE(g.parameter, &nets.net.head.weight);
      optimizer.clear_gradients();
      EXPECT_TRUE(nn::units(nets.net).pending_gradients().empty());
      for (WaitingNets* each : {&nets, &fresh}) {
        nn::units(each->net).set_requires_gradient_sync(true);
        each->backward_sharded(1);
      }
      expect_same_gradient_bits(nets.net, fresh.net);
    });
}

// A shard is the sum over dp of what its ranks have computed, divided by all ranks.
TEST(FullyShard, F170_ShardsThatReplicasHaveNotSummed) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh = Grid{2, 2}.mesh(group);
    WaitingNets nets(group, mesh);
    nn::units(nets.net).set_requires_all_reduce(false);
    std::vector<const TensorImpl*> first;
    for (int micro = 0; micro < 2; ++micro) {
      nets.backward_all(micro);
      const std::int64_t before = all_calls(mesh);
      const std::vector<nn::Units::PendingGradient> pending = nn::units(nets.net).pending_gradients();
      if (micro == 0) first = pending_tensors(nets.net);
      EXPECT_EQ(pending_tensors(nets.net), first);
      EXPECT_EQ(all_calls(mesh), before);
      EXPECT_EQ(pending.size(), nets.net.parameters().size());
      for (const nn::Units::PendingGradient& g : pending) {
        const GradMode off(false);
        const Tensor sum_over_dp =
            all_reduce(mul(nets.local_gradient(*g.parameter).detach(), 0.25), mesh.group("dp"), ReduceKind::sum);
        const Tensor expected = part_of(sum_over_dp, g.parameter->sharded_value());
        EXPECT_TRUE(near(g.shard, expected, 1e-5)) << g.parameter->name();
        EXPECT_FALSE(g.full.defined());
      }
    }
    nn::units(nets.net).set_requires_all_reduce(true);
    nn::finalize_backward(nets.net).wait();
    EXPECT_TRUE(nn::units(nets.net).pending_gradients().empty());
    expect_same_gradients(nets.net, nets.reference);
    const std::int64_t before = all_calls(mesh);
    nn::finalize_backward(nets.net).wait();
    EXPECT_EQ(all_calls(mesh), before);
  });
}

TEST(FullyShard, F170_BesideTensorParallelismWhatWaitsIsDistributed) {
  const Grid3 grid{1, 2, 2};
  run_ranks(grid.ranks(), [&](const Group& group) {
    const DeviceMesh root = grid.mesh(group);
    ResidualNet net(5, 8), local(5, 8);
    shard_2d(net, root, grid, true);
    net.materialize(nn::Seed{2});
    local.materialize(nn::Seed{2});
    nn::units(net).set_requires_gradient_sync(false);
    std::vector<const TensorImpl*> first;
    for (std::uint64_t micro = 0; micro < 2; ++micro) {
      const Tensor x = batch3(4, 3, micro, "x");
      backward(sum(square(net(rows_of(x, root)))));
      backward(sum(square(local(rows_of(x, root)))));
      if (micro == 0) first = pending_tensors(net);
      EXPECT_EQ(pending_tensors(net), first);
    }
    const std::vector<nn::Units::PendingGradient> pending = nn::units(net).pending_gradients();
    EXPECT_EQ(pending.size(), net.parameters().size());
    const auto plain = local.named_parameters();
    for (const nn::Units::PendingGradient& g : pending) {
      ASSERT_TRUE(g.full.is_distributed()) << g.parameter->name();
      if (g.parameter == &net.blocks.items()[0]->up.weight) { EXPECT_EQ(describe(g.full), "f32[8,5]{0: tp}"); }
      for (const auto& [name, p] : plain) {
        if (name != g.parameter->name()) continue;
        EXPECT_TRUE(near(g.full.local(), part_of(p->grad().detach(), g.full), 1e-4)) << name;
      }
    }
  });
}

/// Adds what a block gives that is not below it, and that may be destroyed.
struct WithOneBeside : nn::Layer<WithOneBeside> {
  Block& own;
  std::unique_ptr<Block> beside = std::make_unique<Block>(6, 8);
  WithOneBeside() : own(add<Block>("own", 6, 8)) {}
  Tensor forward(const Tensor& x) { return own(x) + (*beside)(x); }
};

// One unit has both blocks, and holds gradients for both until they are reduced.
TEST(FullyShard, F170_F203_NothingWaitsForParametersThatWereDestroyed) {
  const Grid3 grid{1, 2, 2};
  run_ranks(grid.ranks(), [&](const Group& group) {
    const DeviceMesh root = grid.mesh(group);
    WithOneBeside net, reference;
    const nn::Plan plan{{"linear", nn::colwise()}, {"", nn::prepare_output({.to = Replicate(), .local = true})}};
    for (Block* block : {&net.own, net.beside.get()}) nn::parallelize(*block, root["tp"], plan);
    nn::fully_shard(std::vector<nn::Module*>{&net.own, net.beside.get()}, root["dp"]);
    nn::fully_shard(net, root["dp"]);
    for (WithOneBeside* each : {&net, &reference}) {
      each->materialize(nn::Seed{2});
      each->beside->materialize(nn::Seed{2});
    }
    nn::units(net).set_requires_gradient_sync(false);
    const Tensor x = batch_of(4, 6, 0, "x");
    backward(sum(square(net(x))));
    backward(sum(square(reference(x))));
    EXPECT_EQ(nn::units(net).pending_gradients().size(), 4u);
    net.beside.reset();
    const std::vector<nn::Units::PendingGradient> pending = nn::units(net).pending_gradients();
    EXPECT_EQ(pending.size(), 2u);
    for (const nn::Units::PendingGradient& g : pending) {
      const nn::Linear &mine = net.own.linear_layer, &theirs = reference.own.linear_layer;
      ASSERT_TRUE(g.parameter == &mine.weight || g.parameter == mine.bias);
      const nn::Parameter& expected = g.parameter == mine.bias ? *theirs.bias : theirs.weight;
      ASSERT_TRUE(g.full.is_distributed());
      EXPECT_TRUE(near(g.full.local(), part_of(expected.grad().detach(), g.full), 1e-5)) << expected.name();
    }
    nn::units(net).set_requires_gradient_sync(true);
    nn::finalize_backward(net).wait();
    EXPECT_TRUE(nn::units(net).pending_gradients().empty());
    expect_same_gradients(net, reference);
  });
}

TEST(FullyShard, F170_WhatWaitsIsSeenBetweenPassesOnly) {
  run_ranks(1, [](const Group& group) {
    WaitingNets nets(group, DeviceMesh(group));
    nets.net.head.weight.on_grad_accumulated([&](Slot&) { nn::units(nets.net).pending_gradients(); });
    expect_error([&] { nets.backward_sharded(0); }, {"pending_gradients", "a backward pass is running"});
  });
}

}  // namespace
}  // namespace sherd::testing
