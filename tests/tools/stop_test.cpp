// How a run ends before its last step: by a signal that one rank notes, or because it has diverged. In thread-ranks
// here; as programs in stop_program_test.cpp.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include "nn/checkpoint/format/manifest.h"
#include "runtime/op/rows/ops.h"
#include "tests/tools/tiny_run.h"
#include "tools/train/exit_status.h"
#include "tools/train/run.h"
#include "tools/train/stop_signals.h"

namespace sherd::testing {

using namespace train;

namespace {

namespace fs = std::filesystem;
using Group = std::shared_ptr<ProcessGroup>;

class Stop : public ::testing::Test {
 protected:
  TempDir dir_, checkpoint_;
  std::string data_ = dir_.write("text.txt", tiny_text());
  TrainConfig config_ = tiny_config(data_);
};

TEST_F(Stop, AllRanksSaveAndEndAfterTheStepInWhichOneIsAsked) {
  config_.steps = 8;
  for (const int ranks : {1, 2, 3})
    for (const bool compile : {false, true}) {
      config_.plan.compiled = compile;
      config_.save.clear();
      const TinyRun whole = train_tiny(config_, ranks);
      const TempDir folder;
      TrainConfig config = config_;
      config.save = folder.path();
      run_ranks(ranks, [&](const Group& group) {
        Trainer trainer(config, group);
        int boundary = 0;
        const TrainSummary summary = trainer.run(
            [](const StepMetrics&) {}, [&] { return ++boundary == 3 && group->rank() == ranks - 1 ? SIGTERM : 0; });
        EXPECT_EQ(summary.stopped_by, SIGTERM);
        EXPECT_EQ(summary.steps, 3);
      });
      EXPECT_EQ(ckpt::read_manifest(folder.path()).step, 3);
      config.resume = folder.path();
      const TinyRun rest = train_tiny(config, ranks);
      EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end())) << ranks << " ranks";
      EXPECT_EQ(rest.final, whole.final) << ranks << " ranks";
    }
}

TEST_F(Stop, AllRanksSaveAfterTheStepInWhichOneIsAskedToAndGoOn) {
  config_.steps = 5;
  for (const int ranks : {1, 3}) {
    config_.save.clear();
    const TinyRun whole = train_tiny(config_, ranks);
    const TempDir folder;
    config_.save = folder.path();
    run_ranks(ranks, [&](const Group& group) {
      Trainer trainer(config_, group);
      int boundary = 0;
      const TrainSummary summary =
          trainer.run([](const StepMetrics&) {}, {}, [&] { return ++boundary == 2 && group->rank() == ranks - 1; });
      EXPECT_EQ(summary.stopped_by, 0);
      EXPECT_EQ(summary.steps, 5);
      EXPECT_EQ(values_of(trainer.model()), whole.final) << ranks << " ranks";
    });
    std::vector<std::int64_t> steps;
    for (const ckpt::SavePlace& save : ckpt::list_saves(folder.path())) steps.push_back(save.step);
    EXPECT_EQ(steps, (std::vector<std::int64_t>{5, 2}));
  }
}

TEST_F(Stop, AnEvaluationIsLeftAfterTheLastStepToo) {
  config_.steps = 2;
  config_.save = checkpoint_.path();
  config_.eval_every = 1;
  config_.eval_batches = 0;
  run_ranks(2, [&](const Group& group) {
    Trainer trainer(config_, group);
    int polls = 0;
    std::vector<bool> evaluated;
    const TrainSummary summary = trainer.run([&](const StepMetrics& m) { evaluated.push_back(m.val_loss.has_value()); },
                                             [&] { return ++polls > 1 ? SIGINT : 0; });
    EXPECT_EQ(summary.stopped_by, SIGINT);
    EXPECT_EQ(evaluated, std::vector<bool>{false});
    EXPECT_GT(trainer.data().num_validation_windows(config_.model.sequence), 2 * config_.batch) << "three batches";
  });
  EXPECT_EQ(ckpt::read_manifest(checkpoint_.path()).step, 1);
  TrainConfig last = config_;
  last.steps = 1;
  last.resume.clear();
  last.save = (checkpoint_ / "last");
  run_ranks(2, [&](const Group& group) {
    Trainer trainer(last, group);
    EXPECT_EQ(trainer.run([](const StepMetrics&) {}, [] { return SIGTERM; }).stopped_by, SIGTERM);
    EXPECT_FALSE(trainer.opened().state.owed_line.empty());
  });
  EXPECT_EQ(ckpt::read_manifest(last.save).step, 1);
  last.eval_batches = 1;
  last.save = checkpoint_ / "whole";
  run_ranks(2, [&](const Group& group) {  // nothing is left of a run that is asked when it has evaluated
    Trainer trainer(last, group);
    bool has_evaluated = false;
    const TrainSummary summary = trainer.run([&](const StepMetrics& m) { has_evaluated = m.val_loss.has_value(); },
                                             [&] { return has_evaluated ? SIGTERM : 0; });
    EXPECT_EQ(summary.stopped_by, 0);
  });
}

