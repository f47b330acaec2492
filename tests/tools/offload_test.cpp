// `--offload`: its text, and runs of the trainer with it. Oracle: the same run without.
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>
#include <optional>

#include "nn/plan/check.h"
#include "runtime/memory/offload_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/tools/tiny_run.h"
#include "tools/train/exit_status.h"
#include "tools/train/predicted_peak.h"

namespace sherd::testing {

using namespace train;

namespace {

TEST(OffloadFlag, SaysWhatAndWhere) {
  EXPECT_FALSE(nn::Offload("none").optimizer());
  EXPECT_TRUE(nn::Offload("optimizer").optimizer());
  EXPECT_FALSE(nn::Offload("parameters").optimizer());
  EXPECT_TRUE(nn::Offload("parameters").parameters());
  EXPECT_FALSE(nn::Offload("parameters").gradients());
  const nn::Offload all = "all:/a/b:c";
  EXPECT_TRUE(all.optimizer() && all.parameters() && all.gradients());
  EXPECT_EQ(all.text(), "all:/a/b:c");
  expect_error([] { nn::Offload("optimiser"); }, {"none, optimizer, parameters or all", "\"optimiser\""});
  expect_error([] { nn::Offload("optimizer:"); }, {"folder after the colon is empty"});
  expect_error([] { nn::Offload("none:/a"); }, {"none needs no folder"});
}

TEST(OffloadFlag, F174_ABudgetIsSharedByStateAndShards) {
  const Device cpu = Device::cpu();
  EXPECT_EQ(nn::Offload("optimizer:/x").state_options(100, cpu, 0).bytes_in_memory, 100);
  EXPECT_EQ(nn::Offload("parameters:/x").shards(100, cpu, 0)->bytes_in_memory, 100);
  EXPECT_EQ(nn::Offload("all:/x").state_options(100, cpu, 0).bytes_in_memory, 50);
  EXPECT_EQ(nn::Offload("all:/x").shards(100, cpu, 0)->bytes_in_memory, 50);
  expect_error([] { nn::check_plan({.offload = "optimizer", .offload_keep = -1}); }, {"offload_keep", "-1"});
  expect_error([] { nn::check_plan({.offload_keep = 5}); }, {"offload_keep = 5", "offload = none"});
}

TEST(OffloadFlag, AFileForTheHostNoneForADeviceAndAnEighthOfALimit) {
  const nn::Offload choice = "optimizer:/x", anywhere = "optimizer";
  EXPECT_EQ(choice.state_options(0, Device::cpu(), 0).folder, "/x");
  EXPECT_EQ(choice.state_options(0, Device::cpu(), 8 << 20).bytes_in_flight, 1 << 20);
  EXPECT_EQ(choice.state_options(0, Device::cpu(), 1).bytes_in_flight, 4096);
  EXPECT_FALSE(anywhere.state_options(0, Device::cpu(), 0).folder.empty());
  EXPECT_TRUE(anywhere.state_options(0, Device::cuda(0), 0).folder.empty());
}

TEST(OffloadFlag, SaysWhetherActivationsLeaveAndForWhere) {
  EXPECT_FALSE(nn::OffloadActivations("none").any());
  const nn::OffloadActivations choice = "blocks";
  EXPECT_TRUE(choice.any());
  EXPECT_EQ(nn::OffloadActivations("blocks:/a/b:c").options(Device::cpu(), 0).folder, "/a/b:c");
  expect_error([] { nn::OffloadActivations("all"); }, {"none, blocks or blocks:DIR", "\"all\""});
  expect_error([] { nn::OffloadActivations("blocks:"); }, {"folder after the colon is empty"});
  expect_error([] { nn::OffloadActivations("none:/a"); }, {"none needs no folder"});
  EXPECT_FALSE(choice.options(Device::cpu(), 0).folder.empty());
  EXPECT_TRUE(choice.options(Device::cuda(0), 0).folder.empty());
  EXPECT_EQ(choice.options(Device::cpu(), 8 << 20).bytes_in_flight, 1 << 20);
  EXPECT_EQ(choice.options(Device::cpu(), 1).bytes_in_flight, 8192);
}

class OffloadRuns : public ::testing::Test {
 protected:
  const TempDir dir_;
  TrainConfig config_ = tiny_config(dir_.write("text.txt", tiny_text()));
};

TEST_F(OffloadRuns, F174_GiveTheBitsOfNoneWhateverStays) {
  const TinyRun held = train_tiny(config_, 2);
  config_.plan.offload = "all:" + dir_.path();
  for (const std::int64_t kept : {10'000, 40'000, 1'000'000}) {
    config_.plan.offload_keep = kept;
    const TinyRun offloaded = train_tiny(config_, 2);
    EXPECT_EQ(offloaded.losses, held.losses) << kept;
    EXPECT_EQ(offloaded.final, held.final) << kept;
  }
}

TEST_F(OffloadRuns, F95_GiveTheBitsOfNone) {
  for (const int ranks : {1, 2})
    for (const bool compile : {false, true})
      for (const double clip : {0.0, 0.5}) {
        config_.plan.compiled = compile;
        config_.optimizer.clip = clip;
        config_.plan.offload = "none";
        const TinyRun held = train_tiny(config_, ranks);
        for (const std::string what : {"optimizer:", "parameters:", "all:"}) {
          config_.plan.offload = what + dir_.path();
          const TinyRun offloaded = train_tiny(config_, ranks);
          SCOPED_TRACE(fmt::format("{} {} ranks, compile {}, clip {}", what, ranks, compile, clip));
          EXPECT_EQ(offloaded.losses, held.losses);
          EXPECT_EQ(offloaded.norms, held.norms);
          EXPECT_EQ(offloaded.final, held.final);
        }
      }
}

// With tensor parallelism, a loss scale, recomputed blocks, and micro-batches that add up.
TEST_F(OffloadRuns, GiveTheBitsOfNoneBesideOtherSettings) {
  const auto expect_same = [&](TrainConfig config, int ranks) {
    SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, print(config.plan)));
    config.plan.offload = "none";
    const TinyRun held = train_tiny(config, ranks);
    for (const std::string what : {"parameters:", "all:"}) {
      config.plan.offload = what + dir_.path();
      const TinyRun offloaded = train_tiny(config, ranks);
      EXPECT_EQ(offloaded.losses, held.losses) << what;
      EXPECT_EQ(offloaded.norms, held.norms) << what;
      EXPECT_EQ(offloaded.final, held.final) << what;
    }
  };
  for (const bool compile : {false, true}) {
    TrainConfig config = config_;
    config.plan.compiled = compile;
    config.plan.mesh = "dp=2,tp=2";
    expect_same(config, 4);
    config.plan.mesh = "";
    config.plan.param_dtype = DType::f16;
    expect_same(config, 2);
    config.plan.param_dtype = DType::f32;
    config.plan.recompute = "full";
    expect_same(config, 1);
    expect_same(config, 2);
    config.plan.micro_batches = 2;
    config.plan.accumulate_shards = true;
    expect_same(config, 2);
  }
}

