// The training loop on thread-ranks: numbers that must not depend on the number of ranks, on compilation, on a resume.
#include "tools/train/trainer.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "tests/support/expect_error.h"
#include "tests/tools/tiny_run.h"

namespace sherd::testing {

using namespace train;

namespace {

using Group = std::shared_ptr<ProcessGroup>;

class TrainerTest : public ::testing::Test {
 protected:
  TempDir dir_;
  std::string data_ = dir_.write("text.txt", tiny_text());
  TrainConfig gpt_ = tiny_config(data_), llama_ = tiny_llama(data_);
};

void expect_close(const std::vector<double>& actual, const std::vector<double>& expected, double relative,
                  const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], relative * std::abs(expected[i])) << what << ", step " << i + 1;
}

TEST_F(TrainerTest, F22_InitialBitsDoNotDependOnTheNumberOfRanks) {
  for (TrainConfig config : {gpt_, llama_}) {
    config.steps = 1;
    const Values expected = train_tiny(config, 1).initial;
    for (int ranks : {2, 3, 4}) EXPECT_EQ(train_tiny(config, ranks).initial, expected) << ranks << " ranks";
    config.plan.fully_shard = false;
    EXPECT_EQ(train_tiny(config, 1).initial, expected) << "without fully_shard";
    config.seed += 1;
    EXPECT_NE(train_tiny(config, 1).initial, expected);
  }
}

// The third step finds all the blocks that any later one needs: eager, captured, alone and sharded.
TEST_F(TrainerTest, ASteadyStepTakesNothingFromTheSystem) {
  for (TrainConfig config : {gpt_, llama_})
    for (const int ranks : {1, 2})
      for (const bool compiled : {false, true}) {
        config.steps = 6;
        config.plan.compiled = compiled;
        run_ranks(ranks, [&](const Group& group) {
          Trainer trainer(config, group);
          std::vector<std::int64_t> calls;
          trainer.run([&](const StepMetrics&) { calls.push_back(RankContext::current().allocator().system_calls()); });
          ASSERT_EQ(calls.size(), 6u);
          EXPECT_EQ(calls[4], calls[2]) << config.model.style << " on " << ranks << " ranks, compiled " << compiled;
        });
      }
}

TEST_F(TrainerTest, F78_LossesDoNotDependOnTheNumberOfRanks) {
  gpt_.model.dropout = 0.2;  // the masks are those of the global batch
  for (const TrainConfig& config : {gpt_, llama_}) {
    const TinyRun one = train_tiny(config, 1);
    ASSERT_EQ(one.losses.size(), 5u);
    EXPECT_NEAR(one.losses[0], std::log(29.0), 0.1) << "29 characters, all alike at first";
    for (int ranks : {2, 3, 4}) {
      const TinyRun many = train_tiny(config, ranks);
      const std::string what = fmt::format("{} on {} ranks", config.model.style, ranks);
      expect_close(many.losses, one.losses, 1e-5, what);
      expect_close(many.norms, one.norms, 1e-4, what);
      EXPECT_NEAR(many.val_loss, one.val_loss, 1e-5) << what;
    }
  }
}

TEST_F(TrainerTest, LearnsTheText) {
  llama_.steps = 40;
  llama_.optimizer.decay_steps = 40;
  const TinyRun run = train_tiny(llama_, 2);
  EXPECT_LT(run.losses.back(), 0.7 * run.losses.front());
  EXPECT_LT(run.val_loss, 0.7 * run.losses.front());
}

TEST_F(TrainerTest, F77_TwoRunsAreBitIdentical) {
  gpt_.model.dropout = 0.2;
  const TinyRun first = train_tiny(gpt_, 2), second = train_tiny(gpt_, 2);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.norms, second.norms);
  EXPECT_EQ(first.val_loss, second.val_loss);
  EXPECT_EQ(first.final, second.final);
  EXPECT_NE(first.initial, first.final);
}

TEST_F(TrainerTest, CompiledStepsAreBitwiseTheEagerOnes) {
  gpt_.model.dropout = 0.2;
  for (TrainConfig config : {gpt_, llama_}) {
    config.steps = 20;
    config.eval_every = 7;  // evaluations between replays change nothing
    for (int ranks : {1, 2})
      for (bool fully_shard : {true, false}) {
        if (ranks > 1 && !fully_shard) continue;
        config.plan.fully_shard = fully_shard;
        config.plan.compiled = false;
        const TinyRun eager = train_tiny(config, ranks);
        config.plan.compiled = true;
        const TinyRun compiled = train_tiny(config, ranks);
        const std::string what = fmt::format("{} on {} ranks", config.model.style, ranks);
        EXPECT_EQ(compiled.losses, eager.losses) << what;
        EXPECT_EQ(compiled.norms, eager.norms) << what;
        EXPECT_EQ(compiled.val_loss, eager.val_loss) << what;
        EXPECT_EQ(compiled.final, eager.final) << what;
      }
  }
}

