#pragma once
// A small model in training on the ranks that are there: what each of its calls takes in place, between the others and
// beside the other ranks, as a step has them.
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/group/process_group.h"
#include "runtime/exec/timeline.h"
#include "tools/train/config.h"

namespace sherd::calibrate {

using namespace train;

/// The models that are trained: GPT and Llama of three sizes each, in f32 and bf16, on so many ranks, which shard all
/// where there are several.
std::vector<TrainConfig> calibrated_runs(int ranks);

/// Calls of one row on one set of shapes.
struct CallTimes {
  std::string row{};
  CallWork work{};
  std::vector<double> seconds{};  ///< of each that was made
};

/// What a run has shown.
struct TracedRun {
  std::string name{};
  Timeline timeline{};                       ///< of rank 0
  std::map<std::string, CallTimes> calls{};  ///< by row and shapes
  double beside = 0;                         ///< seconds of a step that no call computes in and none waits in
  double num_calls = 0;                      ///< of a step
  double step_seconds = 0;                   ///< of rank 0, untraced: the median
};

/// Trains: first steps that settle, then traced and untraced ones, for about `seconds`. Collective over the group.
TracedRun traced_run(const TrainConfig& config, const std::shared_ptr<ProcessGroup>& group, double seconds);

}  // namespace sherd::calibrate