// The losses are those of a run that nobody has stopped; so is the metrics line, but for when it was written.
TEST_F(Stop, AnEvaluationThatWasLeftIsMadeFirstByTheResume) {
  config_.eval_every = 1;
  config_.eval_batches = 0;
  config_.steps = 2;
  std::map<std::int64_t, double> whole;
  run_ranks(2, [&](const Group& group) {
    Trainer(config_, group).run([&](const StepMetrics& m) {
      if (group->rank() == 0) whole[m.step] = m.val_loss.value();
    });
  });
  for (const std::int64_t stopped : {1, 2}) {  // the last one too
    const TempDir folder;
    TrainConfig config = config_;
    config.save = folder.path();
    run_ranks(2, [&](const Group& group) {
      Trainer trainer(config, group);
      std::int64_t step = 0;
      bool is_in_evaluation = false;
      trainer.run([&](const StepMetrics& m) { step = m.step; },
                  [&] { return std::exchange(is_in_evaluation, step + 1 >= stopped) ? SIGTERM : 0; });
      EXPECT_NE(trainer.opened().state.owed_line.find(fmt::format("\"step\":{}", stopped)), std::string::npos)
          << trainer.opened().state.owed_line;
    });
    config.resume = folder.path();
    config.save = folder / "on";
    for (const bool again : {true, false}) {  // a stop in the owed one leaves it owed
      if (!again) config.resume = config.save;
      run_ranks(2, [&](const Group& group) {
        Trainer trainer(config, group);
        std::vector<std::string> lines;
        trainer.opened().late.write_owed = [&](const std::string& line, std::int64_t step, double loss) {
          EXPECT_EQ(step, stopped);
          EXPECT_DOUBLE_EQ(loss, whole.at(step));
          lines.push_back(line);
        };
        std::map<std::int64_t, double> rest;
        trainer.run([&](const StepMetrics& m) { rest[m.step] = m.val_loss.value_or(-1); },
                    [&] { return again ? SIGTERM : 0; });
        EXPECT_EQ(trainer.opened().state.owed_line.empty(), !again);
        if (again || group->rank() != 0) return;
        ASSERT_EQ(lines.size(), 1u);
        EXPECT_NE(lines[0].find("\"val_loss\""), std::string::npos);
        EXPECT_EQ(rest.size(), static_cast<std::size_t>(2 - stopped));
        for (const auto& [step, loss] : rest) EXPECT_DOUBLE_EQ(loss, whole.at(step));
      });
    }
  }
}

TEST_F(Stop, ASaveThatFailsIsAStatusOfItsOwn) {
  config_.save = checkpoint_.path();
  fs::create_directories(checkpoint_ / "step-000001/rank-00000.safetensors.partial");
  run_ranks(2, [&](const Group& group) {
    Trainer trainer(config_, group);
    try {
      trainer.run([](const StepMetrics&) {}, [] { return SIGTERM; });
      ADD_FAILURE() << "it saved";
    } catch (const ExitError& error) {
      EXPECT_EQ(error.status(), kStoppedWithoutSave);
      for (const char* part : {"SIGTERM", "step 1", "could not save", "rank-00000.safetensors"})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << " is not in: " << error.what();
    }
  });
}

/// Trains until it diverges; the message, which must be the same on every rank.
std::string divergence_of(const TrainConfig& config, int ranks, const std::function<void(Trainer&)>& before,
                          std::vector<double>* losses = nullptr) {
  std::vector<std::string> messages(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](const Group& group) {
    Trainer trainer(config, group);
    before(trainer);
    try {
      trainer.run([&](const StepMetrics& m) {
        if (losses && group->rank() == 0) losses->push_back(m.loss);
      });
      ADD_FAILURE() << "it did not diverge";
    } catch (const ExitError& error) {
      EXPECT_EQ(error.status(), kDiverged);
      messages[static_cast<std::size_t>(group->rank())] = error.what();
    }
  });
  for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
  return messages[0];
}

