#pragma once
// What a run will hold and take, before its first step and beside what it has measured: memory by a ghost of the rank,
// seconds by a calibration of this machine (calibration.h). Within a memory budget both are what the run itself has
// predicted.
#include <optional>
#include <string>

#include "runtime/comm/group/host_group.h"
#include "runtime/exec/memory_log.h"
#include "tools/train/trainer.h"

namespace sherd::train {

struct PredictedRun {
  CategoryBytes bytes{};  ///< most of each category on this rank
  std::int64_t peak = 0;  ///< most of all together
  MemoryLog::Moment moment{};
  std::optional<double> seconds{}, exposed{};  ///< of a step; none where nothing prices it
  std::optional<CommCounts> comm{};            ///< of a step; none within a budget
  std::string prices{};                        ///< where seconds are from, or why there are none
};

/// Local; takes the time of eight updates without their kernels. Nothing where a step does other than a ghost makes: it
/// agrees with the replicas that are left.
std::optional<PredictedRun> predict_run(Trainer& trainer);

/// A line for each category, the peak and where it is, a step and its tokens per second.
std::string print_predicted(const PredictedRun& predicted, const TrainConfig& config);

}  // namespace sherd::train
