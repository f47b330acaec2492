#pragma once
// What a Trainer does beside the plain loop in a run that outlives replicas (survive.h): it takes over from the group
// of ranks before, tells what has changed, and asks for the next group.
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "dtensor/mesh.h"
#include "nn/checkpoint/training_state.h"
#include "runtime/comm/group/process_group.h"
#include "tools/train/run_saves.h"
#include "tools/train/train_group.h"

namespace sherd {

class Regroup {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit Regroup(TrainGroup place) : place_(std::move(place)) {}

  const TrainGroup& place() const { return place_; }
  /// All ranks take the record of the first one that has the state. Collective.
  RunState take_over(RunSaves& saves, ProcessGroup& group);
  /// Ranks without the state are given it by a replica that has it. Collective. Error, on every rank, if none has it
  /// whole.
  void give_state(const std::vector<nn::StateEntry>& state, const DeviceMesh& root, ProcessGroup& group);
  /// Says what the step to come has cost since `start`, and who takes part in it.
  void say(const RunState& state, ProcessGroup& group, TimePoint start);
  /// Notes the replicas, for the metrics of a step.
  void note(StepMetrics& metrics);
  /// Whether the next group is to be formed. On rank 0.
  bool has_next() const { return place_.has_next(); }
  /// For ranks of the next group. `first_step`: updates made before this one.
  RunRecord record(std::int64_t first_step, const RunState& state, const RunSaves& saves) const;

  /// Begin of a step that is being made, or has been left.
  std::optional<TimePoint> step_begin{};
  /// run() has ended between two steps, as the next group is to be formed.
  bool is_ended = false;

 private:
  TrainGroup place_;
  std::set<int> newcomers_;                       // replicas that were given the state
  std::optional<StepMetrics::Regroup> untold_{};  // until the first step is made
};

}  // namespace sherd
