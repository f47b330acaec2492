// `--save-async` in a run: the saves are those of a run that waits for them, bit for bit, eager and captured; a save in
// flight is finished when the run ends, whichever way; a disk that refuses ends it by name and costs no other save.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include "nn/checkpoint/format/saves.h"
#include "nn/checkpoint/load/checkpoint_reader.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/tools/program_test.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;
using Group = std::shared_ptr<ProcessGroup>;
using Files = std::map<std::string, std::string>;

class SaveAsync : public ProgramTest {
 protected:
  SaveAsync() {
    config_.steps = 9;
    config_.save_every = 2;
    config_.keep = 100;
  }
  TrainConfig saving_to(const std::string& folder, bool is_async) const {
    TrainConfig config = config_;
    config.save = folder;
    config.save_async = is_async;
    return config;
  }
  /// The tensors of each save, as files: manifests differ in the name of the run and in its config.
  static Files tensors_in(const std::string& folder) {
    Files files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::ostringstream text;
      text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      files[fs::relative(entry.path(), folder).string()] = text.str();
    }
    return files;
  }
  static std::vector<std::int64_t> steps_in(const std::string& folder) {
    std::vector<std::int64_t> steps;
    for (const ckpt::SavePlace& save : ckpt::list_saves(folder)) {
      ckpt::CheckpointReader(save.folder).verify();
      steps.push_back(save.step);
    }
    return steps;
  }
  using Steps = std::vector<std::int64_t>;
  TrainConfig config_ = tiny_config(data_);
};

TEST_F(SaveAsync, SavesAreThoseOfARunThatWaits) {
  int variant = 0;
  for (const int ranks : {1, 2, 3})
    for (const bool compile : {false, true}) {
      config_.plan.compiled = compile;
      const std::string waited = dir_ / fmt::format("waited-{}", ++variant),
                        beside = dir_ / fmt::format("b-{}", variant);
      const TinyRun first = train_tiny(saving_to(waited, false), ranks);
      const TinyRun second = train_tiny(saving_to(beside, true), ranks);
      EXPECT_EQ(first.losses, second.losses);
      EXPECT_EQ(first.final, second.final);
      EXPECT_EQ(steps_in(beside), (Steps{9, 8, 6, 4, 2}));
      const Files expected = tensors_in(waited);
      EXPECT_EQ(expected.size(), 5u * static_cast<std::size_t>(ranks));
      EXPECT_EQ(tensors_in(beside), expected) << ranks << " ranks, " << (compile ? "captured" : "eager");
    }
}

TEST_F(SaveAsync, OffloadedStateIsSavedToo) {
  config_.plan.offload = "optimizer:" + dir_.path();
  const std::string waited = dir_ / "waited", beside = dir_ / "beside";
  for (const double clip : {1.0, 0.0}) {
    config_.optimizer.clip = clip;
    fs::remove_all(waited), fs::remove_all(beside);
    train_tiny(saving_to(waited, false), 2);
    train_tiny(saving_to(beside, true), 2);
    EXPECT_EQ(tensors_in(beside), tensors_in(waited));
  }
}

TEST_F(SaveAsync, ASignalFinishesWhatIsInFlight) {
  for (const int ranks : {1, 3}) {
    const std::string folder = dir_ / fmt::format("signal-{}", ranks);
    run_ranks(ranks, [&](const Group& group) {
      Trainer trainer(saving_to(folder, true), group);
      int boundary = 0;
      const TrainSummary summary = trainer.run(
          [](const StepMetrics&) {}, [&] { return ++boundary == 5 && group->rank() == ranks - 1 ? SIGTERM : 0; });
      EXPECT_EQ(summary.stopped_by, SIGTERM);
      ASSERT_TRUE(summary.saves);
      EXPECT_EQ(summary.saves->saves, 3);
      EXPECT_GT(summary.saves->bytes, 0);
    });
    EXPECT_EQ(steps_in(folder), (Steps{5, 4, 2}));
  }
}

