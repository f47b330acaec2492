// What counts as divergence, and how a run goes on after it. Oracles: verdicts by hand; runs that make the same updates
// one by one.
#include "tools/train/divergence.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include <gtest/gtest.h>

#include "nn/checkpoint/format/manifest.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/tools/tiny_run.h"
#include "tools/train/exit_status.h"
#include "tools/train/rollback.h"
#include "tools/train/skipped_batches.h"

namespace sherd::testing {

using namespace train;

namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Verdict = DivergenceWatch::Verdict;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

StepMetrics step(double loss, double norm) {
  StepMetrics metrics;
  metrics.loss = loss;
  metrics.grad_norm = norm;
  return metrics;
}

TEST(Divergence, IsWhatIsNotFinite) {
  DivergenceWatch watch({});
  EXPECT_EQ(watch.judge(step(1, 1)), Verdict::good);
  EXPECT_EQ(watch.judge(step(kNan, 1)), Verdict::not_finite);
  EXPECT_EQ(watch.judge(step(1, kInf)), Verdict::not_finite);
  EXPECT_EQ(watch.judge(step(1e30, 1)), Verdict::good) << "no spike unless it is asked for";
}

TEST(Divergence, SkippedStepsAreCountedInARow) {
  DivergenceWatch watch({.skips = true});
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kMostSkips; ++i) EXPECT_EQ(watch.judge(step(kNan, kNan)), Verdict::skipped) << i;
    EXPECT_EQ(watch.judge(step(1, 1)), Verdict::good);
  }
  EXPECT_EQ(watch.judge(step(kNan, 1)), Verdict::not_finite) << "its update is made";
  for (int i = 0; i < kMostSkips; ++i) EXPECT_EQ(watch.judge(step(1, kInf)), Verdict::skipped) << i;
  EXPECT_EQ(watch.judge(step(1, kInf)), Verdict::not_finite);
  EXPECT_NE(watch.describe(step(1, kInf), Verdict::not_finite).what.find("33 skipped steps in a row"),
            std::string::npos);
}

TEST(Divergence, ASpikeIsMeasuredInMedianDeviations) {
  // Losses 1.0, 1.1, ..., 2.9: with 20 of them the upper median is 2.0, and the deviations' is 0.5.
  DivergenceWatch watch({.spike = 4});
  for (int i = 0; i < 19; ++i) EXPECT_EQ(watch.judge(step(1 + 0.1 * i, 1)), Verdict::good);
  EXPECT_EQ(watch.judge(step(1e6, 1)), Verdict::good) << "too few to know what is usual";
  watch.forget();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(watch.judge(step(1 + 0.1 * i, 1)), Verdict::good);
  EXPECT_EQ(watch.judge(step(4.05, 1)), Verdict::spike);
  EXPECT_EQ(watch.judge(step(4.05, 1)), Verdict::spike) << "a spike is nothing usual";
  EXPECT_EQ(watch.judge(step(3.95, 1)), Verdict::good);
  DivergenceWatch flat({.spike = 4});
  for (int i = 0; i < 40; ++i) EXPECT_EQ(flat.judge(step(2, 1)), Verdict::good);
  EXPECT_EQ(flat.judge(step(2.007, 1)), Verdict::good) << "the deviation counts as 0.1 % at least";
  EXPECT_EQ(flat.judge(step(2.009, 1)), Verdict::spike);
}

TEST(Divergence, WhatIsKnownOfTheLastStepsIsTextThatKeepsItsBits) {
  const DivergenceWatch::History known{.skips_in_a_row = 7,
                                       .losses = {1.0 / 3, 0.1 + 0.2, -0.0, 5e-324, 1.7976931348623157e308, 2.0}};
  const DivergenceWatch::History read = watch_history_from_text(to_text(known), "a save");
  EXPECT_EQ(read.skips_in_a_row, 7);
  EXPECT_EQ(read.losses, known.losses);
  EXPECT_TRUE(std::signbit(read.losses[2]));
  EXPECT_TRUE(watch_history_from_text(to_text(DivergenceWatch::History{}), "a save").losses.empty());
  for (const char* text : {"", "7", "{}", "{\"losses\":[1.5]}", "{\"skips_in_a_row\":0,\"losses\":[null]}",
                           "{\"skips_in_a_row\":-1,\"losses\":[]}", "{\"skips_in_a_row\":33,\"losses\":[]}",
                           "{\"skips_in_a_row\":1e300,\"losses\":[]}", "{\"skips_in_a_row\":true,\"losses\":[]}"})
    expect_error([&] { watch_history_from_text(text, "the save"); }, {"the save", "the last steps"});
}

