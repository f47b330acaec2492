// What ghosts predict of a training run. Oracle: the accounts of runs that train, on ranks that are threads, byte by
// byte and by category.
#include "tools/train/ghost_training.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "nn/parallel/shard/unit/policy.h"
#include "runtime/exec/context.h"
#include "tests/support/expect_error.h"
#include "tests/tools/tiny_run.h"

namespace sherd::testing {

using namespace train;

namespace {

using Group = std::shared_ptr<ProcessGroup>;

class PredictedPeakTest : public ::testing::Test {
 protected:
  TempDir dir_;
  std::string data_ = dir_.write("text.txt", tiny_text());
  TrainConfig gpt_ = tiny_config(data_), llama_ = tiny_llama(data_);
};

std::string text_of(const TrainConfig& c, int ranks) {
  return fmt::format("{} on {} ranks, {}", c.model.style, ranks, print(c.plan));
}

/// What any step of the run has held at most, by category, of which one comes after an evaluation; and what was held
/// after the second.
void expect_as_predicted(TrainConfig config, int ranks) {
  SCOPED_TRACE(text_of(config, ranks));
  config.steps = config.plan.compiled ? 5 : 4;
  config.eval_every = config.steps - 1;
  run_ranks(ranks, [&](const Group& group) {
    const int rank = group->rank();
    const PredictedPeak predicted = predict_peak(config, rank, ranks, kTinyVocabulary);
    Trainer trainer(config, group);
    CategoryBytes peak{}, held{};
    const TrainSummary summary = trainer.run([&](const StepMetrics& m) {
      for (std::size_t c = 0; c < kNumCategories; ++c) peak[c] = std::max(peak[c], m.memory_bytes[c]);
      if (m.step == 2) held = RankContext::current().allocator().accounting().current();
    });
    EXPECT_EQ(summary.peak_bytes, peak);
    EXPECT_EQ(describe(predicted.held), describe(held));
    for (std::size_t c = 0; c < kNumCategories; ++c)
      EXPECT_EQ(predicted.peak[c], peak[c]) << name(static_cast<MemoryCategory>(c)) << " of rank " << rank;
  });
}

/// The run works with what was predicted as its limit, and not with a byte less.
void expect_least_limit(TrainConfig config, int ranks) {
  SCOPED_TRACE(text_of(config, ranks));
  config.steps = config.plan.compiled ? 5 : 4;
  config.eval_every = config.steps - 1;
  std::int64_t least = 0;
  for (int rank = 0; rank < ranks; ++rank)
    least = std::max(least, predict_peak(config, rank, ranks, kTinyVocabulary).bytes);
  config.memory_limit = least;
  EXPECT_NO_THROW(train_tiny(config, ranks));
  config.memory_limit = least - 1;
  EXPECT_ANY_THROW(train_tiny(config, ranks));
  EXPECT_THROW(
      {
        for (int rank = 0; rank < ranks; ++rank)
          predict_peak(config, rank, ranks, kTinyVocabulary, {.memory_limit = least - 1});
      },
      OutOfMemory);
}

TEST_F(PredictedPeakTest, IsThatOfARunUnderEveryStrategy) {
  for (TrainConfig config : {gpt_, llama_})
    for (const std::string_view strategy : nn::strategy_names()) {
      config.plan.strategy = strategy;
      config.plan.mesh = nn::strategy(strategy).needs_replicas ? "replicate=2,dp=2" : "";
      expect_as_predicted(config, config.plan.mesh.is_open() ? 3 : 4);
    }
}

TEST_F(PredictedPeakTest, IsThatOfARunWithEveryOtherLever) {
  for (const char* recompute : {"selective", "full"}) {
    llama_.plan.recompute = recompute;
    expect_as_predicted(llama_, 2);
  }
  llama_.plan.recompute = "none";
  for (const char* units : {"fine", "coarse"}) {
    llama_.plan.units = units;
    expect_as_predicted(llama_, 2);
  }
  llama_.plan.units = "block";
  llama_.plan.prefetch = false;
  expect_as_predicted(llama_, 2);
  llama_.plan.prefetch = true;
  for (const char* what : {"optimizer", "parameters", "all"}) {
    llama_.plan.offload = what;
    for (const int ranks : {1, 2}) expect_as_predicted(llama_, ranks);
    llama_.plan.compiled = true;
    expect_as_predicted(llama_, 2);
    llama_.plan.compiled = false;
    llama_.optimizer.clip = 0;  // updates are made within backward
    expect_as_predicted(llama_, 2);
    llama_.optimizer.clip = gpt_.optimizer.clip;
  }
  llama_.plan.offload = "none";
  llama_.save = dir_ / "saves";
  llama_.save_async = llama_.overwrite = true;
  expect_as_predicted(llama_, 2);
  llama_.save.clear();
  llama_.save_async = llama_.overwrite = false;
  llama_.plan.offload_activations = "blocks";
  llama_.model.layers = 5;
  for (const char* recompute : {"none", "full"})
    for (const bool compile : {false, true}) {
      llama_.plan.recompute = recompute;
      llama_.plan.compiled = compile;
      llama_.memory_limit = 300'000;  // an eighth is in flight, a third of what blocks save
      expect_as_predicted(llama_, 2);
    }
  llama_ = tiny_llama(data_);
  llama_.plan.micro_batches = 2;
  for (const bool shards : {false, true}) {
    llama_.plan.accumulate_shards = shards;
    expect_as_predicted(llama_, 2);
  }
  llama_.plan.param_dtype = DType::bf16;
  expect_as_predicted(llama_, 2);
  llama_.plan.param_dtype = DType::f16;  // the loss is scaled
  expect_as_predicted(llama_, 2);
}

TEST_F(PredictedPeakTest, IsThatOfARunOnAnyMesh) {
  for (TrainConfig config : {gpt_, llama_}) {
    config.model.kv_heads = 2;
    expect_as_predicted(config, 1);
    config.plan.fully_shard = false;
    expect_as_predicted(config, 1);
    config.plan.fully_shard = true;
    config.plan.mesh = "dp=2,tp=2";
    expect_as_predicted(config, 4);
    config.plan.tensor_parallel.sequence_parallel = true;
    expect_as_predicted(config, 4);
  }
}

TEST_F(PredictedPeakTest, IsThatOfACapturedRun) {
  for (TrainConfig config : {gpt_, llama_}) {
    config.plan.compiled = true;
    for (const int ranks : {1, 2}) expect_as_predicted(config, ranks);
  }
}

// Pieces are smaller under a lower limit, so the least is looked for.
TEST_F(PredictedPeakTest, IsTheLeastLimitOfARunThatIsOffloaded) {
  for (TrainConfig config : {gpt_, llama_}) {
    config.plan.offload = "all";
    config.steps = 4;
    config.eval_every = 3;
    const auto fits = [&](std::int64_t limit) {
      config.memory_limit = limit;
      try {
        for (const int rank : {0, 1}) predict_peak(config, rank, 2, kTinyVocabulary, {.memory_limit = limit});
        return true;
      } catch (const OutOfMemory&) { return false; }
    };
    std::int64_t too_low = 1 << 10, least = 1 << 24;
    while (least - too_low > 1) {
      const std::int64_t middle = (least + too_low) / 2;
      (fits(middle) ? least : too_low) = middle;
    }
    config.memory_limit = least;
    EXPECT_NO_THROW(train_tiny(config, 2));
    config.memory_limit = too_low;
    EXPECT_ANY_THROW(train_tiny(config, 2));
  }
}

TEST_F(PredictedPeakTest, IsTheLeastLimit) {
  expect_least_limit(gpt_, 1);
  expect_least_limit(llama_, 2);
  llama_.plan.compiled = true;
  expect_least_limit(llama_, 2);
  llama_.plan.compiled = false;
  llama_.plan.recompute = "full";
  llama_.batch = 48;  // of which an evaluation takes no more at once than a step
  llama_.plan.micro_batches = 24;
  llama_.model.layers = 1;
  expect_least_limit(llama_, 2);
  EXPECT_EQ(predict_peak(llama_, 0, 2, kTinyVocabulary).when, "step 2");
}

TEST_F(PredictedPeakTest, LeavesTheRankThatAsksAsItWas) {
  const RankScope scope("rank 5");
  const std::int64_t before = RankContext::current().allocator().accounting().total_peak();
  int calls = 0;
  const auto count = [&](TrainStep&, int updates) { EXPECT_EQ(updates, calls++); };
  predict_peak(llama_, 1, 2, kTinyVocabulary, {.observe = count});
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(RankContext::current().rank_text, "rank 5");
  EXPECT_EQ(RankContext::current().allocator().accounting().total_peak(), before);
}

TEST_F(PredictedPeakTest, BadInput) {
  expect_error([&] { predict_peak(llama_, 2, 2, kTinyVocabulary); }, {"rank 2 of a ghost group of 2"});
  expect_error([&] { predict_peak(llama_, 0, 5, kTinyVocabulary); }, {"batch = 12", "5 ranks", "multiple of 5"});
  llama_.plan.mesh = "dp=3";
  expect_error([&] { predict_peak(llama_, 0, 2, kTinyVocabulary); }, {"dp=3", "this run has 2"});
}

}  // namespace
}  // namespace sherd::testing
