// Micro-batches whose gradients are reduced once, together: set_requires_gradient_sync() and finalize_backward(),
// counted, and against one rank on all rows. On 1 to 4 ranks, over replicas, in f32 and bf16.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>

#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/replay.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
constexpr int kMicroBatches = 4;

constexpr Grid kAccumulationGrids[] = {{1, 1}, {1, 2}, {2, 2}, {1, 3}, {3, 1}, {2, 1}};

/// A sharded net and its reference, and micro-batches for both.
struct Pair {
  const Group& group;
  Net net{kUneven}, reference{kUneven};
  Pair(const Group& ranks, const DeviceMesh& mesh, const nn::UnitPolicy& options = {}) : group(ranks) {
    shard(net, mesh, options, options);
    net.materialize(nn::Seed{2});
    reference.materialize(nn::Seed{2});
  }
  Tensor forward(int micro) {
    const Tensor x = batch_of(12, 5, static_cast<std::uint64_t>(micro), "x");
    return mul(sum(net(slice_of(x, *group))), static_cast<double>(group->size()));
  }
  void backward_both(int micro) {
    backward(forward(micro));
    backward_reference(micro);
  }
  void backward_reference(int micro) {
    backward(sum(reference(batch_of(12, 5, static_cast<std::uint64_t>(micro), "x"))));
  }
};

bool has_gradients(const nn::Module& net) {
  for (const nn::Parameter* p : net.parameters())
    if (p->grad().defined()) return true;
  return false;
}

CommCounts axis_counts(const DeviceMesh& mesh, std::string_view axis) { return settled_counts(mesh.group(axis)); }

void expect_one_reduction(const Group& group, const Grid& grid) {
  const DeviceMesh mesh = grid.mesh(group);
  Pair pair(group, mesh);
  for (int step = 0; step < 2; ++step) {  // the second adds to the first's gradients
    const CommCounts dp = axis_counts(mesh, "dp"), replicas = axis_counts(mesh, "replicate");
    for (int micro = 0; micro < kMicroBatches; ++micro) {
      const bool is_last = micro == kMicroBatches - 1;
      nn::units(pair.net).set_requires_gradient_sync(is_last);
      pair.backward_both(step * kMicroBatches + micro);
      if (is_last) continue;
      EXPECT_EQ(axis_counts(mesh, "dp").reduce_scatter.calls, dp.reduce_scatter.calls);
      EXPECT_EQ(axis_counts(mesh, "replicate").all_reduce.calls, replicas.all_reduce.calls);
      EXPECT_EQ(has_gradients(pair.net), step > 0) << "what waits is not in grad()";
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      if (step > 0) continue;
      EXPECT_GE(held(MemoryCategory::gradients), 4 * pair.net.num_parameters()) << "it is accounted as gradients";
    }
    EXPECT_EQ(axis_counts(mesh, "dp").reduce_scatter.calls - dp.reduce_scatter.calls, grid.shards > 1 ? kUnits : 0);
    EXPECT_EQ(axis_counts(mesh, "replicate").all_reduce.calls - replicas.all_reduce.calls,
              grid.replicas > 1 ? kUnits : 0);
  }
  expect_same_gradients(pair.net, pair.reference);
}

TEST(FullyShard, F79_MicroBatchesAreReducedOnce) {
  for (const Grid& grid : kAccumulationGrids)
    run_ranks(grid.ranks(), [&](const Group& group) { expect_one_reduction(group, grid); });
}

TEST(FullyShard, F79_F206_MicroBatchesAreReducedOnceWithProcesses) {
  for (const Grid& grid : {Grid{1, 2}, Grid{2, 2}})
    run_processes(grid.ranks(), [&](const Group& group) { expect_one_reduction(group, grid); });
}

