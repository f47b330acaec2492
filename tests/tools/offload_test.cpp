// `--offload`: its text, and runs of the trainer with it. Oracle: the same run without.
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/tools/tiny_run.h"
#include "tools/train/offload_flag.h"

namespace sherd::testing {
namespace {

TEST(OffloadFlag, SaysWhatAndWhere) {
  EXPECT_FALSE(parse_offload("none").optimizer);
  EXPECT_TRUE(parse_offload("optimizer").optimizer);
  EXPECT_EQ(parse_offload("optimizer").folder, "");
  EXPECT_EQ(parse_offload("optimizer:/a/b:c").folder, "/a/b:c");
  expect_error([] { parse_offload("optimiser"); }, {"none, optimizer or optimizer:DIR", "\"optimiser\""});
  expect_error([] { parse_offload("optimizer:"); }, {"folder after the colon is empty"});
  expect_error([] { parse_offload("none:/a"); }, {"none needs no folder"});
}

TEST(OffloadFlag, AFileForTheHostNoneForADeviceAndAnEighthOfALimit) {
  const OffloadChoice choice = parse_offload("optimizer:/x");
  EXPECT_EQ(offload_options(choice, Device::cpu(), 0).folder, "/x");
  EXPECT_EQ(offload_options(choice, Device::cpu(), 8 << 20).bytes_in_flight, 1 << 20);
  EXPECT_EQ(offload_options(choice, Device::cpu(), 1).bytes_in_flight, 4096);
  EXPECT_FALSE(offload_options(parse_offload("optimizer"), Device::cpu(), 0).folder.empty());
  EXPECT_TRUE(offload_options(parse_offload("optimizer"), Device{Device::Kind::cuda, 0}, 0).folder.empty());
}

class OffloadRuns : public ::testing::Test {
 protected:
  const TempDir dir_;
  TrainConfig config_ = tiny_config(dir_.write("text.txt", tiny_text()));
};

TEST_F(OffloadRuns, GiveTheBitsOfNone) {
  for (const int ranks : {1, 2})
    for (const bool compile : {false, true})
      for (const double clip : {0.0, 0.5}) {
        config_.compile = compile;
        config_.optimizer.clip = clip;
        config_.offload = "none";
        const TinyRun held = train_tiny(config_, ranks);
        config_.offload = "optimizer:" + dir_.path();
        const TinyRun offloaded = train_tiny(config_, ranks);
        SCOPED_TRACE(fmt::format("{} ranks, compile {}, clip {}", ranks, compile, clip));
        EXPECT_EQ(offloaded.losses, held.losses);
        EXPECT_EQ(offloaded.norms, held.norms);
        EXPECT_EQ(offloaded.final, held.final);
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
    config.offload = first ? "optimizer:" + dir_.path() : "none";
    train_tiny(config, 2);
    config.resume = config.save;
    config.steps = 6;
    config.offload = first ? "none" : "optimizer:" + dir_.path();
    const TinyRun rest = train_tiny(config, 2);
    EXPECT_EQ(rest.final, whole.final) << "offloaded first " << first;
  }
}

// Of 8 bytes of state per parameter beside 8 of parameters and gradients: what does not fit in memory fits without.
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
  config_.offload = "optimizer:" + dir_.path();
  EXPECT_EQ(train_tiny(config_, 1).losses, free.losses);
}

TEST_F(OffloadRuns, AFolderThatIsMissingIsRefusedOnEveryRank) {
  config_.offload = "optimizer:" + (dir_ / "missing");
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    expect_error([&] { Trainer trainer(config_, group); }, {"is not a folder", "missing"});
  });
}

}  // namespace
}  // namespace sherd::testing