TEST_F(TrainerTest, CompiledMicroBatchesAreBitwiseTheEagerOnes) {
  gpt_.plan.micro_batches = 2;
  const TinyRun eager = train_tiny(gpt_, 2);
  gpt_.plan.compiled = true;
  const TinyRun compiled = train_tiny(gpt_, 2);
  EXPECT_EQ(compiled.losses, eager.losses);
  EXPECT_EQ(compiled.final, eager.final);
}

TEST_F(TrainerTest, F169_AResumedRunIsBitwiseTheUninterruptedOne) {
  gpt_.model.dropout = 0.2;  // its masks continue too
  gpt_.steps = 10;
  for (int ranks : {1, 2, 3})
    for (bool compile : {false, true}) {
      const TempDir checkpoint;
      TrainConfig config = gpt_;
      config.plan.compiled = compile;
      config.save = checkpoint.path();
      const TinyRun whole = train_tiny(config, ranks, [](Trainer& trainer) { EXPECT_EQ(trainer.first_step(), 0); });
      config.save_every = 5;
      config.steps = 5;
      config.overwrite = true;
      const TinyRun head = train_tiny(config, ranks);
      config.steps = 10;
      config.overwrite = false;
      config.resume = checkpoint.path();
      const TinyRun tail = train_tiny(config, ranks, [](Trainer& trainer) { EXPECT_EQ(trainer.first_step(), 5); });
      EXPECT_EQ(tail.initial, head.final);
      std::vector<double> losses = head.losses;
      losses.insert(losses.end(), tail.losses.begin(), tail.losses.end());
      EXPECT_EQ(losses, whole.losses) << ranks << " ranks";
      EXPECT_EQ(tail.final, whole.final) << ranks << " ranks";
      EXPECT_EQ(tail.val_loss, whole.val_loss);
    }
}

TEST_F(TrainerTest, ARunGoesOnOnAnyNumberOfRanksWithTheSameStateAndData) {
  gpt_.model.dropout = 0.2;
  gpt_.steps = 6;
  const TinyRun whole = train_tiny(gpt_, 1);
  for (const int before : {1, 2, 3}) {
    const TempDir checkpoint;
    TrainConfig config = gpt_;
    config.steps = 3;
    config.save = checkpoint.path();
    const TinyRun head = train_tiny(config, before);
    config.save.clear();
    config.steps = 6;
    config.resume = checkpoint.path();
    for (const int after : {1, 2, 3, 4}) {
      const TinyRun tail = train_tiny(config, after);
      EXPECT_EQ(tail.initial, head.final) << before << " to " << after << " ranks";
      ASSERT_EQ(tail.losses.size(), 3u);
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_NEAR(tail.losses[i], whole.losses[i + 3], 1e-5 * whole.losses[i + 3]) << before << " to " << after;
    }
    for (const char* strategy : {"no_shard", "shard_grad_op", "shard_optimizer"}) {
      config.plan.strategy = strategy;
      EXPECT_EQ(train_tiny(config, 2).initial, head.final) << strategy;
    }
  }
}

TEST_F(TrainerTest, ARunThatIsNotShardedGoesOnShardedAndBack) {
  gpt_.steps = 6;
  gpt_.plan.fully_shard = false;
  const TinyRun whole = train_tiny(gpt_, 1);
  const TempDir one, two;
  const auto part = [&](bool fully_shard, std::int64_t steps, const std::string& from, const std::string& to) {
    TrainConfig config = gpt_;
    config.plan.fully_shard = fully_shard;
    config.steps = steps;
    config.resume = from;
    config.save = to;
    return config;
  };
  const TinyRun head = train_tiny(part(false, 2, "", one.path()), 1);
  const TinyRun middle = train_tiny(part(true, 4, one.path(), two.path()), 2);
  EXPECT_EQ(middle.initial, head.final);
  const TinyRun tail = train_tiny(part(false, 6, two.path(), ""), 1);
  EXPECT_EQ(tail.initial, middle.final);
  std::vector<double> losses = head.losses;
  for (const TinyRun& rest : {middle, tail}) losses.insert(losses.end(), rest.losses.begin(), rest.losses.end());
  expect_close(losses, whole.losses, 1e-5, "whole, sharded over 2 ranks, whole");
  run_ranks(2, [&](const Group& group) {
    expect_error([&] { Trainer trainer(part(false, 6, two.path(), ""), group); }, {"--fully-shard true"});
  });
}

