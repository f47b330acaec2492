// What the simulator plays beside a run that trains: peaks of every category, and who waits for whom.
#include <gtest/gtest.h>

#include <mutex>

#include <nlohmann/json.hpp>

#include "nn/module_hook.h"
#include "runtime/exec/simulate.h"
#include "runtime/op/core/grad_mode.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/tools/program_here.h"
#include "tests/tools/program_test.h"
#include "tests/tools/tiny_run.h"
#include "tools/train/calibration.h"
#include "tools/train/ghost_step.h"

namespace sherd::testing {

using namespace train;

namespace {

/// A machine whose numbers are round ones: who waits for whom does not depend on them.
Calibration made_up_machine(int ranks) {
  const Rate rate{{{1, 1e10}}, "made up"};
  Calibration made{.device = {.name = "made up", .call_seconds = 1e-6, .read = rate, .copied = rate, .source = "s"},
                   .build = "b",
                   .ranks = ranks,
                   .time = 1};
  made.device.products[DType::f32] = rate;
  made.device.links["ranks"] = {.name = "ranks", .link = {1e-5, 0, 1e9}, .source = "s"};
  return made;
}

/// What a rank holds at most in a step that evaluates nothing.
struct StepPeak {
  CategoryBytes peak{};
  std::int64_t bytes = 0;
};

class SimulatedRun : public ::testing::Test {
 protected:
  TempDir dir_;
  TrainConfig config_ = tiny_config(dir_.write("text.txt", tiny_text()));
};

TEST_F(SimulatedRun, PeaksAreThoseOfTheRunToTheByte) {
  for (const std::string_view strategy : {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard_state"})
    for (const std::string_view more : {"", "captured", "bf16"}) {
      TrainConfig config = config_;
      config.plan.strategy = strategy;
      config.plan.mesh = nn::strategy(strategy).needs_replicas ? "replicate=2,dp=2" : "dp=2";
      const int ranks = nn::strategy(strategy).needs_replicas ? 4 : 2;
      config.plan.compiled = more == "captured";
      if (more == "bf16") config.plan.param_dtype = DType::bf16;
      config.eval_every = 0;
      SCOPED_TRACE(fmt::format("{} {}", strategy, more));
      std::vector<StepPeak> measured(static_cast<std::size_t>(ranks));
      run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
        Trainer trainer(config, group);
        trainer.run([&](const StepMetrics& m) {
          if (m.step == 4) measured[static_cast<std::size_t>(group->rank())] = {m.memory_bytes, m.memory_peak_bytes};
        });
      });
      for (const int rank : {0, ranks - 1}) {
        const Timeline step = ghost_step(config, rank, ranks, kTinyVocabulary).timeline;
        const Simulation simulated = simulate(step, calibrated_cluster(made_up_machine(ranks), ranks, {}));
        const StepPeak& seen = measured[static_cast<std::size_t>(rank)];
        EXPECT_EQ(describe(simulated.peaks[0].peak), describe(seen.peak)) << "rank " << rank;
        EXPECT_EQ(simulated.peaks[0].bytes, seen.bytes) << "rank " << rank;
      }
    }
}

/// Computes for longer before a module does.
class Slower : public nn::ModuleHook {
 public:
  void before_forward(nn::Module&) override {
    const GradMode off(false);
    for (int i = 0; i < 12; ++i) product_ = matmul(side_, side_);
  }
  bool can_recompute() const override { return true; }

 private:
  Tensor side_ = full({192, 192}, 0.5, DType::f32), product_;
};

// A rank that computes for longer, and one that --slow makes so: the same one is waited for, by the same one.
TEST_F(SimulatedRun, TheSlowRankIsTheOneThatTheRunWaitsFor) {
  config_.steps = 12;
  std::mutex mutex;
  RunTimes times;
  double waits[2] = {};
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Trainer trainer(config_, group);
    if (group->rank() == 1)
      for (nn::Module* block : trainer.model().blocks()) block->add_hook(std::make_shared<Slower>());
    trainer.run([&](const StepMetrics& m) {
      const std::lock_guard lock(mutex);
      if (m.step > 4) waits[group->rank()] += m.exposed_skew_seconds;
      if (m.times && group->rank() == 0) times = *m.times;
    });
  });
  ASSERT_EQ(times.stragglers, std::vector{1});
  EXPECT_GT(waits[0], waits[1]);

  const std::string prices = dir_.write("machine.json", print(made_up_machine(2)));
  const std::string file = dir_.write("config.toml", to_toml(config_));
  const ProgramEnd end = sherd_here({"simulate", file, "--ranks", "2", "--model.vocabulary", "29", "--vocabulary",
                                     "auto", "--device-model", prices, "--slow", "1=3", "--json"});
  ASSERT_EQ(end.status, 0) << end.err;
  const auto result = nlohmann::json::parse(end.out);
  ASSERT_EQ(result.at("waited_for").size(), 1u);
  EXPECT_EQ(result.at("waited_for").at(0).at("rank"), times.stragglers[0]);
  EXPECT_EQ(result.at("waited_for").at(0).at("worst"), 0);
  EXPECT_GT(result.at("lost").at("slow ranks"), 0);
}

}  // namespace
}  // namespace sherd::testing