// Gradients are reduced over shards in the second and in the fourth pass, over replicas in the fourth.
TEST(FullyShard, F79_F81_WaitingForShardsAndWaitingForReplicasCombine) {
  for (const Grid& grid : {Grid{2, 2}, Grid{2, 1}, Grid{2, 3}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const DeviceMesh mesh = grid.mesh(group);
      Pair pair(group, mesh);
      const CommCounts dp = axis_counts(mesh, "dp"), replicas = axis_counts(mesh, "replicate");
      for (int micro = 0; micro < kMicroBatches; ++micro) {
        nn::units(pair.net).set_requires_gradient_sync(micro % 2 == 1);
        nn::units(pair.net).set_requires_all_reduce(micro == kMicroBatches - 1);
        pair.backward_both(micro);
      }
      EXPECT_EQ(axis_counts(mesh, "dp").reduce_scatter.calls - dp.reduce_scatter.calls,
                grid.shards > 1 ? 2 * kUnits : 0);
      EXPECT_EQ(axis_counts(mesh, "replicate").all_reduce.calls - replicas.all_reduce.calls, kUnits);
      expect_same_gradients(pair.net, pair.reference);
    });
}

TEST(FullyShard, F79_ShardsMayAccumulateInstead) {
  for (const Grid& grid : {Grid{1, 2}, Grid{2, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const DeviceMesh mesh = grid.mesh(group);
      Pair pair(group, mesh, {.gradients = nn::ShardedOver::shards});
      const CommCounts dp = axis_counts(mesh, "dp"), replicas = axis_counts(mesh, "replicate");
      for (int micro = 0; micro < kMicroBatches; ++micro) {
        nn::units(pair.net).set_requires_gradient_sync(micro == kMicroBatches - 1);
        pair.backward_both(micro);
      }
      EXPECT_EQ(axis_counts(mesh, "dp").reduce_scatter.calls - dp.reduce_scatter.calls, kMicroBatches * kUnits);
      EXPECT_EQ(axis_counts(mesh, "replicate").all_reduce.calls - replicas.all_reduce.calls,
                grid.replicas > 1 ? kUnits : 0);
      expect_same_gradients(pair.net, pair.reference);
    });
}

// A module that the last micro-batch does not use has its earlier gradients reduced all the same.
TEST(FullyShard, F79_WhatTheLastMicroBatchDoesNotUseIsReducedToo) {
  struct Branches : nn::Layer<Branches> {
    nn::Linear &a, &b;
    bool both = true;
    Branches() : a(add<nn::Linear>("a", 3, 5)), b(add<nn::Linear>("b", 3, 5)) {}
    Tensor forward(const Tensor& x) { return both ? a(x) + b(x) : a(x); }
  };
  for (const bool in_one_unit : {true, false})
    run_ranks(2, [=](const Group& group) {
      Branches net, reference;
      if (!in_one_unit) nn::fully_shard(net.b, DeviceMesh(group));
      nn::fully_shard(net, DeviceMesh(group));
      net.materialize(nn::Seed{2});
      reference.materialize(nn::Seed{2});
      for (const bool is_last : {false, true}) {
        net.both = reference.both = !is_last;
        nn::units(net).set_requires_gradient_sync(is_last);
        const Tensor x = batch_of(4, 3, is_last, "x");
        backward(mul(sum(net(slice_of(x, *group))), 2));
        backward(sum(reference(x)));
      }
      expect_same_gradients(net, reference);
    });
}

// Beside tensor parallelism gradients that are sums over its axis are reduced over it when they are made.
TEST(FullyShard, F79_MicroBatchesOnTwoAxesAreReducedOnce) {
  for (const Grid3& grid : {Grid3{1, 2, 2}, Grid3{1, 1, 2}, Grid3{2, 1, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const DeviceMesh root = grid.mesh(group);
      ResidualNet net(5, 8), reference(5, 8);
      shard_2d(net, root, grid, true);
      net.materialize(nn::Seed{2});
      reference.materialize(nn::Seed{2});
      const int data_ranks = grid.replicas * grid.dp;
      for (std::uint64_t micro = 0; micro < 3; ++micro) {
        nn::units(net).set_requires_gradient_sync(micro == 2);
        const Tensor x = batch3(4, 3, micro, "x");
        backward(mul(sum(square(net(rows_of(x, root)))), data_ranks));
        backward(sum(square(reference(x))));
      }
      expect_same_gradients(net, reference, 1e-4);
    });
}

/// x times a weight of ones: its gradient is x.
struct Scale : nn::Layer<Scale> {
  nn::Parameter& weight;
  Scale() : weight(add_parameter("weight", {4}, nn::Init::ones())) {}
  Tensor forward(const Tensor& x) { return cast(x * weight, DType::f32); }
};

// bf16 has 8 binary digits: 1 + 2^-9 rounds to 1 in it.
TEST(FullyShard, F80_WhatWaitsAddsUpInTheTypeOfTheReduction) {
  const std::pair<std::optional<DType>, double> cases[] = {
      {std::nullopt, 1 + 0x1p-9}, {DType::f32, 1 + 0x1p-9}, {DType::bf16, 1}};
  for (const auto& [reduce, expected] : cases)
    for (const int ranks : {1, 2})
      run_ranks(ranks, [&, reduce = reduce, expected = expected](const Group& group) {
        Scale net;
        nn::fully_shard(net, DeviceMesh(group), {.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = reduce}});
        net.materialize();
        nn::units(net).set_requires_gradient_sync(false);
        backward(sum(net(full({4}, 1))));
        EXPECT_EQ(held(MemoryCategory::gradients), 64) << "4 numbers, on a cache line";
        backward(sum(net(full({4}, 0x1p-9))));
        nn::finalize_backward(net);
        EXPECT_FALSE(net.weight.grad().defined()) << "gradients are not to be synchronised";
        nn::units(net).set_requires_gradient_sync(true);
        nn::finalize_backward(net).wait();
        EXPECT_TRUE(same_bits(whole(net.weight.grad()), full({4}, expected)));
      });
}

TEST(FullyShard, F87_OneModuleAloneMayWait) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    Pair pair(group, mesh);
    nn::unit_of(pair.net).set_requires_gradient_sync(false);
    CommCounts before = settled_counts(*group);
    pair.backward_both(0);
    EXPECT_EQ(settled_counts(*group).reduce_scatter.calls - before.reduce_scatter.calls, kUnits - 1);
    EXPECT_FALSE(pair.net.head.weight.grad().defined());
    nn::unit_of(pair.net).set_requires_gradient_sync(true);
    nn::unit_of(*pair.net.blocks.items()[0]).set_requires_gradient_sync(false);
    before = settled_counts(*group);
    pair.backward_both(1);
    EXPECT_EQ(settled_counts(*group).reduce_scatter.calls - before.reduce_scatter.calls, kUnits - 1);
    nn::units(pair.net).set_requires_gradient_sync(true);
    pair.backward_both(2);
    expect_same_gradients(pair.net, pair.reference);
  });
}

