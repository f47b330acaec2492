#pragma once
// The captured update of a run, before the run has made one.
#include <cstdint>

#include "compile/ir/program.h"
#include "tools/train/train_step.h"

namespace sherd::train {

/// Records updates of rank `rank` of `ranks`, as `options` ask for them, on a ghost of it (nn/plan/predict.h), as
/// config.plan.compiled would, before passes and without a budget: the settled update, whose optimizer has state. Takes
/// the time of four updates without their kernels; communicates with nobody. What it made of values of the host has no
/// contents. Throws as predict_peak().
ir::Program recorded_on_ghost(const TrainConfig& config, int rank, int ranks, std::int64_t data_vocabulary,
                              const TrainStep::Options& options);

}  // namespace sherd::train
