#pragma once
// A benchmark model's training run, as all our children train it: AdamW of lr 3e-4, betas 0.9 and 0.95, weight decay
// 0.1 of all parameters, no gradient norm and no clipping; the peers' loops do the same.
#include <memory>
#include <string>

#include "tools/bench/models.h"
#include "tools/train/train_step.h"

namespace sherd::bench {

struct TrainingOptions {
  std::string dtype = "f32";  ///< bf16, f16: by fully_shard's policy, with f32 masters and reductions, on one rank too
  std::string device = "cpu";
  bool captured = true;                                 ///< replay a recording
  bool prefetch = true;                                 ///< gather the next group while one computes
  bool tensor_parallel = false;                         ///< ranks share one batch and shard the model's matrices
  std::string strategy = "full_shard", mesh{}, link{};  ///< as the keys of TrainConfig; tensor parallelism has its mesh
  std::string recompute = "none";                       ///< as the key of TrainConfig
};

/// The run on `ranks` ranks, resolved: on several sharded as the strategy says, or tensor parallel.
TrainConfig train_config(const BenchModel& model, const TrainingOptions& options, int ranks);
/// Its step, materialised from seed 1; loss and work are those of this rank alone (no TrainStepOptions::metrics).
/// Collective if tensor parallel.
TrainStep train_step(const BenchModel& model, const TrainingOptions& options,
                     const std::shared_ptr<ProcessGroup>& group);

}  // namespace sherd::bench