TEST(FullyShard, F82_UnitsMayStayGatheredOverMicroBatches) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [](const Group& group) {
      Pair pair(group, DeviceMesh(group), {.reshard_after_forward = false});
      nn::units(pair.net).set_reshard_after_backward(false);
      nn::AdamW optimizer(pair.net.parameters(), {.lr = 0.01, .eps = 1e-4}),
          expected(pair.reference.parameters(), {.lr = 0.01, .eps = 1e-4});
      for (int step = 0; step < 3; ++step) {
        const CommCounts before = settled_counts(*group);
        for (int micro = 0; micro < kMicroBatches; ++micro) {
          nn::units(pair.net).set_requires_gradient_sync(micro == kMicroBatches - 1);
          pair.backward_both(step * kMicroBatches + micro);
          for (const nn::UnitHandle& unit : nn::units(pair.net)) EXPECT_TRUE(unit.is_unsharded()) << unit.name();
        }
        EXPECT_EQ(settled_counts(*group).all_gather.calls - before.all_gather.calls, kUnits);
        optimizer.step_and_clear();
        expected.step_and_clear();
        EXPECT_EQ(held(MemoryCategory::unsharded), 0) << "what is gathered of old values is stale";
        expect_same_values(pair.net, pair.reference, 1e-4);
      }
      nn::units(pair.net).set_reshard_after_backward(true);
      pair.backward_both(0);
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
    });
}

