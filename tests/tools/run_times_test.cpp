// Times of a run. Oracles: closed forms for statistics; for units the calls that fully_shard makes per step.
#include "tools/train/run_times.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <mutex>
#include <numeric>

#include <nlohmann/json.hpp>

#include "tests/tools/tiny_run.h"
#include "tools/train/metrics.h"

namespace sherd::testing {

using namespace train;

namespace {

TEST(RunTimes, JitterOfKnownSteps) {
  EXPECT_EQ(jitter_of({}).count, 0);
  std::vector<double> seconds;
  for (int i = 100; i >= 1; --i) seconds.push_back(i);
  const StepJitter jitter = jitter_of(seconds);
  EXPECT_EQ(jitter.count, 100);
  EXPECT_EQ(jitter.p50, 50);
  EXPECT_EQ(jitter.p95, 95);
  EXPECT_EQ(jitter.max, 100);
  EXPECT_EQ(jitter.mad, 25);  // distances 0, 1, 1, 2, 2, ... 49, 49, 50
  const std::vector<double> one{2.5};
  EXPECT_EQ(jitter_of(one).p95, 2.5);
  EXPECT_EQ(jitter_of(one).mad, 0);
}

TEST(RunTimes, ARunOfAnyLengthKeepsTheTimesOfItsLastSteps) {
  const auto group = make_single_group();
  const RankScope scope;
  RunClock clock(*group);
  clock.add_step(9);
  for (std::size_t i = 0; i < kRecentSteps; ++i) clock.add_step(1);
  const RunTimes times = clock.times();
  EXPECT_EQ(times.steps.count, 100'001);
  EXPECT_EQ(times.steps.max, 1) << "the first is too long ago";
  const std::string text = print_run_times(times);
  EXPECT_NE(text.find("over 100001 steps\n                of the last 100000 of them"), text.npos) << text;
}

std::vector<int> stragglers(std::initializer_list<double> medians, double step) {
  std::vector<RankLateness> ranks;
  for (const double m : medians) ranks.push_back({.rank = static_cast<int>(ranks.size()), .median_seconds = m});
  return stragglers_of(ranks, step);
}

TEST(RunTimes, StragglersAreLateForAStepAndForTheirPeers) {
  EXPECT_EQ(stragglers({0, 0, 0.5, 0}, 1), (std::vector{2}));
  EXPECT_EQ(stragglers({0, 0, 0.5, 0}, 100), std::vector<int>{}) << "what is half a percent of a step";
  EXPECT_EQ(stragglers({0.1, 0, 0.3, 0.01, 0.01, 0.01}, 1), (std::vector{2, 0}));
  EXPECT_EQ(stragglers({0.2, 0.21, 0.22, 0}, 1), std::vector<int>{}) << "one rank is early";
  EXPECT_EQ(stragglers({0, 0}, 1), std::vector<int>{});
}

TEST(RunTimes, UnitsAddUpTheirQueues) {
  const std::vector<WorkTime> work{{"gather", "unshard", "blocks.0", 4, 2.0, 1.0, 0.25},
                                   {"reduce", "reduce", "blocks.0", 2, 1.0, 0.0, 0.0},
                                   {"replicate", "reduce", "blocks.0", 2, 3.0, 2.0, 2.0},
                                   {"gather", "unshard", "norm", 2, 9.0, 0.0, 0.0},
                                   {"collective", "all_reduce", "", 2, 9.0, 9.0, 0.0}};
  const std::vector<UnitTime> units = unit_times(work, 2);
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(units[0].unit, "blocks.0");
  EXPECT_EQ(units[0].gather.calls, 2);
  EXPECT_EQ(units[0].gather.seconds, 1);
  EXPECT_EQ(units[0].gather.exposed_transfer, 0.375);
  EXPECT_EQ(units[0].gather.exposed_skew, 0.125);
  EXPECT_EQ(units[0].reduce.calls, 2);
  EXPECT_EQ(units[0].reduce.seconds, 2);
  EXPECT_EQ(units[0].reduce.exposed_skew, 1);
  EXPECT_TRUE(unit_times(work, 0).empty());
}

double sum_of_step(const PartSeconds& seconds) {
  double sum = 0;
  for (std::size_t p = 0; p < seconds.size(); ++p)
    if (p != static_cast<std::size_t>(StepPart::evaluation) && p != static_cast<std::size_t>(StepPart::save))
      sum += seconds[p];
  return sum;
}

class RunTimesOfRuns : public ::testing::Test {
 protected:
  TempDir dir_;
  TrainConfig config_ = tiny_llama(dir_.write("text.txt", tiny_text()));
};

// Eager and replayed, on one rank and several: parts are those of the step, and of nothing else.
TEST_F(RunTimesOfRuns, PartsAddUpToTheStep) {
  for (const bool compile : {false, true}) {
    config_.plan.compiled = compile;
    config_.steps = 8;
    config_.eval_every = 4;
    config_.save = dir_ / fmt::format("save{}", compile);
    config_.save_every = 3;
    const auto start = std::chrono::steady_clock::now();
    PartSeconds all{};
    run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      Trainer trainer(config_, group);
      trainer.run([&](const StepMetrics& m) {
        EXPECT_DOUBLE_EQ(sum_of_step(m.seconds), m.step_seconds);
        const auto at = [&m](StepPart part) { return m.seconds[static_cast<std::size_t>(part)]; };
        for (const StepPart part : {StepPart::data, StepPart::forward, StepPart::backward, StepPart::optimizer})
          EXPECT_GT(at(part), 0) << name(part) << " of step " << m.step << (compile ? ", compiled" : "");
        EXPECT_LE(m.exposed_comm_seconds, m.step_seconds * 1.01);
        EXPECT_EQ(at(StepPart::evaluation) > 0, m.val_loss.has_value()) << m.step;
        EXPECT_EQ(at(StepPart::save) > 0, m.step == 4 || m.step == 7) << "those of the step before " << m.step;
        EXPECT_GT(m.mfu.value_or(1), 0);  // not given where the peak is not known
        if (group->rank() != 0) return;
        for (std::size_t p = 0; p < all.size(); ++p) all[p] += m.seconds[p];
      });
    });
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_LE(std::accumulate(all.begin(), all.end(), 0.0), wall);
  }
}

TEST_F(RunTimesOfRuns, TheHostIsThatOfEveryRankAtEvaluations) {
  config_.steps = 6;
  run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    Trainer trainer(config_, group);
    trainer.run([&](const StepMetrics& m) {
      ASSERT_EQ(m.times.has_value(), m.step == 6);
      if (!m.times) return;
      ASSERT_EQ(m.times->hosts.size(), 3u);
      for (const RankHost& rank : m.times->hosts) {
        EXPECT_EQ(rank.host, m.times->hosts[0].host);
        EXPECT_EQ(rank.process, m.times->hosts[0].process) << "threads of one process share what it had";
        EXPECT_GT(rank.cpu, 0);
        EXPECT_GE(rank.cpus, 1);
        EXPECT_EQ(rank.threads, 1);
      }
    });
  });
}

