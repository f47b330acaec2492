// Steps that are left by an exception, and ranks that die, with communication in flight: everybody hears the reason at
// once, memory comes back, and after a reset the next step is right.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>

#include "compile/compile.h"
#include "nn/checkpoint/full/full_state.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/board/shm_group.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "tests/parallel/nets.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/page_store.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Clock = std::chrono::steady_clock;

// Raises where it is told to, on the rank it is told to.
struct Trap {
  int rank = -1;
  enum Place { nowhere, forward, backward } place = nowhere;
};

struct TrappedNet : nn::Layer<TrappedNet> {
  nn::ModuleList<Block>& blocks;
  nn::Linear& head;
  Trap trap;
  explicit TrappedNet() : blocks(add<nn::ModuleList<Block>>("blocks")), head(add<nn::Linear>("head", 8, 5)) {
    for (int i = 0; i < 4; ++i) blocks.append(8, 8);
  }
  Tensor forward(Tensor x) {
    for (std::size_t i = 0; i < blocks.items().size(); ++i) {
      x = (*blocks.items()[i])(x);
      if (i != 1) continue;
      check(trap.place != Trap::forward, "the forward trap");
      if (trap.place == Trap::backward)
        register_grad_hook(x, [](const Tensor&) -> Tensor { fail("the backward trap"); });
    }
    return head(x);
  }
};

// Rank 1 leaves a step, the others are told; afterwards all go on and train like a run in which nothing happened.
void expect_recovery(const Group& group, Trap trap) {
  TrappedNet net, reference;
  shard(net, DeviceMesh(group));
  net.materialize(nn::Seed{3});
  reference.materialize(nn::Seed{3});
  const Side spread = on_slices(net, *group, 8, 5);
  const auto leave_one_step = [&](std::uint64_t step, nn::Optimizer& optimizer) {
    if (step != 2) return;
    if (group->rank() == trap.rank) net.trap = trap;
    expect_left_by_all(
        net, optimizer, [&] { backward(spread.loss(step)); },
        trap.place == Trap::forward ? "the forward trap" : "the backward trap");
    net.trap = {};
  };
  expect_trains_alike(spread, on_batches(reference, 8, 5), {.before_step = leave_one_step});
}

TEST(FullyShard, F43_StepLeftByOneRankIsLeftByAll) {
  for (int ranks : {2, 3})
    for (const Trap::Place place : {Trap::forward, Trap::backward})
      run_ranks(ranks, [=](const Group& group) { expect_recovery(group, {1, place}); });
}

TEST(FullyShard, F43_StepLeftByOneProcessIsLeftByAll) {
  for (const Trap::Place place : {Trap::forward, Trap::backward})
    run_processes(2, [=](const Group& group) { expect_recovery(group, {1, place}); });
}

TEST(FullyShard, F43_ResetIsForTheRoot) {
  run_ranks(2, [](const Group& group) {
    Net net(kThreeBlocks);
    shard(net, DeviceMesh(group));
    net.materialize();
    net(batch_of(2, 6, 0, "x"));
    expect_error([&] { nn::reset_after_error(*net.blocks.items()[0]); }, {"blocks.0", "not the root"});
    nn::reset_after_error(net);
    backward(sum(net(batch_of(2, 6, 0, "x"))));
  });
}