// When a block's gradients are complete in the second pass, the block before it is on its way.
TEST(FullyShard, F86_PassesThatAreNotTheLastKeepTheRecordedOrder) {
  run_ranks(2, [](const Group& group) {
    Pair pair(group, DeviceMesh(group));
    const auto blocks = pair.net.blocks.items();
    const nn::UnitHandle first = nn::unit_of(*blocks[0]);
    std::vector<bool> is_gathered;
    blocks[1]->linear_layer.weight.on_grad_accumulated([&](Slot&) { is_gathered.push_back(first.is_gathered()); });
    for (const bool in_order : {true, false}) {
      const Tensor a = pair.forward(0), b = pair.forward(1);
      nn::unit_of(pair.net).set_is_last_backward(false);
      backward(in_order ? a : b);
      nn::unit_of(pair.net).set_is_last_backward(true);
      backward(in_order ? b : a);
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      for (const int micro : {0, 1}) pair.backward_reference(micro);
    }
    EXPECT_EQ(is_gathered, std::vector<bool>(4, true));
    expect_same_gradients(pair.net, pair.reference);
  });
}

void expect_finalized_once(const Group& group, const Grid& grid) {
  const DeviceMesh mesh = grid.mesh(group);
  Pair pair(group, mesh);
  std::map<std::string, int> hooks;
  for (nn::Parameter* p : pair.net.parameters())
    p->on_grad_accumulated([&](Slot& slot) {
      ++hooks[slot.name()];
      EXPECT_TRUE(slot.grad().is_distributed());
    });
  nn::finalize_backward(pair.net).wait();  // there was no forward yet
  const CommCounts dp = axis_counts(mesh, "dp"), replicas = axis_counts(mesh, "replicate");
  nn::units(pair.net).set_requires_gradient_sync(false);
  nn::unit_of(pair.net).set_is_last_backward(false);
  for (int micro = 0; micro < kMicroBatches; ++micro) pair.backward_both(micro);
  EXPECT_TRUE(hooks.empty());
  nn::units(pair.net).set_requires_gradient_sync(true);
  const nn::Units reduced = nn::finalize_backward(pair.net);
  reduced.wait();
  reduced.wait();
  nn::finalize_backward(pair.net);  // nothing is left
  EXPECT_EQ(axis_counts(mesh, "dp").reduce_scatter.calls - dp.reduce_scatter.calls, grid.shards > 1 ? kUnits : 0);
  EXPECT_EQ(axis_counts(mesh, "replicate").all_reduce.calls - replicas.all_reduce.calls,
            grid.replicas > 1 ? kUnits : 0);
  EXPECT_EQ(hooks.size(), pair.net.parameters().size());
  for (const auto& [name, calls] : hooks) EXPECT_EQ(calls, 1) << name;
  expect_same_gradients(pair.net, pair.reference);
}

