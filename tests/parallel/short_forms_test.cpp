// One call for what usually goes together: save and load, NoSync, mean_over, compile() on the ranks of the job.
// Oracles: the long forms, and closed forms.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "nn/checkpoint/model_saves.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/parallel/shard/wrap/no_sync.h"
#include "nn/plan/training_plan.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/job/world.h"
#include "tests/parallel/nets.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct Trained {
  explicit Trained(const Group& group, std::uint64_t seed) {
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{seed});
    optimizer.emplace(net.parameters(), nn::AdamW::Options{.lr = 1e-2});
  }
  void step(int i) {
    backward(sum(net(batch_of(4, 6, static_cast<std::uint64_t>(i), "x"))));
    optimizer->step_and_clear();
  }
  std::vector<float> weights() const {
    std::vector<float> all;
    for (const nn::Parameter* p : net.parameters()) {
      const std::vector<float> own = full_tensor(p->sharded_value()).to_vector<float>();
      all.insert(all.end(), own.begin(), own.end());
    }
    return all;
  }
  Net net{kTwoBlocks};
  std::optional<nn::AdamW> optimizer;
};

TEST(ShortForms, AModelAndItsOptimizerComeBackAndGoOnAlike) {
  const TempDir dir;
  const nn::TrainingPlan plan{.micro_batches = 3};
  run_ranks(2, [&](const Group& group) {
    Trained first(group, 1), second(group, 2);
    for (int i = 0; i < 2; ++i) first.step(i);
    nn::save(dir.path(), first.net, *first.optimizer,
             {.step = 2, .state = {{"epoch", 7.0}}, .plan = print(plan), .group = group});
    const ckpt::Manifest loaded = nn::load(dir.path(), second.net, *second.optimizer, {.group = group});
    EXPECT_EQ(loaded.step, 2);
    EXPECT_EQ(differences(nn::parse_plan(loaded.plan), {.recompute = "full"}),
              "recompute none -> full, micro_batches 3 -> 1");
    EXPECT_EQ(std::get<double>(loaded.state.at("epoch")), 7);
    EXPECT_EQ(second.weights(), first.weights());
    first.step(2);
    second.step(2);
    EXPECT_EQ(second.weights(), first.weights()) << "the optimizer's state is there too";
  });
  run_ranks(1, [&](const Group& group) {
    Trained third(group, 3);
    set_world_group(group);
    EXPECT_EQ(nn::load(dir.path(), third.net).step, 2) << "of other ranks, without the optimizer";
    nn::save(dir.path(), third.net, {.step = 3});
    expect_error([&] { nn::load(dir.path(), third.net, *third.optimizer); }, {"optim"});
    expect_error([&] { nn::load(dir / "none", third.net); }, {"none"});
    EXPECT_TRUE(nn::has_saves(dir.path()));
    EXPECT_FALSE(nn::has_saves(dir / "none"));
  });
}

TEST(ShortForms, BackwardPassesInNoSyncReduceNothing) {
  run_ranks(2, [](const Group& group) {
    Trained scoped(group, 1), told(group, 1);
    for (int m = 0; m < 2; ++m) {
      const Tensor x = batch_of(4, 6, static_cast<std::uint64_t>(m), "x");
      {
        std::optional<nn::NoSync> no_sync;
        if (m == 0) no_sync.emplace(scoped.net);
        backward(sum(scoped.net(x)));
        EXPECT_EQ(nn::units(scoped.net).pending_gradients().empty(), m == 1);
      }
      nn::units(told.net).set_requires_gradient_sync(m == 1);
      backward(sum(told.net(x)));
    }
    scoped.optimizer->step_and_clear();
    told.optimizer->step_and_clear();
    EXPECT_EQ(scoped.weights(), told.weights());
  });
}

TEST(ShortForms, AMeanIsOverTheRanksOfTheMesh) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"replicate", 2}, {"dp", 2}});
    const Tensor own = full({}, static_cast<double>(group->rank()));
    EXPECT_EQ(mean_over(own, mesh).item<float>(), 1.5F);
    EXPECT_EQ(mean_over(own, mesh["dp"]).item<float>(), group->rank() < 2 ? 0.5F : 2.5F);
    EXPECT_EQ(mean_over(own, mesh["replicate"]).item<float>(), group->rank() % 2 == 0 ? 1.0F : 2.0F);
  });
}

TEST(ShortForms, ACapturedStepIsComparedAmongTheRanksOfTheJob) {
  run_ranks(2, [](const Group& group) {
    set_world_group(group);
    const auto step_of = [&](const CompileOptions& options) {
      return compile([&](const Tensor& x) { return group->rank() == 0 ? mul(x, 2.0) : add(x, x); }, options);
    };
    const auto call = [](auto& step) {
      for (int i = 0; i < 5; ++i) step(full({3}, 1.0));
    };
    auto together = step_of({}), alone = step_of({.group = nullptr});
    EXPECT_NO_THROW(call(alone));
    expect_error([&] { call(together); }, {"rank 1"});
  });
}

}  // namespace
}  // namespace sherd::testing