TEST_F(OffloadRuns, ResumeWithItOrWithoutBitForBit) {
  config_.steps = 6;
  const TinyRun whole = train_tiny(config_, 2);
  for (const bool first : {false, true}) {
    TrainConfig config = config_;
    config.save = dir_ / fmt::format("saves-{}", first);
    config.save_every = 3;
    config.steps = 3;
    config.optimizer.decay_steps = config_.optimizer.decay_steps;
    config.plan.offload = first ? "optimizer:" + dir_.path() : "none";
    train_tiny(config, 2);
    config.resume = config.save;
    config.steps = 6;
    config.plan.offload = first ? "none" : "optimizer:" + dir_.path();
    const TinyRun rest = train_tiny(config, 2);
    EXPECT_EQ(rest.final, whole.final) << "offloaded first " << first;
  }
}

// State takes 8 bytes per parameter, beside 8 of parameters and gradients: a run that does not fit with it in memory
// fits without.
TEST_F(OffloadRuns, TrainWithinALimitThatTheStateInMemoryExceeds) {
  config_.model.width = 128;
  config_.model.layers = 3;
  config_.model.sequence = 8;
  config_.batch = 1;
  config_.steps = 3;
  resolve(config_);
  std::int64_t parameters = 0;
  const TinyRun free = train_tiny(config_, 1, [&](Trainer& t) { parameters = t.model().num_parameters(); });
  config_.memory_limit = 12 * parameters;
  expect_error([&] { train_tiny(config_, 1); }, {"optimizer"});
  config_.plan.offload = "optimizer:" + dir_.path();
  EXPECT_EQ(train_tiny(config_, 1).losses, free.losses);
}