TEST(FullyShard, F86_F186_SeveralPassesAreReducedByHandOnce) {
  for (const Grid& grid : {Grid{1, 1}, Grid{1, 2}, Grid{2, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) { expect_finalized_once(group, grid); });
  run_processes(2, [](const Group& group) { expect_finalized_once(group, {1, 2}); });
}

TEST(FullyShard, F186_EndingByHandIsTheRootsAndOutsideOfAPass) {
  run_ranks(1, [](const Group& group) {
    Pair pair(group, DeviceMesh(group));
    pair.backward_both(0);
    nn::Module& block = *pair.net.blocks.items()[0];
    expect_error([&] { nn::finalize_backward(block); }, {"finalize_backward", "\"blocks.0\"", "not the root"});
    expect_error([&] { nn::unit_of(block).set_is_last_backward(false); }, {"set_is_last_backward", "\"blocks.0\""});
    pair.net.head.weight.on_grad_accumulated([&](Slot&) { nn::finalize_backward(pair.net); });
    expect_error([&] { backward(pair.forward(1)); }, {"finalize_backward", "a backward pass is running"});
  });
}

TEST(FullyShard, F79_AStepBeforeTheReductionIsRefusedAndClearingDropsWhatWaits) {
  for (const int ranks : {1, 2})
    for (const bool is_bf16 : {false, true})
      run_ranks(ranks, [=](const Group& group) {
        nn::UnitPolicy options;
        if (is_bf16) options.mp_policy = {.param_dtype = DType::bf16};
        Pair pair(group, DeviceMesh(group), options), other(group, DeviceMesh(group), options);
        nn::AdamW optimizer(pair.net.parameters(), {.lr = 0.01});
        nn::units(pair.net).set_requires_gradient_sync(false);
        backward(pair.forward(0));
        {
          GradMode off(false);
          pair.net(batch_of(2, 5, 0, "x"));  // another forward changes nothing
        }
        expect_error([&] { optimizer.step(); }, {"\"blocks.0.linear.weight\"", "not reduced yet", "finalize_backward"});
        EXPECT_EQ(nn::grad_norm(pair.net.parameters()).item<float>(), 0) << "it sees what is reduced";
        EXPECT_GT(held(MemoryCategory::gradients), 0);
        optimizer.clear_gradients();
        EXPECT_EQ(held(MemoryCategory::gradients), 0);
        nn::units(pair.net).set_requires_gradient_sync(true);
        backward(pair.forward(1));
        backward(other.forward(1));
        const auto a = pair.net.parameters(), e = other.net.parameters();
        for (std::size_t i = 0; i < a.size(); ++i)
          EXPECT_TRUE(same_bits(a[i]->grad().local(), e[i]->grad().local())) << a[i]->name();
      });
}

// An update that was recorded before anything could wait, where full gradients do, or those of replicas.
TEST(FullyShard, F77_F79_ACapturedUpdateBeforeTheReductionIsRefused) {
  for (const Grid& grid : {Grid{1, 2}, Grid{2, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      Pair pair(group, grid.mesh(group));
      nn::AdamW optimizer(pair.net.parameters(), {.lr = 0.01});
      auto update = compile([&](const Tensor&) { optimizer.step(); });
      for (int i = 0; i < 5; ++i) {
        backward(pair.forward(i));
        update(ones({1}));
      }
      ASSERT_EQ(update.mode(), CompiledStep::Mode::replay) << update.why();
      std::vector<Tensor> before;
      for (const nn::Parameter* p : pair.net.parameters()) before.push_back(add(p->value().local().detach(), 0));
      if (grid.replicas > 1) nn::units(pair.net).set_requires_all_reduce(false);
      else nn::units(pair.net).set_requires_gradient_sync(false);
      backward(pair.forward(5));
      expect_error([&] { update(ones({1})); }, {"\"blocks.0.linear.weight\"", "not reduced yet", "finalize_backward"});
      const auto parameters = pair.net.parameters();
      for (std::size_t i = 0; i < before.size(); ++i)
        EXPECT_TRUE(same_bits(parameters[i]->value().local(), before[i])) << parameters[i]->name();
    });
}

TEST(FullyShard, F43_F79_AnErrorDropsWhatWaits) {
  run_ranks(2, [](const Group& group) {
    Pair pair(group, DeviceMesh(group)), other(group, DeviceMesh(group));
    nn::units(pair.net).set_requires_gradient_sync(false);
    backward(pair.forward(0));
    expect_error(
        [&] {
          const Tensor loss = pair.forward(1);
          register_grad_hook(loss, [](const Tensor&) -> Tensor { fail("the user's hook"); });
          backward(mul(loss, 1));
        },
        {"the user's hook"});
    nn::reset_after_error(pair.net);
    EXPECT_EQ(held(MemoryCategory::gradients), 0);
    nn::units(pair.net).set_requires_gradient_sync(true);
    backward(pair.forward(2));
    backward(other.forward(2));
    const auto a = pair.net.parameters(), e = other.net.parameters();
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(same_bits(a[i]->grad().local(), e[i]->grad().local())) << a[i]->name();
  });
}

TEST(FullyShard, F79_ThawingWhileSomethingWaitsIsRefused) {
  run_ranks(1, [](const Group& group) {
    Pair pair(group, DeviceMesh(group));
    pair.net.head.weight.set_requires_grad(false);
    nn::units(pair.net).set_requires_gradient_sync(false);
    backward(pair.forward(0));
    pair.net.head.weight.set_requires_grad(true);
    expect_error([&] { backward(pair.forward(1)); }, {"unit \"(model)\"", "thawed", "reduce them first"});
  });
}

/// x early + y late, where y is x or 3 x: backward reaches the threshold, which gets no gradient, and nobody uses idle.
struct Deciding : nn::Layer<Deciding> {
  nn::Parameter &idle, &threshold, &early, &late;
  std::function<void()> between = [] {};  // the gradients of late and of early
  Deciding()
      : idle(add_parameter("idle", {4}, nn::Init::ones())),
        threshold(add_parameter("threshold", {4}, nn::Init::ones())),
        early(add_parameter("early", {4}, nn::Init::ones())),
        late(add_parameter("late", {4}, nn::Init::ones())) {}
  Tensor forward(const Tensor& x) {
    const Tensor y = x * early;
    if (y.requires_grad())
      register_grad_hook(y, [this](const Tensor&) {
        between();
        return Tensor();
      });
    return cast(y + where(less(x, threshold), x, mul(x, 3)) * late, DType::f32);
  }
};

// The first of three passes is recorded before the threshold and `early` are frozen, and runs backward after it; `idle`
// is frozen within its backward.
void freeze_in_the_first_pass(Deciding& net, const Group& group, bool is_by_hand) {
  net.between = [&net] { net.idle.set_requires_grad(false); };
  for (int pass = 0; pass < 3; ++pass) {
    nn::units(net).set_requires_gradient_sync(pass == 2 && !is_by_hand);
    const auto rank = static_cast<float>(group->rank()), scale = static_cast<float>(pass + 1);
    const Tensor loss = sum(net(Tensor::from<float>({rank * scale, 2, -3 * scale, 1}, {4})));
    if (pass == 0)
      for (nn::Parameter* p : {&net.threshold, &net.early}) p->set_requires_grad(false);
    backward(mul(loss, group->size()));
  }
  if (!is_by_hand) return;
  nn::units(net).set_requires_gradient_sync(true);
  nn::finalize_backward(net);
}

// All sums are exact: the bits are those of shards that are added up pass by pass.
TEST(FullyShard, F52_F79_FreezingMovesNothingThatWaits) {
  for (const bool is_bf16 : {false, true})
    for (const bool is_by_hand : {false, true})
      for (const int ranks : {1, 2})
        run_ranks(ranks, [=](const Group& group) {
          nn::UnitPolicy waiting;
          if (is_bf16) waiting.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
          nn::UnitPolicy added = waiting;
          added.gradients = nn::ShardedOver::shards;
          Deciding net, other;
          nn::fully_shard(net, DeviceMesh(group), waiting);
          nn::fully_shard(other, DeviceMesh(group), added);
          for (Deciding* each : {&net, &other}) {
            each->materialize();
            freeze_in_the_first_pass(*each, group, is_by_hand);
            EXPECT_FALSE(each->threshold.grad().defined() || each->idle.grad().defined());
          }
          EXPECT_TRUE(same_bits(whole(net.early.grad()), whole(other.early.grad())));
          EXPECT_TRUE(same_bits(whole(net.late.grad()), whole(other.late.grad())));
          if (ranks == 1) { EXPECT_TRUE(same_bits(whole(net.early.grad()), Tensor::from<float>({0, 2, -3, 1}, {4}))); }
        });
}

/// A training whose micro-batches may be calls, or one step.
struct MicroBatches {
  Net net{kUneven};
  std::unique_ptr<nn::AdamW> optimizer;
  MicroBatches(const DeviceMesh& mesh, bool is_bf16) {
    nn::UnitPolicy blocks;
    if (is_bf16) blocks.mp_policy = {.param_dtype = DType::bf16};
    nn::UnitPolicy root = blocks;
    if (is_bf16) root.mp_policy.output_dtype = DType::f32;
    shard(net, mesh, blocks, root);
    net.materialize(nn::Seed{5});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.05});
  }
  Tensor micro(const Tensor& x, const Tensor& y) {
    const Tensor loss = mean_square(net(x), y);
    backward(loss);
    return loss.detach();
  }
  Tensor last(const Tensor& x, const Tensor& y) {
    const Tensor loss = micro(x, y);
    const Tensor norm = nn::clip_grad_norm(*optimizer, 0.5);
    optimizer->step_and_clear();
    return loss + norm;
  }
  Tensor step(const Tensor& x, const Tensor& y) {
    nn::units(net).set_requires_gradient_sync(false);
    micro(x, y);
    micro(x * 2, y);
    nn::units(net).set_requires_gradient_sync(true);
    return last(x, y);
  }
};

