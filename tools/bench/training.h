#pragma once
// A benchmark model's training run, as all our children train it: AdamW of lr 3e-4, betas 0.9 and 0.95, weight decay
// 0.1 of all parameters, no gradient norm and no clipping; the peers' loops do the same.
#include <memory>

#include "tools/bench/models.h"
#include "tools/train/train_step.h"

namespace sherd::bench {

/// The run on `ranks` ranks by `plan`, resolved: sharded where several ranks have data of their own, or where the plan
/// asks for a dtype or a strategy, with f32 masters and reductions on one rank too. Along tp the sequence is sharded.
TrainConfig train_config(const BenchModel& model, const nn::TrainingPlan& plan, int ranks);
/// Its step, materialised from seed 1; loss and work are those of this rank alone (no TrainStepOptions::metrics).
/// Collective if there are several axes.
TrainStep train_step(const BenchModel& model, const nn::TrainingPlan& plan, const std::shared_ptr<ProcessGroup>& group,
                     const Links& link = {});

}  // namespace sherd::bench
