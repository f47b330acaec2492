// A model in training, without data and without a loop: what an update computes, and what it leaves out when asked to.
#include "tools/train/train_step.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/comm/group/host_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/tools/tiny_run.h"

namespace sherd::testing {

using namespace train;

namespace {

using Group = std::shared_ptr<ProcessGroup>;

constexpr std::int64_t kVocabulary = 17, kBatch = 4, kTokens = 8;

/// A Llama as a program would describe it: what follows from other numbers is left at zero.
TrainConfig tiny_model() {
  TrainConfig config;
  config.seed = 5;
  config.model.layers = 2;
  config.model.heads = 2;
  config.model.width = 16;
  config.model.sequence = kTokens;
  config.optimizer = {.lr = 1e-2, .min_lr = 1e-3, .warmup = 1, .decay_steps = 10, .clip = 0};
  return config;
}

/// Tokens and targets, i32 [kBatch, kTokens]: each token follows from the one before.
std::pair<Tensor, Tensor> batch_of(int rank, std::int64_t step) {
  std::vector<std::int32_t> tokens, targets;
  for (std::int64_t b = 0; b < kBatch; ++b)
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const std::int64_t at = 31 * step + 7 * rank + 3 * b + 2 * t;
      tokens.push_back(static_cast<std::int32_t>(at % kVocabulary));
      targets.push_back(static_cast<std::int32_t>((at + 2) % kVocabulary));
    }
  const Shape shape{kBatch, kTokens};
  return {Tensor::from<std::int32_t>(tokens, shape), Tensor::from<std::int32_t>(targets, shape)};
}

struct Trained {
  std::vector<double> losses, norms;  ///< a norm for each update that has one
  std::vector<std::string> how;
  std::int64_t all_reduces = 0, reduce_scatters = 0;
  Values values;
};

/// Makes `updates` updates; those in `eager` eagerly.
Trained trained(const TrainConfig& config, const Group& group, std::int64_t updates,
                const TrainStep::Options& options = {}, const std::vector<std::int64_t>& eager = {}) {
  TrainStep step(config, nn::JobMesh(config.plan.mesh, group), kVocabulary, options);
  Trained result;
  const CommCounts before = group->host().counts();
  for (std::int64_t i = 0; i < updates; ++i) {
    step.set_step(i);
    const auto [tokens, targets] = batch_of(group->rank(), i);
    const bool is_eager = std::find(eager.begin(), eager.end(), i) != eager.end();
    const TrainStep::Result out = is_eager ? step.update_eagerly(tokens, targets) : step.update(tokens, targets);
    result.losses.push_back(out.loss.item<double>());
    if (out.grad_norm.defined()) result.norms.push_back(out.grad_norm.item<double>());
    result.how.push_back(is_eager ? "" : step.how().substr(0, step.how().find_first_of(":;")));
  }
  result.all_reduces = group->host().counts().all_reduce.calls - before.all_reduce.calls;
  result.reduce_scatters = group->host().counts().reduce_scatter.calls - before.reduce_scatter.calls;
  result.values = values_of(step.model());
  return result;
}

TEST(TrainStep, LearnsFromAConfigMadeInCode) {
  TrainConfig config = tiny_model();
  config.optimizer.decay_steps = 60;
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](const Group& group) {
      const Trained run = trained(config, group, 60);
      EXPECT_LT(run.losses.back(), 0.7 * run.losses.front());
      EXPECT_EQ(run.norms.size(), 60u);
    });
}

// On one rank the two reductions are nothing; on two they are all the all-reduces of a fully sharded step.
TEST(TrainStep, WithoutMetricsNothingIsReducedAndTheUpdateIsTheSame) {
  for (const int ranks : {1, 2}) {
    std::vector<double> mean(3, 0.0), reported;
    std::mutex mutex;
    run_ranks(ranks, [&](const Group& group) {
      const Trained with = trained(tiny_model(), group, 3),
                    without = trained(tiny_model(), group, 3, {.metrics = false});
      EXPECT_EQ(without.values, with.values);
      EXPECT_EQ(with.norms.size(), 3u);
      EXPECT_TRUE(without.norms.empty());
      EXPECT_EQ(with.all_reduces, ranks == 1 ? 0 : 2 * 3);
      EXPECT_EQ(without.all_reduces, 0);
      const std::lock_guard lock(mutex);
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += without.losses[i] / ranks;
      reported = with.losses;
    });
    for (std::size_t i = 0; i < mean.size(); ++i)
      EXPECT_NEAR(reported[i], mean[i], 1e-6 * mean[i]) << ranks << " ranks";
  }
}