void expect_parts(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const auto part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

TEST_F(Stop, ADivergedRunNamesStepAndModuleAndIsNeverSaved) {
  config_.steps = 6;
  config_.save_every = 2;
  for (const int ranks : {1, 2, 3})
    for (const bool compile : {false, true}) {
      const TempDir folder;
      config_.save = folder.path();
      config_.plan.compiled = compile;
      std::vector<double> losses;
      // A compiled step is recorded before the weight breaks, so that a replay has to notice.
      const std::string message = divergence_of(
          config_, ranks,
          [](Trainer& trainer) {
            trainer.train_step(0);
            const Tensor weight = trainer.model().parameter("blocks.1.mlp.up.weight").value().local();
            fill_into(weight.detach(), std::nan(""));
          },
          &losses);
      expect_parts(message,
                   {"diverged in step 1:", "loss is nan", "the output of \"blocks.1.mlp.up\"", "optimizer.lr"});
      EXPECT_EQ(losses.size(), 1u) << "the step itself is in the metrics";
      EXPECT_TRUE(fs::is_empty(folder.path())) << ranks << " ranks";
    }
}

TEST_F(Stop, ARunThatDivergesByItselfKeepsItsLastSave) {
  config_.steps = 40;
  config_.save_every = 1;
  config_.optimizer.lr = 1e18;
  config_.optimizer.clip = 0;
  for (const int ranks : {1, 2}) {
    const TempDir folder;
    config_.save = folder.path();
    std::vector<double> losses;
    const std::string message = divergence_of(config_, ranks, [](Trainer&) {}, &losses);
    ASSERT_GE(losses.size(), 2u);
    expect_parts(message, {fmt::format("diverged in step {}:", losses.size()), "the first value that is not finite"});
    EXPECT_EQ(ckpt::read_manifest(folder.path()).step, static_cast<std::int64_t>(losses.size()) - 1);
    for (std::size_t i = 0; i + 1 < losses.size(); ++i) EXPECT_TRUE(std::isfinite(losses[i])) << i;
  }
}

// Parameters that are broken give no step that could be taken; at a scale of 1 there is nothing left to try.
TEST_F(Stop, ALossScaleThatCannotBackOffAnyMoreIsDivergence) {
  config_.steps = 40;
  config_.plan.loss_scale = "dynamic";
  for (const int ranks : {1, 2})
    for (const bool compile : {false, true}) {
      config_.plan.compiled = compile;
      std::vector<double> losses;
      const std::string message = divergence_of(
          config_, ranks,
          [](Trainer& trainer) {
            const Tensor weight = trainer.model().parameter("blocks.1.mlp.up.weight").value().local();
            fill_into(weight.detach(), std::nan(""));
          },
          &losses);
      expect_parts(message, {"diverged in step 17:", "at a loss scale of 1 and after 17 skipped steps",
                             "the output of \"blocks.1.mlp.up\""});
      EXPECT_EQ(losses.size(), 17u) << "from 65536 to 1 it takes 16 halvings";
    }
}

TEST_F(Stop, SkippedStepsEndARunOnlyWhenThereAreManyInARow) {
  config_.plan.param_dtype = DType::f16;
  config_.plan.loss_scale = "1e30";  // overflows f16 in every step
  for (const int ranks : {1, 2}) {
    config_.steps = 8;
    std::vector<std::int64_t> skipped;
    run_ranks(ranks, [&](const Group& group) {
      Trainer trainer(config_, group);
      const Values before = values_of(trainer.model());
      const TrainSummary summary = trainer.run([&](const StepMetrics& m) {
        EXPECT_TRUE(std::isfinite(m.loss));
        EXPECT_FALSE(std::isfinite(m.grad_norm));
        EXPECT_EQ(m.loss_scale, static_cast<double>(1e30F));
        if (group->rank() == 0) skipped.push_back(m.skipped_steps);
      });
      EXPECT_EQ(values_of(trainer.model()), before);
      EXPECT_EQ(summary.skipped_steps, 8);
    });
    EXPECT_EQ(skipped, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
    skipped.clear();
    config_.steps = 40;
    expect_parts(divergence_of(config_, ranks, [](Trainer&) {}),
                 {"diverged in step 33:", "after 33 skipped steps", "the gradient of"});
  }
}

TEST(StopSignals, AWishToSaveIsNotedBeforeThem) {
  note_save_signals();
  ::raise(SIGUSR1);
  {
    const StopSignals signals;
    EXPECT_TRUE(StopSignals::take_save());
    EXPECT_FALSE(StopSignals::take_save());
  }
  ::raise(SIGUSR1);  // after the last step
  forget_save_signals();
  EXPECT_FALSE(StopSignals::take_save());
  struct sigaction action{};
  ::sigaction(SIGUSR1, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

TEST(StopSignals, NoteAndForget) {
  {
    const StopSignals outer;
    {
      const StopSignals inner;
      EXPECT_EQ(StopSignals::noted(), 0);
      ::raise(SIGTERM);
      ::raise(SIGTERM);
      EXPECT_EQ(StopSignals::noted(), SIGTERM);
    }
    ::raise(SIGINT);
    EXPECT_EQ(StopSignals::noted(), SIGINT);
    EXPECT_FALSE(StopSignals::take_save());
    ::raise(SIGUSR1);
    EXPECT_EQ(StopSignals::noted(), SIGINT);
    EXPECT_TRUE(StopSignals::take_save());
    EXPECT_FALSE(StopSignals::take_save());
    ::raise(SIGUSR1);
  }
  EXPECT_FALSE(StopSignals::take_save());
  EXPECT_EQ(StopSignals::noted(), 0);
  struct sigaction action{};
  ::sigaction(SIGTERM, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
  EXPECT_EXIT(
      {
        const StopSignals signals;
        ::raise(SIGINT);
        ::raise(SIGINT);
      },
      ::testing::KilledBySignal(SIGINT), "");
  EXPECT_EQ(signal_name(SIGINT), "SIGINT");
  EXPECT_EQ(signal_name(64 + 13), "signal 77");
}

}  // namespace
}  // namespace sherd::testing
