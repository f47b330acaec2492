// A sequence that does not fit without recomputation, in small: `sherd train` ends by the named error, and trains with
// it, within the same limit and to the same losses. tools/configs/long-context.toml is the large one.
#include <algorithm>

#include "tests/tools/program_test.h"
#include "tools/train/predicted_peak.h"

namespace sherd {

using namespace train;

namespace {

class LongContext : public testing::ProgramTest {
 protected:
  static constexpr int kRanks = 2;
  static TrainConfig long_config(const std::string& data) {
    TrainConfig config = testing::tiny_config(data);
    config.steps = 2;
    config.batch = 2;
    config.model.layers = 3;
    config.model.sequence = config.model.positions = 256;
    resolve(config);
    return config;
  }
  /// The least limit of a run that keeps so little.
  std::int64_t least_limit(const std::string& recompute) const {
    TrainConfig config = long_config(data_);
    config.plan.recompute = recompute;
    std::int64_t least = 0;
    for (int rank = 0; rank < kRanks; ++rank) least = std::max(least, predict_peak(config, rank, kRanks, 29).bytes);
    return least;
  }
  testing::ProgramEnd run(const std::string& recompute, std::int64_t limit) const {
    return sherd({"run", "-n", std::to_string(kRanks), "--", SHERD_PROGRAM, "train", long_file_, "--recompute",
                  recompute, "--memory-limit", std::to_string(limit)});
  }
  void expect_does_not_fit(const std::string& recompute, std::int64_t limit) const {
    SCOPED_TRACE(recompute);
    const auto end = run(recompute, limit);
    EXPECT_EQ(end.status, kFailed);
    testing::expect_within(end.err, {"out of memory", "of the limit of", "activations"});
  }
  /// What the run says of its losses.
  std::string losses(const std::string& recompute, std::int64_t limit) const {
    SCOPED_TRACE(recompute);
    const auto end = run(recompute, limit);
    EXPECT_EQ(end.status, kDone) << end.err;
    const std::size_t from = end.out.find("loss "), to = end.out.find(';', from);
    return end.out.substr(from, to - from);
  }
  std::string long_file_ = dir_.write("long.toml", to_toml(long_config(data_)));
};

TEST_F(LongContext, FitsByRecomputationAlone) {
  const std::int64_t none = least_limit("none"), selective = least_limit("selective"), full = least_limit("full");
  EXPECT_LT(selective, none);
  EXPECT_LT(full, selective);
  const std::string expected = losses("none", none);
  EXPECT_FALSE(expected.empty());
  expect_does_not_fit("none", selective);
  EXPECT_EQ(losses("selective", selective), expected);
  expect_does_not_fit("selective", full);
  EXPECT_EQ(losses("full", full), expected);
}

}  // namespace
}  // namespace sherd