// A power of two changes no bit of an f32 training, with micro-batches too.
TEST(TrainStep, AScaledLossGivesTheBitsOfTheUpdate) {
  for (const int ranks : {1, 2})
    for (const bool metrics : {true, false}) {
      TrainConfig config = tiny_model();
      config.plan.micro_batches = 2;
      run_ranks(ranks, [&](const Group& group) {
        const Trained plain = trained(config, group, 4, {.metrics = metrics});
        TrainConfig scaled = config;
        for (const char* scale : {"1024", "dynamic"})
          for (const bool compile : {false, true}) {
            scaled.plan.loss_scale = scale;
            scaled.plan.compiled = compile;
            const Trained run = trained(scaled, group, 4, {.metrics = metrics});
            EXPECT_EQ(run.losses, plain.losses);
            EXPECT_EQ(run.norms, plain.norms);
            EXPECT_EQ(run.values, plain.values);
          }
      });
    }
}

// A ghost records them before they are made.
TEST(TrainStep, UpdatesWithinABudgetAreThoseThatWereAskedFor) {
  for (const int ranks : {1, 2}) {
    TrainConfig config = tiny_model();
    config.batch = ranks * kBatch;
    run_ranks(ranks, [&](const Group& group) {
      for (const TrainStep::Options& options :
           {TrainStep::Options{.metrics = false}, TrainStep::Options{.agrees = true}}) {
        const Trained expected = trained(config, group, 3, options);
        TrainConfig within = config;
        within.plan.compiled = true;
        within.plan.memory_budget = "100%";
        {
          const TrainStep step(within, nn::JobMesh("", group), kVocabulary, options);
          EXPECT_EQ(std::ranges::any_of(step.recorded()->nodes,
                                        [](const ir::GraphNode& node) { return node.op->name == "agree_to_update"; }),
                    options.agrees);
        }
        const Trained run = trained(within, group, 3, options);
        EXPECT_NO_THROW(TrainStep(within, nn::JobMesh("", group), kVocabulary, {.draws = false}));
        EXPECT_EQ(run.how, std::vector<std::string>(3, "replayed"));
        EXPECT_EQ(run.losses, expected.losses);
        EXPECT_EQ(run.norms, expected.norms);
        EXPECT_EQ(run.values, expected.values);
      }
    });
  }
}

/// What an update makes when it first needs it: what a replay from the first one on must find.
struct MadeByUpdates {
  const char* name;
  std::function<void(TrainConfig&)> ask;
  const char* budget = "100%";
};
void train_a_gpt(TrainConfig& config) {
  config.model.style = "gpt2";
  config.model.dropout = 0.1;
}
const MadeByUpdates kMadeByUpdates[] = {
    {"nothing", [](TrainConfig&) {}},
    {"offloaded state", [](TrainConfig& c) { c.plan.offload = "optimizer"; }},
    {"hooks of gradients",
     [](TrainConfig& c) {
       c.plan.offload = "optimizer";
       c.optimizer.clip = 0;
     }},
    {"hooks of gradients that come in pieces",
     [](TrainConfig& c) {
       c.plan.offload = "all";
       c.optimizer.clip = 0;
     }},
    {"gradients that are held", [](TrainConfig& c) { c.plan.micro_batches = 2; }},
    {"gradients that are held in another type",
     [](TrainConfig& c) {
       c.plan.micro_batches = 4;
       c.plan.param_dtype = DType::bf16;
     }},
    {"sums of shards",
     [](TrainConfig& c) {
       c.plan.micro_batches = 2;
       c.plan.accumulate_shards = true;
     }},
    {"a tree of gradients",
     [](TrainConfig& c) {
       c.plan.numerics = "layout_free";
       c.plan.leaves = 4;
     }},
    {"a tree of gradients, with dropout",
     [](TrainConfig& c) {
       c.plan.numerics = "layout_free";
       c.plan.leaves = 4;
       train_a_gpt(c);
     }},
    {"encoded parameters",
     [](TrainConfig& c) {
       c.plan.gather = "int8";
       c.plan.reduce = "int8";
     }},
    {"rows that draw", train_a_gpt},
    {"offloaded activations", [](TrainConfig& c) { c.plan.offload_activations = "blocks"; }},
    {"offloaded activations within less",
     [](TrainConfig& c) {
       train_a_gpt(c);
       c.model.width = 64;
       c.plan.offload_activations = "blocks";
     },
     "98%"},
};

