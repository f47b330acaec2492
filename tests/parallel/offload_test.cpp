// Optimizer state outside of memory: the bits of a training that holds it, under every strategy, eager and captured,
// from checkpoints to checkpoints. Oracles: the same training in memory, and its bytes by the formula.
#include <gtest/gtest.h>

#include "nn/layers/linear.h"
#include "nn/optim/clip.h"
#include "nn/optim/sgd.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/exec/hazards.h"
#include "tests/parallel/offload_training.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

TEST(Offload, BitsOfTheStateInMemoryOnOneRank) {
  const Group group = make_single_group();
  for (const bool is_sharded : {false, true})
    for (const bool captured : {false, true})
      for (const bool clips : {false, true})
        for (const bool sgd : {false, true}) {
          SCOPED_TRACE(fmt::format("sharded {} captured {} clips {} sgd {}", is_sharded, captured, clips, sgd));
          expect_bits_of_none(
              group, DeviceMesh(group),
              {.is_sharded = is_sharded, .captured = captured, .clips = clips, .sgd = sgd, .accumulate = sgd ? 2 : 1});
        }
}

// Every strategy in f32 and bf16 on as many ranks as it takes.
TEST(Offload, F95_BitsOfTheStateInMemoryUnderEveryStrategy) {
  for (const StrategyCase& c : strategy_cases()) {
    if (c.shards > 2) continue;
    run_ranks(c.ranks(), [&](const Group& group) {
      for (const bool captured : {false, true}) {
        SCOPED_TRACE(fmt::format("{} captured {}", c.text(), captured));
        expect_bits_of_none(group, c.mesh(group), {.policy = c.policy(), .captured = captured, .clips = captured});
      }
    });
  }
}

TEST(Offload, BitsOfAStepAfterBackwardWhereItIsMadeWithin) {
  const Group alone = make_single_group();
  for (const bool captured : {false, true})
    for (const bool clears : {false, true}) {
      for (const bool is_sharded : {false, true})
        for (const int accumulate : {1, 2}) {
          SCOPED_TRACE(
              fmt::format("sharded {} captured {} clears {} accumulate {}", is_sharded, captured, clears, accumulate));
          expect_bits_of_none(alone, DeviceMesh(alone),
                              {.is_sharded = is_sharded,
                               .captured = captured,
                               .in_backward = true,
                               .clears = clears,
                               .accumulate = accumulate});
        }
      for (const StrategyCase& c : strategy_cases()) {
        if (c.shards > 2) continue;
        SCOPED_TRACE(fmt::format("{} captured {} clears {}", c.text(), captured, clears));
        run_ranks(c.ranks(), [&](const Group& group) {
          expect_bits_of_none(group, c.mesh(group),
                              {.policy = c.policy(), .captured = captured, .in_backward = true, .clears = clears});
        });
      }
    }
}

// In memory, too, parameters are updated as their gradients become complete; SGD without momentum has no state at all.
TEST(Offload, AStepWithinBackwardNeedsNoOffload) {
  for (const double momentum : {0.0, 0.9}) {
    std::vector<std::vector<float>> values;
    for (const bool in_backward : {false, true}) {
      nn::Linear model(64, 64);
      model.materialize(nn::Seed{1});
      nn::Sgd optimizer(model.parameters(), nn::Sgd::Options{.lr = 0.1, .momentum = momentum});
      for (int step = 0; step < 3; ++step) {
        if (in_backward) optimizer.step_in_backward();
        backward(sum(model(ones({2, 64}))));
        optimizer.step_and_clear();
      }
      values.push_back(model.parameters()[0]->value().to_vector<float>());
    }
    EXPECT_EQ(values[0], values[1]);
  }
}

TEST(Offload, WhatDoesNotGoWithAStepWithinBackwardIsNamed) {
  nn::Linear model(3, 3);
  model.materialize(nn::Seed{1});
  nn::Sgd optimizer(model.parameters(), nn::Sgd::Options{.lr = 0.1});
  const auto pass = [&] { backward(sum(model(ones({2, 3})))); };
  // A step that was left before its backward is forgotten with its gradients.
  optimizer.step_in_backward();
  optimizer.clear_gradients();
  pass();
  EXPECT_EQ(optimizer.torn(), "");
  optimizer.clear_gradients();
  optimizer.step_in_backward();
  pass();
  expect_error([&] { nn::clip_grad_norm(optimizer, 1.0); }, {"backward has updated parameters", "not both"});
  expect_error(pass, {"another gradient after its update", "before the last backward pass"});
}