TEST_F(OffloadRuns, ActivationsLeaveAndTheBitsStay) {
  config_.model.layers = 6;
  config_.model.dropout = 0.1;
  for (const int ranks : {1, 2})
    for (const bool compile : {false, true})
      for (const char* recompute : {"none", "selective", "full"}) {
        SCOPED_TRACE(fmt::format("{} ranks, compile {}, recompute {}", ranks, compile, recompute));
        config_.plan.compiled = compile;
        config_.plan.recompute = recompute;
        config_.plan.offload_activations = "none";
        config_.plan.offload = "none";
        config_.memory_limit = 0;
        const TinyRun held = train_tiny(config_, ranks);
        config_.plan.offload_activations = "blocks:" + dir_.path();
        config_.plan.offload = compile ? "none" : "optimizer:" + dir_.path();
        config_.memory_limit = 2'000'000;  // an eighth is in flight
        const TinyRun offloaded = train_tiny(config_, ranks);
        EXPECT_EQ(offloaded.losses, held.losses);
        EXPECT_EQ(offloaded.norms, held.norms);
        EXPECT_EQ(offloaded.final, held.final);
        EXPECT_EQ(offloaded.val_loss, held.val_loss);
      }
}

TEST_F(OffloadRuns, ALimitThatActivationsInMemoryExceed) {
  config_.model.layers = 8;
  config_.model.sequence = 64;
  config_.batch = 12;
  config_.steps = 3;
  config_.plan.recompute = "full";
  resolve(config_);
  const TinyRun free = train_tiny(config_, 1);
  config_.memory_limit = 0;
  const std::int64_t block = 4 * config_.batch * config_.model.sequence * config_.model.width;
  const std::int64_t all = predict_peak(config_, 0, 1, kTinyVocabulary).bytes;
  config_.memory_limit = all - 2 * block;
  expect_error([&] { train_tiny(config_, 1); }, {"activations"});
  config_.plan.offload_activations = "blocks:" + dir_.path();
  EXPECT_EQ(train_tiny(config_, 1).losses, free.losses);
}

TEST_F(OffloadRuns, AFolderForActivationsThatIsMissingIsRefusedOnEveryRank) {
  config_.plan.offload_activations = "blocks:" + (dir_ / "missing");
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    expect_error([&] { Trainer trainer(config_, group); }, {"is not a folder", "missing"});
    try {
      const Trainer trainer(config_, group);
    } catch (const ExitError& error) {
      ADD_FAILURE() << "a disk that is not there may be at the next start: " << error.message();
    } catch (const Error&) {}
  });
}

TEST_F(OffloadRuns, AFolderThatIsMissingOrTakesNoFilesIsRefusedOnEveryRank) {
  for (const std::string what : {"optimizer:", "parameters:", "all:"})
    run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      TrainConfig config = config_;
      config.plan.offload = what + (dir_ / "missing");
      expect_error([&] { Trainer trainer(config, group); }, {"is not a folder", "missing"});
      config.plan.offload = what + "/proc/self";
      expect_error([&] { Trainer trainer(config, group); }, {"cannot make a file in the folder \"/proc/self\""});
    });
}