TEST_F(TrainerTest, F16IsScaledAndResumesBitForBit) {
  for (TrainConfig config : {gpt_, llama_}) {
    config.steps = 6;
    const TinyRun f32 = train_tiny(config, 1);
    config.plan.param_dtype = DType::f16;
    for (const int ranks : {1, 2})
      for (const bool compile : {false, true}) {
        const TempDir checkpoint;
        config.plan.compiled = compile;
        config.save = checkpoint.path();
        config.resume.clear();
        config.overwrite = true;
        const auto train = [&](std::int64_t steps) {
          config.steps = steps;
          std::vector<std::array<double, 3>> seen;
          run_ranks(ranks, [&](const Group& group) {
            Trainer(config, group).run([&](const StepMetrics& m) {
              ASSERT_TRUE(m.loss_scale);
              // Each skipped step has halved it.
              EXPECT_LE(*m.loss_scale, 65536);
              EXPECT_GT(*m.loss_scale, 256);
              EXPECT_GE(std::ldexp(*m.loss_scale, static_cast<int>(m.skipped_steps)), 65536);
              if (group->rank() == 0) seen.push_back({m.loss, *m.loss_scale, static_cast<double>(m.skipped_steps)});
            });
          });
          return seen;
        };
        const auto whole = train(6);
        for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(whole[i][0], f32.losses[i], 1e-2 * f32.losses[i]) << i;
        auto parts = train(3);
        config.resume = checkpoint.path();
        config.overwrite = false;
        const auto rest = train(6);
        parts.insert(parts.end(), rest.begin(), rest.end());
        EXPECT_EQ(parts, whole) << config.model.style << " on " << ranks << " ranks";
        config.plan.loss_scale = "1024";
        expect_error([&] { train(6); }, {"loss_scale = \"auto\"", "\"1024\""});
        config.plan.loss_scale = "auto";
      }
  }
}

TEST_F(TrainerTest, AConfigMadeInCodeIsResolved) {
  llama_.model.kv_heads = llama_.model.hidden = llama_.optimizer.decay_steps = 0;
  TrainConfig resolved = llama_;
  resolve(resolved);
  for (const int ranks : {1, 2}) EXPECT_EQ(train_tiny(llama_, ranks).losses, train_tiny(resolved, ranks).losses);
  run_ranks(2, [&](const Group& group) {
    const Trainer trainer(llama_, group);
    EXPECT_EQ(trainer.config().model.hidden, 64) << "8/3 x 16, up to a multiple of 32";
    EXPECT_EQ(trainer.config().optimizer.decay_steps, llama_.steps);
  });
  llama_.model.width = 15;
  run_ranks(2, [&](const Group& group) {
    expect_error([&] { Trainer trainer(llama_, group); }, {"model.width = 15", "model.heads = 2"});
  });
}

TEST_F(TrainerTest, F79_MicroBatchesGiveTheGradientOfTheWhole) {
  const TinyRun whole = train_tiny(gpt_, 1);
  for (int ranks : {1, 2})
    for (std::int64_t accumulate : {2, 3}) {
      TrainConfig config = gpt_;
      config.plan.micro_batches = accumulate;
      const TinyRun parts = train_tiny(config, ranks);
      expect_close(parts.losses, whole.losses, 1e-5, fmt::format("{} parts on {} ranks", accumulate, ranks));
      expect_close(parts.norms, whole.norms, 1e-4, fmt::format("{} parts on {} ranks", accumulate, ranks));
    }
}

TEST_F(TrainerTest, F143_DropoutInMicroBatchesDoesNotDependOnTheNumberOfRanks) {
  gpt_.plan.micro_batches = 2;
  gpt_.model.dropout = 0.2;
  const TinyRun one = train_tiny(gpt_, 1);
  for (int ranks : {2, 3})
    expect_close(train_tiny(gpt_, ranks).losses, one.losses, 1e-5, fmt::format("{} ranks", ranks));
}