TEST(SkippedBatches, StepsTakeTheOthersInOrder) {
  SkippedBatches skipped;
  EXPECT_EQ(skipped.batch_of(7), 7);
  skipped.skip_batch_of(3);
  skipped.skip_batch_of(3);  // that is batch 4 now
  skipped.skip_batch_of(0);
  EXPECT_EQ(skipped.text(), "0,3,4");
  const SkippedBatches read(skipped.text(), "a save");
  for (const auto& [step, batch] : {std::pair(0, 1), {1, 2}, {2, 5}, {3, 6}}) EXPECT_EQ(read.batch_of(step), batch);
  EXPECT_EQ(SkippedBatches("", "a save").count(), 0u);
  for (const char* text : {"x", "1,", ",1", "1,,2", "-1", "1;2", "99999999999999999999"})
    expect_error([&] { SkippedBatches(text, "the save"); }, {"the save", text});
}

class AfterDivergence : public ::testing::Test {
 protected:
  AfterDivergence() {
    config_.steps = 5;
    config_.optimizer.warmup = 0;
    config_.optimizer.min_lr = config_.optimizer.lr;  // so that an update depends on its batch alone
  }
  /// The parameters after updates by these batches.
  Values after(std::initializer_list<std::int64_t> batches, int ranks) const {
    TrainConfig config = config_;
    config.save.clear();
    config.save_every = 0;
    config.on_nonfinite = "stop";
    Values values;
    run_ranks(ranks, [&](const Group& group) {
      Trainer trainer(config, group);
      for (const std::int64_t batch : batches) (void)trainer.train_step(batch);
      Values own = values_of(trainer.model());
      if (group->rank() == 0) values = std::move(own);
    });
    return values;
  }
  /// Makes the gradient of one rank NaN in its `broken`-th backward pass, counted from 0.
  static void break_gradient(Trainer& trainer, int broken) {
    trainer.model()
        .parameter("blocks.1.mlp.up.weight")
        .on_grad_accumulated([&trainer, broken, pass = 0](Slot& slot) mutable {
          if (pass++ == broken && trainer.group().rank() == 0) fill_into(slot.grad().local().detach(), kNan);
        });
  }
  /// Makes the loss of the step after step `last` a spike, once.
  static Trainer::StepObserver spike_after(Trainer& trainer, std::int64_t last) {
    return [&trainer, last, is_broken = false](const StepMetrics& metrics) mutable {
      if (metrics.step != last || std::exchange(is_broken, true)) return;
      for (nn::Parameter* p : trainer.model().parameters()) {
        const Tensor values = p->value().local().detach();
        copy_into(values, mul(values, 30.0));
      }
    };
  }
  TempDir dir_, folder_;
  TrainConfig config_ = tiny_config(dir_.write("text.txt", tiny_text()));
};

TEST_F(AfterDivergence, AStepIsSkippedOnAllRanksAndCounted) {
  config_.on_nonfinite = "skip";
  config_.save = folder_.path();
  for (const int ranks : {1, 2}) {
    const Values expected = after({0, 1, 3, 4}, ranks);
    run_ranks(ranks, [&](const Group& group) {
      Trainer trainer(config_, group);
      break_gradient(trainer, 2);
      std::vector<std::int64_t> skipped;
      const TrainSummary summary =
          trainer.run([&](const StepMetrics& metrics) { skipped.push_back(metrics.skipped_steps); });
      EXPECT_EQ(skipped, (std::vector<std::int64_t>{0, 0, 1, 1, 1}));
      EXPECT_EQ(summary.skipped_steps, 1);
      EXPECT_EQ(values_of(trainer.model()), expected) << ranks << " ranks";
    });
    TrainConfig more = config_;
    more.resume = folder_.path();
    more.steps = 6;
    run_ranks(ranks, [&](const Group& group) {
      EXPECT_EQ(Trainer(more, group).run([](const StepMetrics&) {}).skipped_steps, 1) << "those before a resume too";
    });
    std::filesystem::remove_all(folder_.path());
  }
}

// Updates within backward would be made before anybody knows.
TEST_F(AfterDivergence, AStepIsSkippedWhereStateIsOffloadedAndNothingIsClipped) {
  config_.on_nonfinite = "skip";
  config_.plan.offload = "optimizer";
  config_.optimizer.clip = 0;
  const Values expected = after({0, 1, 3, 4}, 2);
  run_ranks(2, [&](const Group& group) {
    Trainer trainer(config_, group);
    break_gradient(trainer, 2);
    EXPECT_EQ(trainer.run([](const StepMetrics&) {}).skipped_steps, 1);
    EXPECT_EQ(values_of(trainer.model()), expected);
  });
}