// Nobody's forward runs in between: what the failed pass had queued for its end must be queued again.
TEST(FullyShard, F43_AGraphFromBeforeTheErrorStillEndsItsBackward) {
  struct Half : nn::Layer<Half> {
    nn::Parameter &used, &idle;
    Half() : used(add_parameter("used", {4}, nn::Init::ones())), idle(add_parameter("idle", {4}, nn::Init::ones())) {}
    Tensor forward(const Tensor& x) { return x * used; }
  };
  run_ranks(2, [](const Group& group) {
    Half net;
    nn::fully_shard(net, DeviceMesh(group));
    net.materialize();
    const Tensor bad = net(ones({4})), good = net(full({4}, 3));
    register_grad_hook(bad, [](const Tensor&) -> Tensor { fail("out of luck"); });
    expect_error([&] { backward(sum(bad)); }, {});
    nn::reset_after_error(net);
    backward(sum(good));
    ASSERT_TRUE(net.used.grad().defined());
    EXPECT_TRUE(same_bits(net.used.grad().local(), full({2}, 3)));
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
}

// Rank 1's process ends while its gathers and rank 0's are in flight.
TEST(FullyShard, RankThatDiesWithWorkInFlightIsReported) {
  const auto ends = fork_ranks(2, [](Store& store, int rank) {
    const Group group = make_shm_group(store, rank, 2);
    TrappedNet net;
    shard(net, DeviceMesh(group));
    net.materialize();
    const auto step = [&] {
      backward(sum(net(batch_of(2, 8, 0, "x"))));
      for (nn::Parameter* p : net.parameters()) {
        (void)p->grad().local().raw();
        p->clear_grad();
      }
    };
    step();
    if (rank == 1) {
      nn::unit_of(net).unshard_async();
      ::_exit(0);
    }
    const auto start = Clock::now();
    expect_error(step, {"rank 1", "died"});
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(2));
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
  EXPECT_EQ(ends[0].status, 0) << ends[0].message;
}

TEST(FullyShard, F42_ModelCanGoWhileItsReductionsAreInFlight) {
  for (int ranks : {2, 3})
    run_ranks(ranks, [](const Group& group) {
      group->host().shape_link({.bytes_per_second = 1e9, .seconds = 2e-3});
      const Accounting& memory = RankContext::current().allocator().accounting();
      const std::int64_t before = memory.total();
      {
        Net net(kThreeBlocks);
        shard(net, DeviceMesh(group));
        net.materialize();
        nn::units(net).set_max_reductions(10);
        backward(sum(net(batch_of(2, 6, 0, "x"))));
        nn::unit_of(net).unshard();
      }
      EXPECT_EQ(memory.total(), before);
    });
}

// A replay is left by an exception on one rank while gathers of the same step are in flight on all.
TEST(FullyShard, F43_AbandonedReplayIsLeftByAllAndGoesOnAfterAReset) {
  run_ranks(2, [](const Group& group) {
    Net net(kThreeBlocks);
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{5});
    nn::AdamW optimizer(net.parameters(), {.lr = 0.01});
    auto step = compile_once([&](const Tensor& x, const Tensor& ids) {
      const Tensor loss = sum(square(net(x)));
      backward(loss);
      const Tensor row = embedding(x, ids);  // raises on a bad id, when backward has run and reductions are in flight
      optimizer.step_and_clear();
      return loss + sum(row);
    });
    const Tensor x = batch_of(4, 6, 0, "x");
    const Tensor good = Tensor::from<std::int64_t>({3}, {1}), bad = Tensor::from<std::int64_t>({4}, {1});
    for (int i = 0; i < 3; ++i) step(x, good);
    ASSERT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
    const nn::FullState saved = nn::full_state_dict(net, *group, &optimizer);
    const auto start = Clock::now();
    // Rank 0 finishes the step or hears of it; a result it has is of no use without its peer.
    if (group->rank() == 1) expect_error([&] { step(x, bad); }, {"outside of"});
    else
      expect_error(
          [&] {
            step(x, good);
            step(x, good);
          },
          {"outside of", "rank 1"});
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(2));
    optimizer.clear_gradients();
    nn::reset_after_error(net);
    EXPECT_EQ(held(MemoryCategory::unsharded) + held(MemoryCategory::gradients), 0);
    nn::load_full_state_dict(net, *group, saved, &optimizer);  // rank 0 may have finished what rank 1 has left
    for (const auto mode : {CompiledStep::Mode::eager, CompiledStep::Mode::record, CompiledStep::Mode::replay}) {
      step(x, good).item<float>();
      EXPECT_EQ(step.mode(), mode) << step.why();
    }
  });
}

// Where a step sets and reads a setting, ranks that have left it at different places have different ones. One that
// replayed would communicate in the order of its recording, the other as it finds: with units that reshard to k ranks
// that is two groups, each of which would wait for the other.
TEST(FullyShard, F43_RanksThatLeftAtDifferentPlacesRecordTogether) {
  run_ranks(2, [](const Group& group) {
    Net net(kThreeBlocks);
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{5});
    nn::AdamW optimizer(net.parameters(), {.lr = 0.01});
    CompiledStep step(
        [&](std::span<const Tensor> in) -> std::vector<Tensor> {
          for (const bool is_last : {false, true}) {
            nn::units(net).set_requires_gradient_sync(is_last);
            backward(sum(square(net(in[0]))));
          }
          optimizer.step_and_clear();
          return {};
        },
        {.compare = false});
    const std::vector<Tensor> in{batch_of(4, 6, 0, "x")};
    for (int i = 0; i < 2; ++i) step(in);
    nn::units(net).set_requires_gradient_sync(group->rank() ==
                                              0);  // rank 1 left in the first pass, rank 0 in the second
    nn::reset_after_error(net);
    for (const auto mode : {CompiledStep::Mode::eager, CompiledStep::Mode::record, CompiledStep::Mode::replay}) {
      step(in);
      EXPECT_EQ(step.mode(), mode) << step.why();
    }
  });
}

}  // namespace
}  // namespace sherd::testing