// Its blocks are taken when the model is made, so a run that has begun does not end by it.
TEST_F(OffloadRuns, AFullDiskIsRefusedBeforeTheFirstStep) {
  config_.model.width = 128;
  config_.model.layers = 4;
  resolve(config_);
  config_.plan.offload = "all:" + dir_.path();
  const FileSizeLimit limit(1 << 20);
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    expect_error([&] { Trainer trainer(config_, group); }, {"has no room for", "that are offloaded", dir_.path()});
  });
}

TEST_F(OffloadRuns, GoOnWhenTheFolderVanishes) {
  config_.plan.offload = "none";
  const TinyRun held = train_tiny(config_, 1);
  const TempDir other;
  const std::string folder = other / "scratch";
  std::filesystem::create_directory(folder);
  config_.plan.offload = "all:" + folder;
  const TinyRun run = train_tiny(config_, 1, [&](Trainer&) { std::filesystem::remove_all(folder); });
  EXPECT_EQ(run.losses, held.losses);
  EXPECT_EQ(run.final, held.final);
}

// A disk on which a step takes many times as long: nothing waits for it wrongly, and nothing is lost.
TEST_F(OffloadRuns, GiveTheBitsOfNoneOnASlowDisk) {
  config_.steps = 3;
  for (const double clip : {1.0, 0.0}) {
    config_.optimizer.clip = clip;
    config_.plan.offload = "none";
    const TinyRun expected = train_tiny(config_, 2);
    config_.plan.offload = "all:" + dir_.path();
    const TinyRun run = train_tiny(config_, 2, [&](Trainer& trainer) {
      const nn::Parameter& p = *trainer.model().parameters()[0];
      OffloadFile::of(p.sharded_value().local().storage()->address())->set_rate(2e6);
    });
    EXPECT_EQ(run.losses, expected.losses);
    EXPECT_EQ(run.final, expected.final);
  }
}

// A disk that fails: the run ends by an error that names the folder, on every rank, and what was saved is whole.
TEST_F(OffloadRuns, ADiskThatFailsEndsTheRunByAnError) {
  config_.steps = 20;
  config_.plan.offload = "all:" + dir_.path();
  config_.save = dir_ / "saves";
  config_.save_every = 1;
  std::mutex mutex;
  std::vector<std::string> errors;
  std::optional<FileSizeLimit> limit;
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Trainer trainer(config_, group);
    try {
      trainer.run([&](const StepMetrics& metrics) {
        const std::lock_guard lock(mutex);
        if (metrics.step == 3 && !limit) limit.emplace(512);
      });
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      errors.push_back(error.what());
    }
  });
  limit.reset();
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_TRUE(errors[0].find(dir_.path()) != errors[0].npos || errors[1].find(dir_.path()) != errors[1].npos)
      << errors[0] << errors[1];
  config_.resume = config_.save;
  config_.steps = 5;
  const TinyRun resumed = train_tiny(config_, 2);
  config_.resume = config_.save = "";
  config_.save_every = 0;
  config_.plan.offload = "none";
  EXPECT_EQ(train_tiny(config_, 2).final, resumed.final);
}

TEST_F(OffloadRuns, WhatDoesNotGoWithItIsNamed) {
  config_.plan.offload = "all";
  config_.plan.fully_shard = false;
  expect_error([&] { nn::check_plan(config_.plan); }, {"offload = all", "leave fully_shard on"});
  config_.plan.fully_shard = true;
  config_.plan.strategy = "hybrid_shard_state";
  expect_error([&] { nn::check_plan(config_.plan); },
               {"offload = all with strategy = hybrid_shard_state", "hybrid_shard"});
  config_.plan.strategy = "full_shard";
  config_.plan.gather = "int8";
  expect_error([&] { nn::check_plan(config_.plan); }, {"offload = all with gather = int8", "leave one of them out"});
}

}  // namespace
}  // namespace sherd::testing