TEST_F(AfterDivergence, SavesThatARunHasLeftBehindAreNoneToGoBackTo) {
  config_.save = folder_.path();
  config_.save_every = 1;
  train_tiny(config_, 2);
  const Values expected = after({0, 1, 2, 4, 5}, 2);
  config_.resume = folder_.path() + "/step-000003";
  config_.overwrite = true;
  config_.on_nonfinite = "rollback";
  config_.save_every = 0;
  run_ranks(2, [&](const Group& group) {
    Trainer trainer(config_, group);
    break_gradient(trainer, 0);
    trainer.run([](const StepMetrics&) {});
    EXPECT_EQ(values_of(trainer.model()), expected) << "from step 3 on, not from step 5 of before";
  });
}

TEST_F(AfterDivergence, ABitThatFlipsEndsTheRunBeforeItIsSaved) {
  config_.plan.strategy = "no_shard";
  config_.save = folder_.path();
  config_.save_every = 2;
  run_ranks(3, [&](const Group& group) {
    Trainer trainer(config_, group);
    const auto flip = [&](const StepMetrics& metrics) {
      if (metrics.step != 3 || group->rank() != 1) return;
      const Tensor weight = trainer.model().parameter("blocks.1.mlp.up.weight").value().local().detach();
      copy_into(weight, mul(weight, 1.0 + 1e-6));
    };
    expect_error([&] { trainer.run(flip); }, {"replicas differ", " on ranks 0, 2; ", " on rank 1; "});
  });
  EXPECT_EQ(ckpt::read_manifest(folder_.path()).step, 2);
}

TEST_F(AfterDivergence, ARunGoesBackToItsLastSaveAndOnWithoutTheBatch) {
  config_.on_nonfinite = "rollback";
  config_.save_every = 2;
  for (const int ranks : {1, 2})
    for (const bool compile : {false, true}) {
      const TempDir folder;
      config_.save = folder.path();
      config_.plan.compiled = compile;
      const Values expected = after({0, 1, 2, 4, 5}, ranks);
      run_ranks(ranks, [&](const Group& group) {
        Trainer trainer(config_, group);
        std::vector<std::int64_t> steps;
        bool is_broken = false;
        const TrainSummary summary = trainer.run([&](const StepMetrics& metrics) {
          steps.push_back(metrics.step);
          if (metrics.step != 3 || std::exchange(is_broken, true)) return;
          fill_into(trainer.model().parameter("blocks.1.mlp.up.weight").value().local().detach(), kNan);
        });
        EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 2, 3, 4, 3, 4, 5}));
        EXPECT_EQ(summary.rollbacks, 1);
        EXPECT_EQ(summary.steps, 5);
        EXPECT_EQ(values_of(trainer.model()), expected) << ranks << " ranks";
      });
      // What was left out is in the save: a run that goes on from it takes the same batches.
      TrainConfig more = config_;
      more.resume = folder.path();
      more.steps = 6;
      EXPECT_EQ(train_tiny(more, ranks).final, after({0, 1, 2, 4, 5, 6}, ranks));
    }
}

TEST_F(AfterDivergence, BeforeTheFirstSaveItGoesBackToTheStart) {
  config_.on_nonfinite = "rollback";
  config_.save = folder_.path();
  const Values expected = after({0, 2, 3, 4, 5}, 2);
  run_ranks(2, [&](const Group& group) {
    Trainer trainer(config_, group);
    break_gradient(trainer, 1);
    trainer.run([](const StepMetrics&) {});
    EXPECT_EQ(values_of(trainer.model()), expected);
  });
}

TEST_F(AfterDivergence, ARunThatComesBackToOneSaveAgainAndAgainEnds) {
  config_.on_nonfinite = "rollback";
  config_.save = folder_.path();
  config_.save_every = 1;
  run_ranks(2, [&](const Group& group) {
    Trainer trainer(config_, group);
    trainer.model().parameter("blocks.1.mlp.up.weight").on_grad_accumulated([pass = 0](Slot& slot) mutable {
      if (pass++ >= 2) fill_into(slot.grad().local().detach(), kNan);
    });
    std::vector<std::int64_t> steps;
    try {
      trainer.run([&](const StepMetrics& metrics) { steps.push_back(metrics.step); });
      ADD_FAILURE() << "it went on";
    } catch (const ExitError& error) {
      EXPECT_EQ(error.status(), kDiverged);
      EXPECT_NE(std::string(error.what()).find("diverged in step 3"), std::string::npos) << error.what();
    }
    EXPECT_EQ(steps.size(), 2u + 1 + kMostRollbacks);
  });
  EXPECT_EQ(ckpt::read_manifest(folder_.path()).step, 2);
}

