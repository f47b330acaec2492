// A run that goes on with another number of ranks, strategy or mesh: the same state bit for bit, and the losses of the
// run that was not interrupted, but for rounding. Oracle: that run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tests/tools/tiny_run.h"
#include "tools/train/trainer.h"

namespace sherd::testing {

using namespace train;

namespace {

constexpr std::int64_t kBefore = 20, kAfter = 20;  // steps

struct Layout {
  const char* mesh;
  const char* strategy;
  int ranks;
};
// All layouts of 1 to 4 ranks: those of full_shard, of replicas, of tensor parallelism.
constexpr Layout kLayouts[] = {{"", "full_shard", 1},
                               {"", "full_shard", 2},
                               {"", "full_shard", 3},
                               {"", "full_shard", 4},
                               {"replicate=2,dp=1", "hybrid_shard", 2},
                               {"replicate=3,dp=1", "hybrid_shard", 3},
                               {"replicate=2,dp=2", "hybrid_shard", 4},
                               {"tp=2", "full_shard", 2},
                               {"tp=3", "full_shard", 3},
                               {"tp=4", "full_shard", 4},
                               {"dp=2,tp=2", "full_shard", 4}};

TrainConfig in_layout(TrainConfig config, const Layout& layout) {
  config.plan.mesh = layout.mesh;
  config.plan.strategy = layout.strategy;
  return config;
}

/// A fifth of the pairs of layouts, in which each layout is with several others. All pairs take a minute.
bool is_tried(const Layout& from, const Layout& to) { return (7 * (&from - kLayouts) + 3 * (&to - kLayouts)) % 5 == 0; }

std::string name_of(const Layout& layout) {
  return fmt::format("{} on {} ranks, mesh \"{}\"", layout.strategy, layout.ranks, layout.mesh);
}

/// Relative difference of the losses after the save.
struct Difference {
  double largest = 0, typical = 0;  // the mean's root of squares
};
Difference difference_of_losses(const std::vector<double>& a, const std::vector<double>& b) {
  Difference difference;
  for (std::size_t i = 1; i <= static_cast<std::size_t>(kAfter); ++i) {
    const double own = std::abs(a.at(a.size() - i) - b.at(b.size() - i)) / std::abs(b.at(b.size() - i));
    difference.largest = std::max(difference.largest, own);
    difference.typical += own * own / static_cast<double>(kAfter);
  }
  difference.typical = std::sqrt(difference.typical);
  return difference;
}

class ResumeElsewhere : public ::testing::Test {
 protected:
  // 12 heads, for any number of ranks of tensor parallelism.
  TrainConfig llama() const {
    TrainConfig config = tiny_llama(data_);
    config.model.heads = config.model.kv_heads = 12;
    config.model.width = 24;
    config.model.hidden = 41;
    config.steps = kBefore + kAfter;
    config.optimizer.decay_steps = config.steps;
    config.optimizer.lr = 1e-3;
    resolve(config);
    return config;
  }
  /// The whole run, which leaves a save of step kBefore.
  TinyRun whole_run(TrainConfig config, const Layout& layout, const TempDir& saves) {
    config = in_layout(std::move(config), layout);
    config.save = saves.path();
    config.save_every = kBefore;
    return train_tiny(config, layout.ranks);
  }
  TinyRun rest_of_run(TrainConfig config, const Layout& layout, const TempDir& saves) {
    config = in_layout(std::move(config), layout);
    config.resume = saves / fmt::format("step-{:06}", kBefore);
    return train_tiny(config, layout.ranks);
  }

  TempDir dir_;
  std::string data_ = dir_.write("text.txt", tiny_text());
};

TEST_F(ResumeElsewhere, F160_LossesInF32AreThoseOfTheRunThatGoesOn) {
  double largest = 0;
  for (const Layout& from : kLayouts) {
    const TempDir saves;
    const TinyRun whole = whole_run(llama(), from, saves);
    Values state;
    for (const Layout& to : kLayouts) {
      if (!is_tried(from, to)) continue;
      const TinyRun rest = rest_of_run(llama(), to, saves);
      if (state.empty()) state = rest.initial;
      EXPECT_EQ(rest.initial, state) << name_of(from) << " -> " << name_of(to);
      ASSERT_EQ(rest.losses.size(), static_cast<std::size_t>(kAfter));
      const double difference = difference_of_losses(rest.losses, whole.losses).largest;
      EXPECT_LE(difference, 1e-6) << name_of(from) << " -> " << name_of(to);
      largest = std::max(largest, difference);
    }
  }
  fmt::print("largest relative difference of a loss in {} steps: {:.1e}\n", kAfter, largest);
}

// In bf16 layouts differ by much more than their sums do; a resume adds nothing to that.
TEST_F(ResumeElsewhere, F160_LossesInBf16DifferAsThoseOfTwoRunsDo) {
  TrainConfig config = llama();
  config.plan.param_dtype = DType::bf16;
  std::map<std::string, TinyRun> runs;
  std::map<std::string, TempDir> folders;
  double most = 0;
  for (const Layout& from : kLayouts) runs[name_of(from)] = whole_run(config, from, folders[name_of(from)]);
  for (const Layout& from : kLayouts) {
    const TempDir& saves = folders.at(name_of(from));
    const TinyRun& whole = runs.at(name_of(from));
    for (const Layout& to : kLayouts) {
      if (!is_tried(from, to)) continue;
      const TinyRun rest = rest_of_run(config, to, saves);
      const double difference = difference_of_losses(rest.losses, whole.losses).typical;
      const double two_runs = difference_of_losses(runs.at(name_of(to)).losses, whole.losses).typical;
      EXPECT_LE(difference, 1.5 * two_runs) << name_of(from) << " -> " << name_of(to);
      if (two_runs > 0) most = std::max(most, difference / two_runs);
    }
  }
  fmt::print("a resumed run differs {:.2f} times as much as two runs at most\n", most);
}

}  // namespace
}  // namespace sherd::testing