TEST(FullyShard, F77_F79_MicroBatchesThatWaitReplayBitwise) {
  for (const Grid& grid : {Grid{1, 1}, Grid{1, 2}, Grid{2, 2}})
    for (const bool is_bf16 : {false, true})
      run_ranks(grid.ranks(), [&](const Group& group) {
        MicroBatches eager(grid.mesh(group), is_bf16), captured(grid.mesh(group), is_bf16);
        expect_replays_bitwise(group, eager, captured, 6, [&](std::uint64_t i) {
          return std::pair(slice_of(batch_of(12, 5, i, "x"), *group), slice_of(batch_of(12, 2, i, "y"), *group));
        });
      });
}

// What a micro-batch leaves is there when the next captured call begins.
TEST(FullyShard, F77_F79_MicroBatchesThatWaitMayBeCapturedApart) {
  for (const Grid& grid : {Grid{1, 1}, Grid{1, 2}, Grid{2, 2}})
    for (const bool is_bf16 : {false, true})
      run_ranks(grid.ranks(), [&](const Group& group) {
        MicroBatches eager(grid.mesh(group), is_bf16), captured(grid.mesh(group), is_bf16);
        auto micro =
            compile_once([&](const Tensor& x, const Tensor& y) { return captured.micro(x, y); }, {.group = group});
        auto last =
            compile_once([&](const Tensor& x, const Tensor& y) { return captured.last(x, y); }, {.group = group});
        for (std::uint64_t step = 0; step < 8; ++step) {
          // The third step has no micro-batch, the sixth three: a graph is for one of the cases.
          const int micros = step == 2 ? 0 : step == 5 ? 3 : 1;
          for (int i = 0; i <= micros; ++i) {
            const bool is_last = i == micros;
            const Tensor x = slice_of(batch_of(12, 5, step * 4 + static_cast<std::uint64_t>(i), "x"), *group),
                         y = slice_of(batch_of(12, 2, step, "y"), *group);
            for (Net* net : {&eager.net, &captured.net}) nn::units(*net).set_requires_gradient_sync(is_last);
            const Tensor expected = is_last ? eager.last(x, y) : eager.micro(x, y);
            EXPECT_TRUE(same_bits(is_last ? last(x, y) : micro(x, y), expected)) << "step " << step << " call " << i;
          }
          const auto a = captured.net.parameters(), e = eager.net.parameters();
          for (std::size_t i = 0; i < a.size(); ++i)
            EXPECT_TRUE(same_bits(a[i]->value().local(), e[i]->value().local())) << a[i]->name() << " step " << step;
        }
        EXPECT_EQ(micro.mode(), CompiledStep::Mode::replay) << micro.why();
        EXPECT_EQ(last.mode(), CompiledStep::Mode::replay) << last.why();
      });
}

}  // namespace
}  // namespace sherd::testing