// Step 3 is not finite, and one boundary has come since the save of step 2: all have written it at best, and nobody has
// committed it. A run that did not wait for it would go back to the save before.
TEST_F(SaveAsync, ARunThatGoesBackFinishesItFirst) {
  config_.on_nonfinite = "rollback";
  const std::string waited = dir_ / "waited", beside = dir_ / "beside";
  for (const bool is_async : {false, true})
    run_ranks(2, [&](const Group& group) {
      Trainer trainer(saving_to(is_async ? beside : waited, is_async), group);
      trainer.model()
          .parameter("blocks.1.mlp.up.weight")
          .on_grad_accumulated([is_broken = group->rank() == 0, pass = 0](Slot& slot) mutable {
            if (++pass == 3 && is_broken)
              fill_into(slot.grad().local().detach(), std::numeric_limits<double>::quiet_NaN());
          });
      Steps steps;
      const TrainSummary summary = trainer.run([&](const StepMetrics& metrics) { steps.push_back(metrics.step); });
      EXPECT_EQ(summary.rollbacks, 1);
      EXPECT_EQ(steps, (Steps{1, 2, 3, 3, 4, 5, 6, 7, 8, 9}));
    });
  EXPECT_EQ(steps_in(beside), (Steps{9, 8, 6, 4, 2, 0}));
  EXPECT_EQ(tensors_in(beside), tensors_in(waited));
}

TEST_F(SaveAsync, ADiskThatRefusesEndsTheRunByNameAndKeepsTheSavesBefore) {
  const std::string folder = dir_ / "checkpoint";
  // A folder in the place of rank 1's file, and something in it: leftovers of killed saves are removed.
  dir_.write("checkpoint/step-000006/rank-00001.safetensors.partial/x", "");
  run_ranks(3, [&](const Group& group) {
    Trainer trainer(saving_to(folder, true), group);
    std::int64_t last = 0;
    expect_error([&] { trainer.run([&](const StepMetrics& m) { last = m.step; }); },
                 {"the save \"step-000006\" has failed, those before it stay", "rank-00001.safetensors"});
    EXPECT_GE(last, 6);
  });
  EXPECT_EQ(steps_in(folder), (Steps{4, 2}));
}

TEST_F(SaveAsync, ProgramsTellWhatSavesHaveCost) {
  const std::string folder = dir_ / "checkpoint", metrics = dir_ / "metrics.jsonl";
  const ProgramEnd end = train(2, {"--save", folder, "--save-every", "2", "--save-async", "true", "--steps", "8",
                                   "--keep", "9", "--metrics", metrics});
  ASSERT_EQ(end.status, 0) << end.err;
  expect_within(end.out, {"saves           4 beside training, ", "copied before they changed"});
  EXPECT_EQ(steps_in(folder), (Steps{8, 6, 4, 2}));
  int beside = 0;
  std::istringstream lines(dir_.read("metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    if (!object.contains("save")) continue;
    ++beside;
    EXPECT_GE(object["save"]["copied_bytes"], 0);
    EXPECT_GE(object["save"]["seconds"], 0);
  }
  EXPECT_GE(beside, 3) << "the step after each save but the last";
  expect_within(train(1, {"--save-async", "true"}).err, {"save_async", "--save DIR"});
  const ProgramEnd limited = train(1, {"--save", dir_ / "small", "--save-async", "true", "--memory-limit", "130000"});
  EXPECT_EQ(limited.status, kUsage);
}

// The memory for copies is in the account, and in the prediction of a run's peak.
TEST_F(SaveAsync, MemoryIsAccounted) {
  std::int64_t with = 0, without = 0;
  for (const bool is_async : {true, false})
    run_ranks(1, [&](const Group& group) {
      Trainer trainer(saving_to(dir_ / (is_async ? "a" : "b"), is_async), group);
      const TrainSummary summary = trainer.run([](const StepMetrics&) {});
      (is_async ? with : without) = summary.peak_bytes[static_cast<std::size_t>(MemoryCategory::communication)];
    });
  EXPECT_EQ(without, 0);
  EXPECT_GT(with, 0);
}

}  // namespace
}  // namespace sherd::testing