// The oracle runs the windows one by one.
double loss_by_windows(Trainer& trainer, const TrainConfig& config, std::int64_t windows) {
  GradMode off(false);
  const std::int64_t sequence = config.model.sequence;
  double total = 0;
  for (std::int64_t w = 0; w < windows; ++w) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(sequence + 1));
    trainer.data().validation_window(w, tokens);
    const std::span<const std::int32_t> all(tokens);
    const auto length = static_cast<std::size_t>(sequence);
    total +=
        trainer.model()(Tensor::from(all.first(length), {1, sequence}), Tensor::from(all.last(length), {1, sequence}))
            .item<double>();
  }
  return total / static_cast<double>(windows);
}

TEST_F(TrainerTest, EvaluationIsTheMeanOverAllWindowsOnAnyNumberOfRanks) {
  gpt_.model.dropout = 0.5;  // off in evaluation
  for (std::int64_t eval_batches : {0, 1, 2}) {
    gpt_.eval_batches = eval_batches;
    std::vector<double> values;
    for (int ranks : {1, 2, 3, 4})
      run_ranks(ranks, [&](const Group& group) {
        Trainer trainer(gpt_, group);
        const std::int64_t all = trainer.data().num_validation_windows(gpt_.model.sequence);
        EXPECT_EQ(all, (trainer.data().num_validation() - 1) / 12);
        EXPECT_NE(all % gpt_.batch, 0) << "the last batch must not be full, or padding is not tested";
        const double value = trainer.evaluate();
        EXPECT_EQ(trainer.evaluate(), value);
        EXPECT_TRUE(trainer.model().training());
        if (group->rank() == 0) values.push_back(value);
        if (ranks > 1) return;
        trainer.model().train(false);
        const std::int64_t windows = eval_batches == 0 ? all : eval_batches * gpt_.batch;
        EXPECT_NEAR(value, loss_by_windows(trainer, gpt_, windows), 1e-6 * value) << windows << " windows";
      });
    for (double value : values) EXPECT_NEAR(value, values[0], 1e-6 * values[0]);
  }
}

TEST_F(TrainerTest, EvaluationIsByMicroBatchesWithTheSameMean) {
  gpt_.eval_batches = 0;
  for (const int ranks : {1, 2}) {
    double whole = 0;
    std::int64_t whole_peak = 0;
    for (const std::int64_t accumulate : {1, 3, 6}) {
      gpt_.plan.micro_batches = accumulate;
      run_ranks(ranks, [&](const Group& group) {
        Trainer trainer(gpt_, group);
        Accounting& memory = RankContext::current().allocator().accounting();
        trainer.evaluate();
        memory.reset_peaks();
        const std::int64_t held = memory.total();
        const double value = trainer.evaluate();
        if (group->rank() != 0) return;
        const std::int64_t peak = memory.total_peak() - held;
        if (accumulate == 1) {
          whole = value;
          whole_peak = peak;
        }
        EXPECT_NEAR(value, whole, 1e-6 * whole) << accumulate << " micro-batches on " << ranks << " ranks";
        EXPECT_TRUE(accumulate < 6 || peak < 2 * whole_peak / 3) << peak << " bytes of " << whole_peak;
      });
    }
  }
}

TEST_F(TrainerTest, WhatAnEvaluationHoldsCountsForItsStep) {
  gpt_.steps = 2;
  gpt_.eval_every = 0;
  run_ranks(2, [&](const Group& group) {
    constexpr std::int64_t kElements = 1 << 20;  // more than all of the run
    Trainer trainer(gpt_, group);
    std::vector<std::int64_t> peaks;
    const TrainSummary summary = trainer.run([&](const StepMetrics& m) { peaks.push_back(m.memory_peak_bytes); },
                                             [&] {
                                               if (trainer.updates() == gpt_.steps)
                                                 Tensor::empty({kElements}, DType::f32);
                                               return 0;
                                             });
    ASSERT_EQ(peaks.size(), 2u);
    EXPECT_LT(peaks[0], 4 * kElements);
    EXPECT_GE(peaks[1], 4 * kElements);
    EXPECT_GE(std::ranges::max(summary.peak_bytes), 4 * kElements);
  });
}

TEST_F(TrainerTest, EvaluationWithFewerWindowsThanRanks) {
  gpt_.model.sequence = 210;  // 481 validation tokens: two windows
  std::vector<double> values;
  for (int ranks : {1, 4})
    run_ranks(ranks, [&](const Group& group) {
      Trainer trainer(gpt_, group);
      EXPECT_EQ(trainer.data().num_validation_windows(210), 2);
      const double value = trainer.evaluate();
      if (group->rank() == 0) values.push_back(value);
    });
  EXPECT_NEAR(values[1], values[0], 1e-6 * values[0]);
}

