// How a run shards: names of strategies, flags that stand for one, sizes of units. Oracles: one rank, and counts.
#include "tools/train/sharding.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/parallel/shard/wrap/print_units.h"
#include "nn/plan/check.h"
#include "tests/support/expect_error.h"
#include "tests/tools/tiny_run.h"

namespace sherd::testing {

using namespace train;

namespace {

class Sharding : public ::testing::Test {
 protected:
  TempDir dir_;
  TrainConfig config_ = tiny_config(dir_.write("text.txt", tiny_text()));

  void refused(const TrainConfig& config, std::initializer_list<std::string_view> parts) {
    expect_error([&] { nn::check_plan(config.plan); }, parts);
  }
};

TEST_F(Sharding, FlagsAndTheMeshComeToAStrategy) {
  const auto text = [&](const char* strategy, const char* mesh, nn::ReshardAfterForward reshards) {
    config_.plan.strategy = strategy;
    config_.plan.mesh = mesh;
    config_.plan.reshard_after_forward = reshards;
    nn::check_plan(config_.plan);
    return sharding_text(config_.plan, 4);
  };
  EXPECT_EQ(text("full_shard", "", true), "strategy full_shard");
  EXPECT_EQ(text("full_shard", "", false), "strategy shard_grad_op (reshard_after_forward = false)");
  EXPECT_EQ(text("full_shard", "replicate=2,dp=2", true), "strategy hybrid_shard");
  EXPECT_EQ(text("hybrid_shard", "replicate=2,dp=2", false),
            "strategy hybrid_shard_grad_op (reshard_after_forward = false)");
  EXPECT_EQ(text("full_shard", "", 2), "strategy full_shard (reshard_after_forward = 2)");
  EXPECT_EQ(text("hybrid_shard_state", "replicate=2,dp=2", true), "strategy hybrid_shard_state");
  EXPECT_EQ(text("replicate", "", true), "strategy no_shard");
  config_.plan.units = "coarse";
  EXPECT_EQ(
      text("full_shard", "", 2),
      "strategy full_shard (reshard_after_forward = 2), units coarse (one, which does not reshard after forward)");
  config_.plan.units = "fine";
  EXPECT_EQ(text("shard_optimizer", "dp=2", true), "strategy shard_optimizer, units fine");
  config_.plan.gather = config_.plan.reduce = "int8";
  EXPECT_EQ(text("full_shard", "", true), "strategy full_shard, int8 gathers, int8 reductions, units fine");
  config_.plan.gather = config_.plan.reduce = "exact";
  config_.plan.strategy = "full_shard";
  config_.plan.recompute = "full";
  EXPECT_EQ(text("full_shard", "", true), "strategy full_shard, units fine, recompute full");
  config_.plan.fully_shard = false;
  EXPECT_EQ(sharding_text(config_.plan, 1), "not sharded (fully_shard = false), recompute full");
}

TEST_F(Sharding, MicroBatchesSayWhatTheirGradientsTake) {
  const auto text = [&](const char* strategy, int data_ranks) {
    config_.plan.strategy = strategy;
    return sharding_text(config_.plan, data_ranks);
  };
  EXPECT_EQ(text("full_shard", 2), "strategy full_shard") << "one micro-batch";
  config_.plan.micro_batches = 3;
  EXPECT_EQ(text("full_shard", 2),
            "strategy full_shard, full gradients of 3 micro-batches wait (4 bytes x parameters more per rank)");
  EXPECT_EQ(text("full_shard", 1), "strategy full_shard") << "the shard is all";
  EXPECT_EQ(text("no_shard", 2), "strategy no_shard") << "whole they are anyway";
  config_.plan.param_dtype = config_.plan.reduce_dtype = DType::bf16;
  EXPECT_EQ(text("shard_grad_op", 2),
            "strategy shard_grad_op, full gradients of 3 micro-batches wait (2 bytes x parameters more per rank)");
  config_.plan.accumulate_shards = true;
  EXPECT_EQ(text("full_shard", 2), "strategy full_shard, shards of the gradients of 3 micro-batches add up");
}

TEST_F(Sharding, WhatDoesNotFitIsRefused) {
  TrainConfig config = config_;
  expect_error([] { nn::Strategy("fullshard"); }, {"no strategy \"fullshard\"", "did you mean full_shard?"});
  config.plan.strategy = "no_shard";
  config.plan.fully_shard = false;
  refused(config, {"strategy = no_shard", "leave fully_shard on"});
  config = config_;
  expect_error([] { nn::UnitsBy("layer"); },
               {"no rule \"layer\" makes units", "coarse, block, fine, parameters=N, bytes=N"});
  expect_error([] { nn::UnitsBy("bytes=half"); }, {"\"bytes=half\"", "a whole number"});
  expect_error([] { nn::RecomputeBy("half"); }, {"recompute = \"half\"", "none, selective, full"});
  expect_error([] { nn::Travel("8bit"); }, {"exact or int8", "\"8bit\""});
  config.plan.reduce = "int8";
  config.plan.fully_shard = false;
  refused(config, {"reduce = int8", "leave fully_shard on"});
  for (const char* whole : {"no_shard", "replicate"}) {
    config = config_;
    config.plan.strategy = whole;
    config.plan.gather = "int8";
    refused(config, {"gather = int8", fmt::format("strategy = {}", whole), "shard_optimizer"});
    std::swap(config.plan.gather, config.plan.reduce);
    refused(config, {"reduce = int8", fmt::format("strategy = {}", whole), "shard_optimizer"});
    config.plan.reduce = "exact";
    config.plan.accumulate_shards = true;
    refused(config, {"accumulate_shards with", fmt::format("strategy = {}", whole), "no shards to add up"});
  }
}

// Whether there are replicas is known when the hosts are: before that nothing is refused.
TEST_F(Sharding, OnOneHostAHybridStrategyNeedsReplicasInTheMesh) {
  for (const char* strategy : {"hybrid_shard", "hybrid_shard_grad_op", "hybrid_shard_state"}) {
    config_.plan.strategy = strategy;
    config_.plan.mesh = "";
    EXPECT_NO_THROW(nn::check_plan(config_.plan));
    EXPECT_TRUE(nn::lacks_replicas(config_.plan));
    EXPECT_EQ(sharding_text(config_.plan, 4), fmt::format("strategy {}", strategy));
    std::atomic<int> errors = 0;
    run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      expect_error([&] { Trainer trainer(config_, group); },
                   {fmt::format("strategy = {}", strategy), "all ranks are on one host", "--mesh replicate=2,dp=2"});
      ++errors;
    });
    EXPECT_EQ(errors, 2);
    config_.plan.mesh = "replicate=2,dp=2";
    EXPECT_FALSE(nn::lacks_replicas(config_.plan));
  }
  config_.plan.mesh = "";
  config_.plan.strategy = "full_shard";
  EXPECT_FALSE(nn::lacks_replicas(config_.plan));
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    largest = std::max(largest, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return largest;
}

TEST_F(Sharding, F60_NumbersDoNotDependOnTheStrategy) {
  const TinyRun one = train_tiny(config_, 1);
  for (const char* strategy : {"no_shard", "shard_optimizer", "shard_grad_op"})
    for (const bool is_compiled : {false, true}) {
      config_.plan.strategy = strategy;
      config_.plan.compiled = is_compiled;
      const TinyRun two = train_tiny(config_, 2);
      EXPECT_EQ(two.initial, one.initial) << strategy;
      EXPECT_LE(largest_difference(two.losses, one.losses), 1e-5) << strategy;
      EXPECT_LE(largest_difference(two.norms, one.norms), 1e-4) << strategy;
      EXPECT_NEAR(two.val_loss, one.val_loss, 1e-5) << strategy;
    }
}

TEST_F(Sharding, F70_RecomputationChangesNoBit) {
  for (const int ranks : {1, 2}) {
    config_.plan.recompute = "none";
    config_.plan.compiled = false;
    const TinyRun none = train_tiny(config_, ranks);
    for (const char* recompute : {"selective", "full"})
      for (const bool is_compiled : {false, true}) {
        config_.plan.recompute = recompute;
        config_.plan.compiled = is_compiled;
        const TinyRun run = train_tiny(config_, ranks);
        EXPECT_EQ(run.losses, none.losses) << recompute;
        EXPECT_EQ(run.norms, none.norms) << recompute;
        EXPECT_EQ(run.val_loss, none.val_loss) << recompute;
        if (!is_compiled) { EXPECT_LT(run.peak_activations, none.peak_activations) << recompute; }
      }
  }
}

TEST_F(Sharding, F96_EightBitsOnTheWireTrainAlmostAlike) {
  const TinyRun exact = train_tiny(config_, 2);
  config_.plan.gather = config_.plan.reduce = "int8";
  const TinyRun eager = train_tiny(config_, 2);
  EXPECT_EQ(eager.initial, exact.initial);
  EXPECT_LE(largest_difference(eager.losses, exact.losses), 0.02);
  EXPECT_NE(eager.losses, exact.losses);
  config_.plan.compiled = true;
  EXPECT_EQ(train_tiny(config_, 2).losses, eager.losses);
}

TEST_F(Sharding, StrategiesOnAMeshWithReplicasAndMatricesThatAreSharded) {
  const TinyRun one = train_tiny(config_, 1);
  for (const char* strategy :
       {"no_shard", "shard_optimizer", "hybrid_shard", "hybrid_shard_grad_op", "hybrid_shard_state"}) {
    config_.plan.strategy = strategy;
    config_.plan.mesh = "replicate=2,dp=2";
    EXPECT_LE(largest_difference(train_tiny(config_, 4).losses, one.losses), 1e-5) << strategy;
  }
  config_.plan.mesh = "dp=2,tp=2";
  for (const char* strategy : {"no_shard", "shard_optimizer"}) {
    config_.plan.strategy = strategy;
    EXPECT_LE(largest_difference(train_tiny(config_, 4).losses, one.losses), 1e-5) << strategy;
  }
}

TEST_F(Sharding, ReshardingToSomeRanksAfterForward) {
  const TinyRun one = train_tiny(config_, 1), all = train_tiny(config_, 4);
  config_.plan.reshard_after_forward = 2;
  for (const bool is_compiled : {false, true}) {
    config_.plan.compiled = is_compiled;
    const TinyRun four = train_tiny(config_, 4, [](Trainer& trainer) {
      const std::string units = nn::print_units(trainer.model(), {.parameters = false});
      EXPECT_NE(units.find("reshard to 2"), std::string::npos) << units;
    });
    EXPECT_EQ(four.losses, all.losses);
    EXPECT_LE(largest_difference(four.losses, one.losses), 1e-5);
  }
  run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    expect_error([&] { Trainer trainer(config_, group); }, {"reshard_after_forward = 2", "must divide the 3 ranks"});
  });
}

// Two blocks of a GPT of width 16: 3.3 k parameters each, of which the feed-forward part has 2.1 k, attention 1.1 k.
TEST_F(Sharding, UnitsAreMadeByTheRuleOfThatName) {
  const TinyRun one = train_tiny(config_, 1);
  for (const auto& [units, count] : {std::pair("coarse", 1u), std::pair("block", 3u), std::pair("fine", 7u),
                                     std::pair("parameters=2000", 3u), std::pair("bytes=1e9", 2u)}) {
    config_.plan.units = units;
    const TinyRun two = train_tiny(config_, 2, [&, expected = count](Trainer& trainer) {
      EXPECT_EQ(nn::units(trainer.model()).size(), expected);
    });
    EXPECT_LE(largest_difference(two.losses, one.losses), 1e-5) << units;
  }
}

}  // namespace
}  // namespace sherd::testing
