#include "tools/train/ghost_recording.h"

#include "tools/train/ghost_training.h"

namespace sherd::train {

ir::Program recorded_on_ghost(const TrainConfig& config, int rank, int ranks, std::int64_t data_vocabulary,
                              const TrainStep::Options& options) {
  TrainConfig without = config;
  without.plan.memory_budget = "none";
  ir::Program recorded;
  const auto take = [&](TrainStep& step, int) {
    if (const ir::Program* const program = step.recorded()) recorded = *program;
  };
  predict_peak(without, rank, ranks, data_vocabulary,
               {.evaluates = false, .step = options, .batch_part = nn::drawn_by().part, .observe = take});
  return recorded;
}

}  // namespace sherd::train
