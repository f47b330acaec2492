// Activations of a GPU in memory of the host. Oracle: the same run with all on the device, bit for bit.
#include "nn/offload_activations.h"
#include "runtime/exec/hazards.h"
#include "tests/cuda/training/training_test.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

TEST_F(TrainingOnCuda, OffloadedActivationsGiveTheBitsOfMemoryInLess) {
  constexpr std::int64_t kUnit = 12 * 12 * 16 * 4;  // of B x T x D
  struct Row {
    bool llama, compile;
    const char* recompute;
  };
  for (const Row& row :
       {Row{false, false, "none"}, {false, true, "full"}, {true, true, "none"}, {true, false, "full"}}) {
    SCOPED_TRACE(fmt::format("llama {}, recompute {}, compile {}", row.llama, row.recompute, row.compile));
    TrainConfig config = on_cuda(row.llama ? llama_ : gpt_);
    config.model.layers = 6;
    config.model.dropout = row.llama ? 0 : 0.1;
    config.plan.recompute = row.recompute;
    config.plan.compiled = row.compile;
    const TinyRun in_memory = train_tiny(config, 1);
    const TinyRun outside = train_tiny(config, 1, [](Trainer& trainer) {
      nn::offload_activations(trainer.model(), {.bytes_in_flight = 4 * kUnit, .least_bytes = 1024});
    });
    EXPECT_EQ(outside.losses, in_memory.losses);
    EXPECT_EQ(outside.norms, in_memory.norms);
    EXPECT_EQ(outside.final, in_memory.final);
    EXPECT_LE(outside.peak_activations + kUnit, in_memory.peak_activations);
  }
}

TEST_F(TrainingOnCuda, OffloadOfActivationsIsASetting) {
  TrainConfig config = on_cuda(gpt_);
  const TinyRun in_memory = train_tiny(config, 1);
  config.plan.offload_activations = "blocks";
  EXPECT_EQ(train_tiny(config, 1).losses, in_memory.losses);
}

// Two steps behind each other, with nothing but the device's own order between them.
TEST_F(TrainingOnCuda, OffloadedActivationsHaveNoHazards) {
  run_ranks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    gpt_.steps = 3;
    Trainer trainer(on_cuda(gpt_), group);
    nn::offload_activations(trainer.model(), {.bytes_in_flight = 30'000, .least_bytes = 1024});
    trainer.train_step(0);
    const HazardChecker checker;
    for (int step = 1; step < 3; ++step) trainer.train_step(step);
  });
}

TEST_F(TrainingOnCuda, AFolderForActivationsOfAGpuIsRefused) {
  TrainConfig config = on_cuda(gpt_);
  config.plan.offload_activations = "blocks:" + dir_.path();
  config.model.width = 32;
  expect_error([&] { train_tiny(config, 1); }, {"goes to memory of the host", "leave out the folder"});
}

}  // namespace
}  // namespace sherd::testing
