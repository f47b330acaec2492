// What a run says that does not fit its limit. Oracles: a watcher of the test's own, which sees where a run without a
// limit first holds more; and the settings that are suggested, tried.
#include "tools/train/memory_advice.h"

#include <gtest/gtest.h>

#include <random>
#include <regex>

#include "tests/support/expect_error.h"
#include "tests/tools/out_of_memory.h"
#include "tests/tools/program_test.h"
#include "tools/train/ghost_training.h"
#include "tools/train/predicted_peak.h"

namespace sherd::testing {

using namespace train;

namespace {

constexpr int kCases = 20;

TrainConfig drawn(const std::string& data, std::mt19937& random, int& ranks) {
  const auto one_of = [&random](auto... values) {
    const std::array all{values...};
    return all[random() % all.size()];
  };
  TrainConfig config = random() % 2 ? tiny_config(data) : tiny_llama(data);
  ranks = one_of(1, 2, 2, 4);
  config.model.layers = one_of(1, 2, 3, 5);
  config.model.width = one_of(16, 32, 64);
  config.model.hidden = 4 * config.model.width;
  config.model.sequence = one_of(12, 24, 48);
  config.batch = one_of(8, 16, 24);
  config.plan.strategy = one_of("no_shard", "shard_optimizer", "shard_grad_op", "full_shard");
  config.plan.recompute = one_of("none", "none", "selective");
  config.steps = 4;
  config.eval_every = 3;
  return config;
}

class MemoryAdvice : public ProgramTest {};

TEST_F(MemoryAdvice, TwentyRunsThatDoNotFitSayWhereAndWhatWould) {
  for (unsigned seed = 1; seed <= kCases; ++seed) {
    std::mt19937 random(seed);
    int ranks = 1;
    TrainConfig config = drawn(data_, random, ranks);
    std::int64_t most = 0;
    for (int r = 0; r < ranks; ++r) most = std::max(most, predict_peak(config, r, ranks, kTinyVocabulary).bytes);
    config.memory_limit = most * static_cast<std::int64_t>(75 + random() % 23) / 100;
    SCOPED_TRACE(fmt::format("seed {}: {} of {} layers, width {}, batch {}, {}, recompute {}, {} ranks, limit {} of {}",
                             seed, config.model.style, config.model.layers, config.model.width, config.batch,
                             config.plan.strategy.text(), config.plan.recompute.text(), ranks, config.memory_limit,
                             most));
    expect_says_where_and_what_would(config, ranks);
  }
}

TEST_F(MemoryAdvice, ALimitThatNothingMeetsSaysTheLeastAndWhatHoldsIt) {
  TrainConfig config = tiny_llama(data_);
  config.memory_limit = 20'000;
  int rank = -1;
  const std::string text = failure_of(config, 1, rank);
  expect_within(text, {"no setting meets a limit of 20 KB", "the least is", "optimizer", "parameters", "tok.weight"});
  std::smatch found;
  const std::regex least(R"(the least is .*\(([0-9]+) bytes\), by (--[^,]*),)");
  ASSERT_TRUE(std::regex_search(text, found, least)) << text;
  config.memory_limit = std::stoll(found[1]);
  EXPECT_NO_THROW(train_tiny(with_flags(config, found[2]), 1));
  config.memory_limit /= 2;  // pieces of offloaded state shrink with the limit, so a byte less may fit
  EXPECT_THROW(train_tiny(with_flags(config, found[2]), 1), OutOfMemory);
}

// Whole gradients of f32 are four bytes an element; of two data ranks each has a half.
TEST_F(MemoryAdvice, MicroBatchesNameTheGradientsThatStay) {
  TrainConfig config = tiny_llama(data_);
  config.plan.strategy = "full_shard";
  std::int64_t elements = 0;
  const PredictedPeak peak =
      predict_peak(config, 0, 2, kTinyVocabulary,
                   {.observe = [&](TrainStep& step, int) { elements = step.model().num_parameters(); }});
  for (const bool shards : {false, true}) {
    config.plan.accumulate_shards = shards;
    const Advice advice = advise_on_memory(config, 2, kTinyVocabulary, peak.bytes - 1);
    const auto parts = std::ranges::find_if(
        advice.fits, [](const Suggestion& fits) { return fits.flags.starts_with("--accumulate "); });
    ASSERT_NE(parts, advice.fits.end());
    const auto bytes = static_cast<double>(4 * elements);
    EXPECT_GE(static_cast<double>(parts->gradients), shards ? 0.5 * bytes : bytes);
    EXPECT_LE(static_cast<double>(parts->gradients), 1.5 * bytes);  // and what the pass has made
    expect_within(parts->text(), {shards ? " of shards of gradients stay" : " of whole gradients stay",
                                  format_bytes(parts->gradients)});
  }
}

TEST_F(MemoryAdvice, ThereMayBeNoTime) {
  TrainConfig config = tiny_llama(data_);
  const Advice advice = advise_on_memory(config, 1, kTinyVocabulary, 20'000, std::chrono::milliseconds(0));
  EXPECT_FALSE(advice.is_complete);
  EXPECT_TRUE(advice.fits.empty());
}

// Both ranks run out of memory: one of them says what would fit.
TEST_F(MemoryAdvice, TheProgramSaysItOnce) {
  for (const int ranks : {1, 2}) {
    const ProgramEnd end = train(ranks, {"--memory-limit", ranks == 1 ? "160000" : "130000"});
    EXPECT_EQ(end.status, 1) << end.err;
    expect_within(end.err, {"out of memory", "asked for", "needs", "modules", "fits", "at most per rank"});
    const std::size_t first = end.err.find("saved activations");
    EXPECT_EQ(end.err.find("saved activations", first + 1), std::string::npos) << end.err;
    expect_within(end.err, {"  fits    not calibrated"});
    const std::string last = end.err.substr(end.err.rfind('\n', end.err.size() - 2) + 1);
    if (ranks == 1) expect_within(last, {"    --", " at most per rank"});
    else expect_within(last, {"sherd run: what fits, by rank ", ": --", " at most per rank"});
  }
}

TEST_F(MemoryAdvice, TheProgramExplainsItsMemory) {
  const ProgramEnd end = train(2, {"--memory-by-module", "--explain-peak"});
  EXPECT_EQ(end.status, 0) << end.err;
  expect_within(end.out, {"saved activations", "(model)", "blocks", "0-1 each", "memory of rank 0 at its peak", "held",
                          "blocks.0 full", "step time", "straggler"});
}

}  // namespace
}  // namespace sherd::testing