// What an update leaves on its way to a file is there in the next one.
TEST(TrainStep, UpdatesAreReplaysFromTheFirstOnAndHoldWhatTheirBudgetPredicts) {
  for (const MadeByUpdates& made : kMadeByUpdates)
    for (const int ranks : {1, 2}) {
      TrainConfig config = tiny_model();
      config.batch = ranks * kBatch;
      config.optimizer.clip = 1;
      made.ask(config);
      std::vector<Trained> expected(static_cast<std::size_t>(ranks));
      run_ranks(ranks, [&](const Group& group) {
        expected[static_cast<std::size_t>(group->rank())] = trained(config, group, 3);
      });
      config.plan.compiled = true;
      config.plan.memory_budget = std::string(made.budget);
      run_ranks(ranks, [&](const Group& group) {
        SCOPED_TRACE(fmt::format("{}, {} ranks", made.name, ranks));
        TrainStep step(config, nn::JobMesh("", group), kVocabulary);
        step.prepare();
        ASSERT_TRUE(step.predicted()) << step.budget_text();
        Accounting& account = RankContext::current().allocator().accounting();
        std::int64_t most = 0;
        CategoryBytes bytes{};
        std::vector<double> losses;
        for (std::int64_t i = 0; i < 3; ++i) {
          const auto [tokens, targets] = batch_of(group->rank(), i);
          account.reset_peaks();
          step.set_step(i);
          losses.push_back(step.update(tokens, targets).loss.item<double>());
          EXPECT_TRUE(step.is_captured()) << step.how();
          most = std::max(most, account.total_peak());
          for (std::size_t c = 0; c < kNumCategories; ++c) bytes[c] = std::max(bytes[c], account.peak()[c]);
        }
        EXPECT_EQ(most, step.predicted()->peak);
        EXPECT_EQ(bytes, step.predicted()->bytes);
        const Trained& eager = expected[static_cast<std::size_t>(group->rank())];
        EXPECT_EQ(losses, eager.losses);
        EXPECT_EQ(values_of(step.model()), eager.values);
      });
    }
}

// The names of the recording mean two things on a rank that trains a second model. The others could begin.
TEST(TrainStep, UpdatesThatOneRankCannotBeginWithSaySoAndAreRefusedBeforeTheFirst) {
  run_ranks(2, [&](const Group& group) {
    TrainConfig config = tiny_model();
    config.batch = 2 * kBatch;
    const Trained expected = trained(config, group, 5);
    std::optional<TrainStep> other;
    if (group->rank() == 1) other.emplace(config, nn::JobMesh("", group), kVocabulary);
    config.plan.compiled = true;
    config.plan.memory_budget = "100%";
    {
      TrainStep step(config, nn::JobMesh("", group), kVocabulary);
      step.prepare();
      EXPECT_NE(step.budget_text().find("the first three updates hold "), std::string::npos) << step.budget_text();
      EXPECT_NE(step.budget_text().find("the 2 slots called"), std::string::npos) << step.budget_text();
      Accounting& account = RankContext::current().allocator().accounting();
      const char* const how[] = {"ran eagerly", "recorded", "recorded", "replayed", "replayed"};
      for (std::int64_t i = 0; i < 5; ++i) {
        const auto [tokens, targets] = batch_of(group->rank(), i);
        account.reset_peaks();
        step.set_step(i);
        EXPECT_EQ(step.update(tokens, targets).loss.item<double>(), expected.losses[static_cast<std::size_t>(i)]);
        EXPECT_EQ(step.how().substr(0, step.how().find_first_of(":;")), how[i]);
        const std::int64_t copies = i == 2 ? 2 * tokens.bytes() : 0;
        EXPECT_LE(account.total_peak(), step.predicted()->without + copies) << i;
        if (i > 2) { EXPECT_EQ(account.total_peak(), step.predicted()->peak) << i; }
      }
      EXPECT_EQ(values_of(step.model()), expected.values);
    }
    config.plan.memory_budget = "1KB";
    TrainStep step(config, nn::JobMesh("", group), kVocabulary);
    expect_error([&] { step.prepare(); }, {"below the least that the step can hold"});
  });
}

TEST(TrainStep, ValuesThatAreNeitherDrawnNorLoadedAreNotTrained) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](const Group& group) {
      for (const bool compiled : {false, true}) {
        TrainConfig config = tiny_model();
        config.plan.compiled = compiled;
        expect_error([&] { trained(config, group, 1, {.draws = false}); }, {"tok.weight", "drawn or loaded"});
      }
    });
}

TEST(TrainStep, ClippingNeedsTheNorm) {
  TrainConfig config = tiny_model();
  config.optimizer.clip = 0.001;
  run_ranks(1, [&](const Group& group) {
    expect_error([&] { trained(config, group, 0, {.metrics = false}); }, {"optimizer.clip = 0.001", "gradient norm"});
    EXPECT_NE(trained(config, group, 3).values, trained(tiny_model(), group, 3).values)
        << "the norm was below the limit";
  });
}