// Shards of 3 ranks differ in size, and some are empty: their programs are equal all the same.
TEST(Offload, RanksOfUnevenShardsCutAlike) {
  run_ranks(3, [&](const Group& group) {
    for (const bool in_backward : {false, true})
      expect_bits_of_none(group, DeviceMesh(group), {.captured = true, .in_backward = in_backward});
  });
}

// A load makes it whole again, and the run goes on as one that was never left.
TEST(Offload, APassThatIsLeftAfterAnUpdateLeavesAllTornUntilALoad) {
  const Group group = make_single_group();
  const TempDir dir;
  const OffloadCase c{.in_backward = true};
  OffloadTraining training(group, DeviceMesh(group), c, dir.path()), undisturbed(group, DeviceMesh(group), c, "");
  bool is_bad = false;
  training.model->parameters()[0]->on_grad_accumulated([&](Slot&) { check(!is_bad, "a hook that fails"); });
  training.step(0);
  EXPECT_EQ(training.optimizer->torn(), "");
  const auto state = [&] { return nn::training_state(*training.model, training.optimizer.get()); };
  ckpt::Manifest manifest;
  manifest.step = 1;
  nn::save_checkpoint(dir / "saves", manifest, state(), *group);
  is_bad = true;
  expect_error([&] { training.step(1); }, {"a hook that fails"});
  EXPECT_NE(training.optimizer->torn(), "");
  expect_error([&] { nn::check_whole(state()[0]); }, {"torn"});
  expect_error([&] { training.step(1); }, {"step_in_backward() is refused", "load a checkpoint"});
  is_bad = false;
  nn::reset_after_error(*training.model);
  training.optimizer->clear_gradients();
  const auto reader = ckpt::open_newest_good(dir / "saves", *group, ckpt::Verify::bytes, [](const std::string&) {});
  nn::load_checkpoint(*reader, state());
  undisturbed.step(0);
  for (int i = 1; i < 4; ++i) EXPECT_TRUE(same_bits(training.step(i), undisturbed.step(i))) << i;
  expect_same_values(training, undisturbed);
}

TEST(Offload, MemoryHoldsWhatIsInFlightAndNothingBetweenSteps) {
  run_ranks(2, [](const Group& group) {
    for (const auto& [captured, in_backward] : {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
      const TempDir dir;
      const OffloadCase c{.captured = captured, .in_backward = in_backward};
      OffloadTraining training(group, DeviceMesh(group), c, dir.path());
      Accounting& memory = RankContext::current().allocator().accounting();
      memory.reset_peaks();
      std::int64_t state = 0;
      for (std::int64_t i = 0; i < c.steps; ++i) training.step(i);
      for (const nn::OptimizerState& s : training.optimizer->state()) state += s.slot->value().local().bytes();
      EXPECT_GT(state, 2 * c.bytes_in_flight) << "the model is too small to show anything";
      EXPECT_LE(memory.peak(MemoryCategory::optimizer), c.bytes_in_flight)
          << "captured " << captured << ", in backward " << in_backward;
      EXPECT_GE(training.optimizer->offloaded()->store().bytes(), state);
    }
  });
}

TEST(Offload, NoAccessIsUnordered) {
  const Group group = make_single_group();
  const TempDir dir;
  OffloadTraining training(group, DeviceMesh(group), {}, dir.path());
  const HazardChecker checker;
  for (std::int64_t i = 0; i < 3; ++i) training.step(i);
}

TEST(Offload, AStepWhoseNormIsNotFiniteChangesNothing) {
  const Group group = make_single_group();
  const TempDir dir;
  OffloadTraining training(group, DeviceMesh(group), {.clips = true}, dir.path());
  for (std::int64_t i = 0; i < 2; ++i) training.step(i);
  const std::vector<Tensor> before = training.values();
  for (nn::Parameter* p : training.model->parameters())
    p->set_grad((p->sharded_value().detach() * std::numeric_limits<double>::quiet_NaN()).detach());
  nn::clip_grad_norm(*training.optimizer, 1.0);
  training.optimizer->step_and_clear();
  const std::vector<Tensor> after = training.values();
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(same_bits(after[i], before[i])) << i;
}

TEST(Offload, RefusalsNameWhatIsWrong) {
  const Group group = make_single_group();
  const TempDir dir;
  OffloadTraining training(group, DeviceMesh(group), {}, "");
  expect_error([&] { training.optimizer->offload({.folder = dir / "missing"}); }, {"is not a folder", "missing"});
  expect_error([&] { training.optimizer->offload({.folder = dir.path(), .bytes_in_flight = 100}); },
               {"100 bytes", "at least 4096"});
  training.step(0);
  expect_error([&] { training.optimizer->offload({.folder = dir.path()}); },
               {"is in memory already", "before its first step"});
}

}  // namespace
}  // namespace sherd::testing
