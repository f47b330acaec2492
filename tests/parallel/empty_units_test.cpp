// Units of which a rank has no bytes: "gathered" is a state of them as of others, so that the rank takes part in the
// gathers of its peers whatever happened before. A rank that took such a unit for gathered left its peers alone in the
// next one. Oracles: the steps of a training in which nothing happened, and counts of collectives.
#include <gtest/gtest.h>

#include "nn/optim/adamw.h"
#include "nn/parallel/tensor_parallel.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/replay.h"
#include "tests/parallel/strategy_cases.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_trap.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// Columns of a linear of one: over two ranks of tensor parallelism the second has none.
struct Thin : nn::Layer<Thin> {
  nn::Linear& up;
  Thin() : up(add<nn::Linear>("up", 1, 1, nn::Linear::Options{.bias = false})) {}
  Tensor forward(const Tensor& x) { return x + up(x); }
};

struct ThinNet : nn::Layer<ThinNet> {
  nn::ModuleList<Thin>& blocks;
  ThinNet() : blocks(add<nn::ModuleList<Thin>>("blocks")) {
    for (int i = 0; i < 3; ++i) blocks.append();
  }
  Tensor forward(Tensor x) {
    for (Thin* block : blocks.items()) x = (*block)(x);
    return x;
  }
};

struct ThinTraining {
  ThinNet net;
  std::unique_ptr<nn::AdamW> optimizer;
  Group group;

  ThinTraining(const Group& ranks, const DeviceMesh& mesh, const DeviceMesh& data, const nn::UnitPolicy& policy)
      : group(ranks) {
    nn::parallelize(
        net, mesh["tp"],
        {{"blocks.*.up", nn::colwise()}, {"blocks.*.up", nn::prepare_output({.to = Replicate(), .local = true})}});
    shard(net, data, policy, policy);
    net.materialize(nn::Seed{3});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.01});
  }
  Tensor step(const Tensor& x, const Tensor& y) {
    Tensor loss = mean_square(net(x), y);
    backward(loss);
    optimizer->step_and_clear();
    return loss;
  }
  void step(std::uint64_t index) { step(batch_of(4, 1, index, "x"), batch_of(4, 1, index, "y")); }
  /// Waits until no rank is in a collective any more: an error of the next step is none of this one's.
  void settle() const {
    RankContext::current().drain_queues();
    group->host().barrier();
  }
  std::vector<std::vector<float>> values() {
    std::vector<std::vector<float>> all;
    for (nn::Parameter* p : net.parameters()) all.push_back(p->sharded_value().local().detach().to_vector<float>());
    return all;
  }
};

struct ThinCase {
  const StrategyRow* row;
  int replicas;  // 1: none
  DeviceMesh mesh(const Group& group) const {
    return replicas == 1 ? DeviceMesh(group, {{"dp", group->size() / 2}, {"tp", 2}})
                         : DeviceMesh(group, {{"replicate", replicas}, {"dp", 1}, {"tp", 2}});
  }
  DeviceMesh data(const DeviceMesh& mesh) const { return replicas == 1 ? mesh["dp"] : mesh.slice({"replicate", "dp"}); }
};

std::vector<ThinCase> thin_cases() {
  std::vector<ThinCase> cases;
  for (const StrategyRow& row : kStrategyRows) cases.push_back({&row, nn::strategy(row.name).needs_replicas ? 2 : 1});
  return cases;
}