TEST(TrainStep, OneUpdateMayBeEagerAmongReplays) {
  for (const int ranks : {1, 2})
    for (const bool metrics : {true, false})
      run_ranks(ranks, [&](const Group& group) {
        TrainConfig config = tiny_model();
        const Trained eager = trained(config, group, 6, {.metrics = metrics});
        EXPECT_EQ(eager.how, std::vector<std::string>(6, "eager"));
        config.plan.compiled = true;
        const Trained mixed = trained(config, group, 6, {.metrics = metrics}, {4});
        EXPECT_EQ(mixed.how,
                  (std::vector<std::string>{"ran eagerly", "recorded", "recorded", "replayed", "", "replayed"}));
        EXPECT_EQ(mixed.losses, eager.losses);
        EXPECT_EQ(mixed.norms, eager.norms);
        EXPECT_EQ(mixed.values, eager.values);
      });
}

// Two blocks and the rest; captured or not the same bits, and nearly those of the whole batch.
TEST(TrainStep, F79_MicroBatchesAreReducedOncePerUnit) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](const Group& group) {
      TrainConfig config = tiny_model();
      const Trained whole = trained(config, group, 4);
      config.plan.micro_batches = 4;
      const Trained eager = trained(config, group, 4);
      EXPECT_EQ(eager.reduce_scatters, whole.reduce_scatters);
      EXPECT_EQ(eager.reduce_scatters, ranks == 1 ? 0 : 3 * 4);
      for (std::size_t i = 0; i < whole.losses.size(); ++i) EXPECT_NEAR(eager.losses[i], whole.losses[i], 1e-4);
      config.plan.compiled = true;
      const Trained captured = trained(config, group, 4);
      EXPECT_EQ(captured.how.back(), "replayed");
      EXPECT_EQ(captured.losses, eager.losses);
      EXPECT_EQ(captured.norms, eager.norms);
      EXPECT_EQ(captured.values, eager.values);
      config.plan.accumulate_shards = true;
      EXPECT_EQ(trained(config, group, 4).reduce_scatters, ranks == 1 ? 0 : 4 * 3 * 4);
    });
}

TEST(TrainStep, MicroBatchesMustDivideTheBatch) {
  TrainConfig config = tiny_model();
  config.batch = 9;
  config.plan.micro_batches = 3;
  run_ranks(1, [&](const Group& group) {
    expect_error([&] { trained(config, group, 1); },
                 {"a batch of 4 rows does not divide into 3 micro-batches", "a multiple of 3"});
  });
}

TEST(TrainStep, WeightDecaySparesNormsUnlessToldOtherwise) {
  TrainConfig config = tiny_model();
  config.optimizer.weight_decay = 0.5;
  run_ranks(1, [&](const Group& group) {
    const Values spared = trained(config, group, 1).values;
    config.optimizer.decay_matrices_only = false;
    const Values decayed = trained(config, group, 1).values;
    EXPECT_EQ(decayed.at("tok.weight"), spared.at("tok.weight"));
    const std::vector<float> all = decayed.at("norm.weight"), none = spared.at("norm.weight");
    // Weights of norms start at 1; the first of two steps of warmup has half of the learning rate.
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(none[i] - all[i], 0.5 * 0.5e-2, 1e-6);
  });
}

TEST(TrainStep, SeparateModelsAreRefused) {
  TrainConfig config = tiny_model();
  config.plan.fully_shard = false;
  run_ranks(2, [&](const Group& group) {
    expect_error([&] { trained(config, group, 0); }, {"fully_shard = false", "2 separate models"});
  });
}

// Training and evaluation are captured apart, so neither waits for the other to be recorded again.
TEST(TrainStep, AnEvaluationBetweenUpdatesIsCapturedBesideThem) {
  run_ranks(2, [](const Group& group) {
    TrainConfig config = tiny_model();
    TrainStep eager(config, nn::JobMesh("", group), kVocabulary);
    config.plan.compiled = true;
    TrainStep captured(config, nn::JobMesh("", group), kVocabulary);
    const auto [tokens, targets] = batch_of(group->rank(), 100);
    for (std::int64_t i = 0; i < 6; ++i) {
      for (TrainStep* step : {&eager, &captured}) {
        step->set_step(i);
        step->model().train(true);
      }
      const auto [x, y] = batch_of(group->rank(), i);
      EXPECT_TRUE(same_bits(captured.update(x, y).loss, eager.update(x, y).loss)) << i << " " << captured.how();
      EXPECT_TRUE(same_bits(captured.evaluate(tokens, targets), eager.evaluate(tokens, targets)))
          << i << " " << captured.how_evaluated();
    }
    EXPECT_TRUE(captured.is_captured()) << captured.how();
    EXPECT_EQ(captured.how_evaluated(), "replayed");
    EXPECT_EQ(eager.how_evaluated(), "eager");
  });
}

}  // namespace
}  // namespace sherd::testing
