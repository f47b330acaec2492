// A weight that modules of two units use, under every strategy: with micro-batches that wait, with one of its users
// unused, frozen for a while, summoned and captured. Against one rank on the whole batch.
#include <gtest/gtest.h>

#include <memory>

#include "nn/checkpoint/full/full_state.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/summon.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/replay.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// linear(x, a weight of its own or of another module) + bias.
struct TiedEnd : nn::Layer<TiedEnd> {
  nn::Parameter &weight, &bias;
  TiedEnd()
      : weight(add_parameter("weight", {7, 7}, nn::Init::normal(0.3))),
        bias(add_parameter("bias", {7}, nn::Init::normal(0.3))) {}
  explicit TiedEnd(nn::Parameter& other)
      : weight(share_parameter("weight", other)), bias(add_parameter("bias", {7}, nn::Init::normal(0.3))) {}
  Tensor forward(const Tensor& x) { return linear(x, weight, bias); }
};

/// Which ends a pass calls.
struct Uses {
  bool first = true, last = true;
};

struct TiedAtBothEnds : nn::Layer<TiedAtBothEnds> {
  TiedEnd &first, &last;
  nn::ModuleList<Block>& blocks;
  Uses uses;
  TiedAtBothEnds()
      : first(add<TiedEnd>("first")),
        last(add<TiedEnd>("last", first.weight)),
        blocks(add<nn::ModuleList<Block>>("blocks")) {
    for (int i = 0; i < 2; ++i) blocks.append(7, 7);
  }
  Tensor forward(Tensor x) {
    if (uses.first) x = first(x);
    for (Block* block : blocks.items()) x = (*block)(x);
    return uses.last ? last(x) : x;
  }
};

/// Ends that are wrapped beside the blocks and the root.
enum class Wrapped { both, owner, user, neither };
constexpr Wrapped kWrapped[] = {Wrapped::both, Wrapped::owner, Wrapped::user, Wrapped::neither};

void shard_tied(TiedAtBothEnds& net, const DeviceMesh& mesh, const nn::UnitPolicy& policy, Wrapped wrapped) {
  if (wrapped == Wrapped::both || wrapped == Wrapped::owner) nn::fully_shard(net.first, mesh, policy);
  if (wrapped == Wrapped::both || wrapped == Wrapped::user) nn::fully_shard(net.last, mesh, policy);
  shard(net, mesh, policy, policy);
}

Tensor tied_loss(TiedAtBothEnds& net, const Tensor& x, const Uses& uses) {
  net.uses = uses;
  return mean(square(net(x)));
}

/// Passes of a step. All ranks call the same ends: units are reached by all of them alike.
struct TiedStep {
  std::vector<Uses> passes;
  bool waits = false;  ///< all but the last reduce nothing
};
const std::vector<TiedStep> kTiedSteps = {
    {{{true, true}}},
    {{{true, true}, {true, true}}, true},
    {{{true, false}}},
    {{{false, true}}},
    {{{true, false}, {false, true}}, true},
    {{{false, true}, {true, false}}},
    {{{true, false}, {false, true}, {false, false}}, true},
};

void expect_tied_steps(const Group& group, const DeviceMesh& mesh, const nn::UnitPolicy& policy, Wrapped wrapped) {
  TiedAtBothEnds net, reference;
  shard_tied(net, mesh, policy, wrapped);
  nn::units(net).set_reduce_unused(true);
  net.materialize(nn::Seed{3});
  reference.materialize(nn::Seed{3});
  nn::AdamW optimizer(net.parameters(), {.lr = 0.01}), expected(reference.parameters(), {.lr = 0.01});
  for (std::size_t step = 0; step < kTiedSteps.size(); ++step) {
    SCOPED_TRACE(fmt::format("step {}", step));
    const TiedStep& plan = kTiedSteps[step];
    for (std::size_t pass = 0; pass < plan.passes.size(); ++pass) {
      const Tensor x = batch_of(12, 7, 10 * step + pass, "x");
      nn::units(net).set_requires_gradient_sync(!plan.waits || pass + 1 == plan.passes.size());
      backward(tied_loss(net, slice_of(x, *group), plan.passes[pass]));
      backward(tied_loss(reference, x, plan.passes[pass]));
    }
    const auto a = net.parameters(), e = reference.parameters();
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_TRUE(a[i]->grad().defined()) << a[i]->name();
      if (!e[i]->grad().defined()) e[i]->set_grad(zeros(e[i]->shape()));
      EXPECT_TRUE(near(a[i]->grad().local(), part_of(e[i]->grad().detach(), a[i]->grad()), 2e-5)) << a[i]->name();
    }
    optimizer.step_and_clear();
    expected.step_and_clear();
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  }
  expect_same_values(net, reference, 1e-4);
}