TEST_F(TrainerTest, MetricsCountWhatTheStepDid) {
  gpt_.eval_every = 2;
  for (int ranks : {1, 2, 4}) {
    std::vector<std::int64_t> parameters(4, 0), optimizer(4, 0), steps;
    std::int64_t elements = 0, parameter_count = 0;
    run_ranks(ranks, [&](const Group& group) {
      const auto r = static_cast<std::size_t>(group->rank());
      Trainer trainer(gpt_, group);
      trainer.run([&](const StepMetrics& m) {
        parameters[r] = m.memory_bytes[static_cast<std::size_t>(MemoryCategory::parameters)];
        optimizer[r] = m.memory_bytes[static_cast<std::size_t>(MemoryCategory::optimizer)];
        if (r > 0) return;
        steps.push_back(m.step);
        EXPECT_EQ(m.tokens, 12 * 12);
        EXPECT_EQ(m.val_loss.has_value(), m.step % 2 == 0 || m.step == 5) << "step " << m.step;
        EXPECT_EQ(m.lr, (nn::CosineSchedule{1e-2, 1e-3, 2, 20}.at(m.step - 1)));
        EXPECT_GT(m.grad_norm, 0);
        EXPECT_GT(m.tokens_per_second, 0);
        elements = trainer.model().num_parameters();
        parameter_count = static_cast<std::int64_t>(trainer.model().parameters().size());
      });
    });
    EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 2, 3, 4, 5}));
    // Shards hold every element once; each parameter starts at a multiple of 64 bytes on each rank.
    const auto expect_total = [&](const std::vector<std::int64_t>& bytes, std::int64_t expected, int arenas) {
      std::int64_t total = 0;
      for (std::int64_t b : bytes) total += b;
      EXPECT_GE(total, expected) << ranks << " ranks";
      EXPECT_LE(total, expected + 64 * parameter_count * ranks * arenas) << ranks << " ranks";
    };
    expect_total(parameters, 4 * elements, 1);
    expect_total(optimizer, 8 * elements, 2);
  }
}

TEST_F(TrainerTest, MetricsSayOfEachStepWhetherItWasCaptured) {
  gpt_.plan.compiled = true;
  gpt_.eval_every = 2;  // which is captured too, and says nothing of the step
  std::vector<std::string> lines;
  run_ranks(2, [&](const Group& group) {
    Trainer(gpt_, group).run([&](const StepMetrics& m) {
      if (group->rank() == 0)
        lines.push_back(
            fmt::format("{} {}", m.captured->is_replay, m.captured->why.substr(0, m.captured->why.find(':'))));
    });
  });
  EXPECT_EQ(lines, (std::vector<std::string>{"false ran eagerly", "false recorded", "false recorded", "true replayed",
                                             "true replayed"}));
}

TEST_F(TrainerTest, TheMemoryLimitNamesTheOwners) {
  gpt_.memory_limit = 150'000;
  const auto train = [&](const Group& group) { Trainer(gpt_, group).run([](const StepMetrics&) {}); };
  try {
    run_ranks(1, train);
    ADD_FAILURE() << "no OutOfMemory";
  } catch (const OutOfMemory& error) {
    for (const char* part : {"out of memory", "150 KB", "owners", "parameters", "peak"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << " is not in: " << error.what();
  }
}

TEST_F(TrainerTest, PeersOfARankWithoutMemoryStopAtOnceAndQuoteIt) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::string> reasons(3);
  try {
    run_ranks(3, [&](const Group& group) {
      Trainer trainer(gpt_, group);
      if (group->rank() == 1) RankContext::current().allocator().set_limit(60'000);
      try {
        trainer.run([](const StepMetrics&) {});
      } catch (const CommError& error) {
        reasons[static_cast<std::size_t>(group->rank())] = error.what();
        throw;
      }
    });
    ADD_FAILURE() << "no error";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("60 KB"), std::string::npos) << error.what();
  }
  for (std::size_t peer : {0u, 2u})
    EXPECT_NE(reasons[peer].find("out of memory"), std::string::npos) << "rank " << peer << ": " << reasons[peer];
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20)) << "far below the deadline of 300 s";
}

}  // namespace
}  // namespace sherd::testing
