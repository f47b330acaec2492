#pragma once
// A settled step of a run, as a ghost of one of its ranks makes it.
#include <cstdint>

#include "runtime/exec/timeline.h"
#include "tools/train/predicted_peak.h"

namespace sherd::train {

struct GhostStep {
  PredictedPeak memory{};
  Timeline timeline{};  ///< played by simulate()
};

/// Runs a ghost of rank `rank` of `ranks` that train as `config` says, without evaluations, and takes down its second
/// update, of a captured step the first that is replayed. Takes the time of four updates without their kernels. Throws
/// as predict_peak().
GhostStep ghost_step(const TrainConfig& config, int rank, int ranks, std::int64_t data_vocabulary);

}  // namespace sherd::train