TEST_F(AfterDivergence, ASpikeOfTheLossEndsTheRunOrSendsItBack) {
  config_.steps = 30;
  config_.spike = 50;
  config_.save_every = 10;
  for (const char* how : {"stop", "rollback"}) {
    const TempDir folder;
    config_.save = folder.path();
    config_.on_nonfinite = how;
    run_ranks(2, [&](const Group& group) {
      Trainer trainer(config_, group);
      try {
        const TrainSummary summary = trainer.run(spike_after(trainer, 25));
        EXPECT_STREQ(how, "rollback");
        EXPECT_EQ(summary.rollbacks, 1);
        EXPECT_EQ(summary.steps, 30);
      } catch (const ExitError& error) {
        EXPECT_STREQ(how, "stop");
        EXPECT_EQ(error.status(), kDiverged);
        for (const char* part : {"diverged in step 26", "spike = 50", "the median of 25 steps"})
          EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
        EXPECT_EQ(ckpt::read_manifest(folder.path()).step, 20);
      }
    });
  }
}

// Five losses after the save are too few to know what is usual: those before it count as if nothing had happened.
TEST_F(AfterDivergence, AResumedRunSeesASpikeAsTheUndisturbedOneDoes) {
  config_.spike = 50;
  struct End {
    std::string error;
    Values values;
  };
  const auto train = [](const TrainConfig& config) {
    End end;
    run_ranks(2, [&](const Group& group) {
      Trainer trainer(config, group);
      std::string error;
      Values values;
      try {
        EXPECT_EQ(trainer.run(spike_after(trainer, 25)).rollbacks, config.steps > 25 ? 1 : 0);
        values = values_of(trainer.model());
      } catch (const ExitError& exit) { error = exit.what(); }
      if (group->rank() == 0) end = {error, values};
    });
    return end;
  };
  for (const char* how : {"stop", "rollback"}) {
    const TempDir whole, parts;
    config_.on_nonfinite = how;
    config_.steps = 30;
    config_.save_every = 20;
    config_.save = whole.path();
    config_.resume.clear();
    const End undisturbed = train(config_);
    config_.save = parts.path();
    config_.steps = 20;
    train(config_);
    config_.steps = 30;
    config_.resume = parts.path();
    const End resumed = train(config_);
    EXPECT_EQ(undisturbed.error.empty(), how == std::string("rollback")) << undisturbed.error;
    EXPECT_EQ(resumed.error, undisturbed.error) << "the same median of 25 steps, to the bit";
    EXPECT_EQ(resumed.values, undisturbed.values);
  }
}

TEST_F(AfterDivergence, SkippedStepsInARowAreCountedAcrossAResume) {
  config_.on_nonfinite = "skip";
  config_.save = folder_.path();
  const auto train = [&](const Group& group) {
    Trainer trainer(config_, group);
    trainer.model().parameter("blocks.1.mlp.up.weight").on_grad_accumulated([](Slot& slot) {
      fill_into(slot.grad().local().detach(), kNan);
    });
    return trainer.run([](const StepMetrics&) {}).skipped_steps;
  };
  config_.steps = 20;
  run_ranks(2, [&](const Group& group) { EXPECT_EQ(train(group), 20); });
  config_.steps = 40;
  config_.resume = folder_.path();
  run_ranks(2, [&](const Group& group) {
    expect_error([&] { train(group); }, {"diverged in step 33", "after 33 skipped steps in a row"});
  });
}

TEST_F(AfterDivergence, SettingsThatCannotBeAreRefused) {
  const auto refused = [&](std::initializer_list<std::string_view> parts) {
    TrainConfig config = config_;
    expect_error([&] { resolve(config); }, parts);
  };
  config_.on_nonfinite = "ignore";
  refused({"on_nonfinite", "stop, skip, rollback", "ignore"});
  config_.on_nonfinite = "rollback";
  refused({"rollback needs a folder", "--save"});
  config_.on_nonfinite = "skip";
  config_.spike = 5;
  refused({"spike = 5", "cannot be skipped", "rollback"});
  config_.spike = -1;
  refused({"spike must be at least 0"});
}

}  // namespace
}  // namespace sherd::testing