// Whatever op of a step rank 3, which has nothing of any unit, or rank 0 does not come to.
void expect_recovery(const Group& group, const ThinCase& c) {
  SCOPED_TRACE(c.row->name);
  const DeviceMesh mesh = c.mesh(group), data = c.data(mesh);
  const nn::UnitPolicy policy = nn::strategy(c.row->name);
  ThinTraining undisturbed(group, mesh, data, policy);
  std::int64_t num_ops = 0;
  {
    const OpTrap counting(-1);
    undisturbed.step(0);
    num_ops = counting.count();
  }
  num_ops = all_reduce(Tensor::scalar(static_cast<double>(num_ops), DType::f32), *group, ReduceKind::max)
                .item<std::int64_t>();
  undisturbed.step(1);
  undisturbed.settle();
  for (std::int64_t at = 0; at < num_ops; at += 3)
    for (const int victim : {0, 3}) {
      SCOPED_TRACE(fmt::format("op {} on rank {}", at, victim));
      ThinTraining training(group, mesh, data, policy);
      training.settle();
      try {
        const OpTrap trap(group->rank() == victim ? at : -1);
        training.step(0);
      } catch (const Error&) {}
      training.optimizer->clear_gradients();
      nn::reset_after_error(training.net);
      if (!training.optimizer->torn().empty()) continue;  // some rank was in the optimizer, and state is torn
      if (training.optimizer->step_slot().value().item<double>() < 1) training.step(0);
      training.step(1);
      EXPECT_EQ(training.values(), undisturbed.values());
      training.settle();
    }
}

TEST(EmptyUnits, AStepThatIsLeftAtAnyOpIsFollowedByAFreshOneInEveryStrategy) {
  run_ranks(4, [](const Group& group) {
    for (const ThinCase& c : thin_cases()) expect_recovery(group, c);
  });
}

// Rank 3 throws in the forward of block 1, when the gather of block 2 has begun on all.
TEST(EmptyUnits, AnErrorInAForwardLeavesNoRankWithAUnitThatCountsAsGathered) {
  run_ranks(4, [](const Group& group) {
    struct Throws final : nn::ModuleHook {
      bool is_on = false;
      void before_forward(nn::Module&) override { check(!std::exchange(is_on, false), "this rank stops here"); }
    };
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    ThinTraining training(group, mesh, mesh["dp"], {});
    const auto throws = std::make_shared<Throws>();
    training.net.blocks.items()[1]->add_hook(throws);
    training.step(0);
    training.settle();
    throws->is_on = group->rank() == 3;
    expect_error([&] { training.step(1); }, {"this rank stops here"});
    training.optimizer->clear_gradients();
    nn::reset_after_error(training.net);
    for (const nn::UnitHandle& unit : nn::units(training.net)) EXPECT_FALSE(unit.is_gathered()) << unit.name();
    training.step(1);
    training.step(2);
  });
}

TEST(EmptyUnits, AllRanksTakePartInAsManyGathers) {
  run_ranks(4, [](const Group& group) {
    for (const ThinCase& c : thin_cases()) {
      const DeviceMesh mesh = c.mesh(group), data = c.data(mesh);
      ThinTraining training(group, mesh, data, nn::strategy(c.row->name));
      training.step(0);
      ProcessGroup& shards = data.group(data.ndim() - 1);
      const CommCounts before = settled_counts(shards);
      training.step(1);
      const auto calls = static_cast<float>(counts_since(before, shards).all_gather.calls);
      const std::vector<float> all =
          all_gather(Tensor::from<float>({calls}, {1}), *group, group->size()).to_vector<float>();
      for (const float other : all) EXPECT_EQ(other, calls) << c.row->name;
    }
  });
}

TEST(EmptyUnits, ReplaysDoWhatEagerStepsDo) {
  run_ranks(4, [](const Group& group) {
    for (const ThinCase& c : thin_cases()) {
      if (c.row->stays == Stays::until_update) continue;  // those keep what is gathered
      SCOPED_TRACE(c.row->name);
      const DeviceMesh mesh = c.mesh(group), data = c.data(mesh);
      ThinTraining eager(group, mesh, data, nn::strategy(c.row->name)),
          captured(group, mesh, data, nn::strategy(c.row->name));
      expect_replays_bitwise(group, eager, captured, 5,
                             [](std::uint64_t i) { return std::pair(batch_of(4, 1, i, "x"), batch_of(4, 1, i, "y")); });
    }
  });
}

}  // namespace
}  // namespace sherd::testing