void expect_tied_under_every_strategy(const Group& group) {
  for (const std::string& name : nn::strategy_names())
    for (const Wrapped wrapped : kWrapped)
      for (const bool is_grid : {false, true}) {
        const nn::UnitPolicy policy = nn::strategy(name);
        if ((policy.needs_replicas && !is_grid) || (is_grid && group->size() != 4)) continue;
        SCOPED_TRACE(fmt::format("{}, wrapped {}, grid {}", name, static_cast<int>(wrapped), is_grid));
        expect_tied_steps(group, is_grid ? Grid{2, 2}.mesh(group) : DeviceMesh(group), policy, wrapped);
      }
}

TEST(FullyShard, F14_ATiedWeightTrainsLikeOneRankInEveryStrategy) {
  for (const int ranks : {1, 3, 4}) run_ranks(ranks, expect_tied_under_every_strategy);
}

TEST(FullyShard, F14_ATiedWeightTrainsLikeOneRankInEveryStrategyWithProcesses) {
  run_processes(4, expect_tied_under_every_strategy);
}

// Frozen for some steps, where its gradient does not say that its users are through; and summoned and written between.
TEST(FullyShard, F14_ATiedWeightIsFrozenSummonedAndLoaded) {
  for (const std::string& name : nn::strategy_names())
    for (const Wrapped wrapped : kWrapped)
      run_ranks(4, [&](const Group& group) {
        SCOPED_TRACE(fmt::format("{}, wrapped {}", name, static_cast<int>(wrapped)));
        TiedAtBothEnds net, reference;
        shard_tied(net, Grid{2, 2}.mesh(group), nn::strategy(name), wrapped);
        net.materialize(nn::Seed{3});
        reference.materialize(nn::Seed{3});
        nn::AdamW optimizer(net.parameters(), {.lr = 0.01}), expected(reference.parameters(), {.lr = 0.01});
        for (std::uint64_t step = 0; step < 6; ++step) {
          SCOPED_TRACE(step);
          for (TiedAtBothEnds* each : {&net, &reference}) each->first.weight.set_requires_grad(step % 3 != 1);
          const Tensor x = batch_of(12, 7, step, "x");
          backward(tied_loss(net, slice_of(x, *group), {}));
          backward(tied_loss(reference, x, {}));
          EXPECT_EQ(net.first.weight.grad().defined(), step % 3 != 1);
          optimizer.step_and_clear();
          expected.step_and_clear();
          EXPECT_EQ(held(MemoryCategory::gradients), 0);
          if (step == 2) {
            const nn::FullParameters full(net, {.write_back = true});
            EXPECT_TRUE(near(net.last.weight.value().detach(), reference.last.weight.value().detach(), 1e-4));
            net.last.weight.assign(mul(reference.first.weight.value().detach(), 0.5));
          }
          if (step == 2) reference.first.weight.assign(mul(reference.first.weight.value().detach(), 0.5));
          if (step == 4) {
            const nn::FullState state = nn::full_state_dict(net, *group, &optimizer);
            nn::load_full_state_dict(net, *group, state, &optimizer);
          }
        }
        expect_same_values(net, reference, 1e-4);
      });
}

struct TiedTraining {
  TiedAtBothEnds net;
  std::unique_ptr<nn::AdamW> optimizer;
  TiedTraining(const DeviceMesh& mesh, const nn::UnitPolicy& policy, Wrapped wrapped) {
    shard_tied(net, mesh, policy, wrapped);
    net.materialize(nn::Seed{5});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.05});
  }
  Tensor step(const Tensor& x, const Tensor&) {
    Tensor loss;
    for (const bool is_last : {false, true}) {
      nn::units(net).set_requires_gradient_sync(is_last);
      loss = tied_loss(net, x, {true, is_last});
      backward(loss);
    }
    optimizer->step_and_clear();
    return loss.detach();
  }
};

TEST(FullyShard, F14_F77_ATiedWeightReplaysBitwise) {
  for (const std::string& name : nn::strategy_names())
    for (const Wrapped wrapped : kWrapped)
      run_ranks(4, [&](const Group& group) {
        SCOPED_TRACE(fmt::format("{}, wrapped {}", name, static_cast<int>(wrapped)));
        const DeviceMesh mesh = Grid{2, 2}.mesh(group);
        TiedTraining eager(mesh, nn::strategy(name), wrapped), captured(mesh, nn::strategy(name), wrapped);
        expect_replays_bitwise(group, eager, captured, 5, [&](std::uint64_t i) {
          const Tensor x = slice_of(batch_of(12, 7, i, "x"), *group);
          return std::pair(x, x);
        });
      });
}

}  // namespace
}  // namespace sherd::testing
