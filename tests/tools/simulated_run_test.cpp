// What the simulator plays beside a run that trains: peaks of every category.
#include <gtest/gtest.h>

#include "runtime/exec/simulate.h"
#include "tests/tools/tiny_run.h"
#include "tools/train/calibration.h"
#include "tools/train/ghost_step.h"

namespace sherd::testing {

using namespace train;

namespace {

/// A machine whose numbers are round ones: peaks do not depend on them.
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
    for (const std::string_view more : {"", "bf16"}) {
      TrainConfig config = config_;
      config.plan.strategy = strategy;
      config.plan.mesh = nn::strategy(strategy).needs_replicas ? "replicate=2,dp=2" : "dp=2";
      const int ranks = nn::strategy(strategy).needs_replicas ? 4 : 2;
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

}  // namespace
}  // namespace sherd::testing
