// Frozen parameters are gathered like others and bring no gradient, so gradients do not say when backward is through
// with them. Memory, collectives and values are those of a model without any.
#include <gtest/gtest.h>

#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "tests/parallel/nets.h"
#include "tests/parallel/replay.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// The root owns what comes before the blocks and behind them.
struct FrozenStack : nn::Layer<FrozenStack> {
  nn::Linear& embed;
  nn::ModuleList<Adapted>& blocks;
  nn::Linear& head;
  FrozenStack()
      : embed(add<nn::Linear>("embed", 6, 32)),
        blocks(add<nn::ModuleList<Adapted>>("blocks")),
        head(add<nn::Linear>("head", 16, 5)) {
    for (const auto& [in, out] : {std::pair{32, 48}, {48, 40}, {40, 64}, {64, 16}}) blocks.append(in, out);
  }
  Tensor forward(Tensor x) {
    x = embed(x);
    for (Adapted* block : blocks.items()) x = (*block)(x);
    return head(x);
  }
};

enum class Frozen { nothing, blocks, all_but_adapters, root };
constexpr Frozen kFrozen[] = {Frozen::nothing, Frozen::blocks, Frozen::all_but_adapters, Frozen::root};

void freeze(FrozenStack& net, Frozen frozen) {
  for (nn::Linear* layer : {&net.embed, &net.head})
    for (nn::Parameter* p : layer->parameters())
      p->set_requires_grad(frozen == Frozen::nothing || frozen == Frozen::blocks);
  for (Adapted* block : net.blocks.items()) {
    for (nn::Parameter* p : block->parameters()) p->set_requires_grad(frozen != Frozen::blocks);
    for (nn::Parameter* p : block->base.parameters())
      p->set_requires_grad(frozen == Frozen::nothing || frozen == Frozen::root);
  }
}

std::int64_t trainable_groups(FrozenStack& net) {
  std::int64_t count = 0;
  for (const nn::UnitHandle& group : nn::units(net)) {
    bool any = false;
    for (const nn::Parameter* p : group.parameters()) any = any || p->requires_grad();
    count += any;
  }
  return count;
}

std::int64_t trainable_bytes(FrozenStack& net) {
  std::int64_t bytes = 0;
  for (const nn::Parameter* p : net.parameters())
    if (p->requires_grad()) bytes += p->numel() * 4;
  return bytes;
}

void expect_released_when_backward_is_over(const Group& group) {
  for (const Frozen frozen : kFrozen)
    for (const bool prefetch : {true, false}) {
      SCOPED_TRACE(fmt::format("frozen {} prefetch {}", static_cast<int>(frozen), prefetch));
      FrozenStack net;
      shard(net, DeviceMesh(group), {.prefetch = prefetch}, {.prefetch = prefetch});
      net.materialize();
      freeze(net, frozen);
      Accounting& memory = RankContext::current().allocator().accounting();
      std::int64_t limit = 0, before = 0;
      for (Adapted* block : net.blocks.items()) {
        const std::int64_t bytes = nn::unit_of(*block).gathered_bytes();
        limit = std::max(limit, prefetch ? before + bytes : bytes);
        before = bytes;
      }
      limit += nn::unit_of(net).gathered_bytes();
      for (int step = 0; step < 3; ++step) {
        const Tensor loss = sum(net(batch_of(2, 6, 0, "x")));
        const CommCounts start = settled_counts(*group);
        memory.reset_peaks();
        backward(loss);
        EXPECT_EQ(memory.peak(MemoryCategory::unsharded), limit);
        CommCounts used = settled_counts(*group);
        used -= start;
        EXPECT_EQ(used.all_gather.calls, 4) << "each block once";
        EXPECT_EQ(used.reduce_scatter.calls, trainable_groups(net));
        EXPECT_EQ(used.reduce_scatter.bytes, trainable_bytes(net));
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
        for (nn::Parameter* p : net.parameters()) p->clear_grad();
      }
      for (const nn::UnitHandle& g : nn::units(net)) EXPECT_EQ(g.late_gathers(), 0) << g.name();
    }
}

TEST(FullyShard, F51_FrozenParametersAreReleasedWhenTheirBackwardIsOver) {
  run_ranks(2, expect_released_when_backward_is_over);
}

TEST(FullyShard, F51_F206_FrozenParametersAreReleasedWithProcesses) {
  run_processes(2, expect_released_when_backward_is_over);
}

// Two forwards and one backward; what is frozen changes from step to step.
void expect_gradients_of_one_rank(const Group& group) {
  FrozenStack net, reference;
  shard(net, DeviceMesh(group));
  net.materialize(nn::Seed{3});
  reference.materialize(nn::Seed{3});
  for (std::uint64_t step = 0; step < 8; ++step) {
    SCOPED_TRACE(step);
    freeze(net, kFrozen[step % 4]);
    freeze(reference, kFrozen[step % 4]);
    const auto loss = [&](const Side& side) { return step < 4 ? side.loss(step) : side.loss(step) + side.loss(9); };
    backward(loss(on_slices(net, *group, 6, 5)));
    backward(loss(on_batches(reference, 6, 5)));
    const auto a = net.parameters(), e = reference.parameters();
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i]->grad().defined(), e[i]->grad().defined()) << a[i]->name();
      if (!e[i]->grad().defined()) continue;
      EXPECT_TRUE(near(a[i]->grad().local(), part_of(e[i]->grad().detach(), a[i]->grad()), 1e-5)) << a[i]->name();
      a[i]->clear_grad();
      e[i]->clear_grad();
    }
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  }
}

TEST(FullyShard, F52_FreezingBetweenStepsGivesTheGradientsOfOneRank) {
  for (const int ranks : {1, 2, 3}) run_ranks(ranks, expect_gradients_of_one_rank);
}

TEST(FullyShard, F52_F206_FreezingBetweenStepsWithProcesses) {
  for (const int ranks : {2, 3}) run_processes(ranks, expect_gradients_of_one_rank);
}

struct FrozenTraining {
  FrozenStack net;
  std::unique_ptr<nn::AdamW> optimizer;
  FrozenTraining(const Group& group, Frozen frozen) {
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{5});
    freeze(net, frozen);
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.05});
  }
  Tensor step(const Tensor& x, const Tensor& y) {
    const Tensor loss = mean_square(net(x), y);
    backward(loss);
    optimizer->step_and_clear();
    return loss;
  }
};

TEST(FullyShard, F51_FrozenParametersReplayBitwise) {
  for (const Frozen frozen : kFrozen)
    run_ranks(2, [=](const Group& group) {
      FrozenTraining eager(group, frozen), captured(group, frozen);
      expect_replays_bitwise(group, eager, captured, 5, [&](std::uint64_t i) {
        return std::pair(slice_of(batch_of(12, 6, i, "x"), *group), slice_of(batch_of(12, 5, i, "y"), *group));
      });
    });
}

}  // namespace
}  // namespace sherd::testing