// Blocks are gathered for forward and for backward, the root once; all are reduced once. Evaluations gather too, and
// are no steps.
TEST_F(RunTimesOfRuns, UnitsAreCountedAsTheyCommunicate) {
  for (const bool compile : {false, true}) {
    config_.plan.compiled = compile;
    config_.steps = 9;
    config_.eval_every = 4;
    std::mutex mutex;
    run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      Trainer trainer(config_, group);
      int evaluations = 0;
      const TrainSummary summary = trainer.run([&](const StepMetrics& m) {
        EXPECT_EQ(m.times.has_value(), m.val_loss.has_value());
        if (!m.times) return;
        EXPECT_EQ(m.times->steps.count, m.step - 3);
        for (const UnitTime& u : m.times->units)
          EXPECT_EQ(u.gather.calls, u.unit.starts_with("blocks.") ? 2 : 1) << u.unit << ", without evaluations";
        ++evaluations;
      });
      const std::lock_guard lock(mutex);
      EXPECT_EQ(evaluations, 3);
      const RunTimes& times = summary.times;
      EXPECT_EQ(times.steps.count, 6);
      EXPECT_LE(times.steps.p50, times.steps.p95);
      EXPECT_LE(times.steps.p95, times.steps.max);
      ASSERT_EQ(times.ranks.size(), 2u);
      for (const RankLateness& r : times.ranks) EXPECT_FALSE(r.host.empty() || r.calls == 0);
      std::map<std::string, UnitTime> units;
      for (const UnitTime& u : times.units) units[u.unit] = u;
      ASSERT_EQ(units.size(), 3u);
      for (const auto& [name, u] : units) {
        EXPECT_EQ(u.gather.calls, name.starts_with("blocks.") ? 2 : 1) << name;
        EXPECT_EQ(u.reduce.calls, 1) << name;
        for (const UnitTime::Part& p : {u.gather, u.reduce}) {
          EXPECT_GT(p.seconds, 0);
          EXPECT_GE(p.exposed_skew, 0);
        }
      }
      const std::string text = print_run_times(times);
      for (const char* part : {"step time", "p95", "MAD", "straggler", "blocks.0", "skew"})
        EXPECT_NE(text.find(part), std::string::npos) << text;
    });
  }
}

TEST_F(RunTimesOfRuns, AreInTheLinesOfMetrics) {
  StepMetrics metrics;
  EXPECT_EQ(step_line(metrics).find("run_times"), std::string::npos);
  metrics.times = RunTimes{.steps = {.count = 4, .p50 = 0.5, .p95 = 1, .max = 2, .mad = 0.25},
                           .units = {{.unit = "blocks.0", .gather = {.calls = 2, .seconds = 0.125}}},
                           .ranks = {{.rank = 0, .host = "a", .calls = 9, .median_seconds = 0.5}},
                           .stragglers = {0}};
  const auto line = nlohmann::json::parse(step_line(metrics)).at("run_times");
  EXPECT_EQ(line.at("steps"), 4);
  EXPECT_EQ(line.at("step_seconds").at("mad"), 0.25);
  EXPECT_EQ(line.at("units").at(0).at("unit"), "blocks.0");
  EXPECT_EQ(line.at("units").at(0).at("gather").at("seconds"), 0.125);
  EXPECT_EQ(line.at("units").at(0).at("reduce").at("exposed_skew_seconds"), 0);
  EXPECT_EQ(line.at("ranks").at(0).at("median_lateness_seconds"), 0.5);
  EXPECT_EQ(line.at("stragglers").at(0), 0);
}

}  // namespace
}  // namespace sherd::testing
