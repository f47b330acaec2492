#pragma once
// What a run does beside the plain loop to outlive replicas (survive.h): it takes over from the group of ranks before,
// tells what has changed, and asks for the next group. Of a run whose ranks end together nothing here does anything.
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/mesh.h"
#include "nn/checkpoint/full/carried_state.h"
#include "nn/checkpoint/training_state.h"
#include "nn/random_rows.h"
#include "runtime/comm/group/process_group.h"
#include "tools/train/metrics.h"
#include "tools/train/run_data.h"
#include "tools/train/run_record.h"
#include "tools/train/run_saves.h"
#include "tools/train/run_stops.h"

namespace sherd::train {

/// The group of ranks that a Trainer is of, in a run that outlives replicas, and what it takes over from the one
/// before.
struct TrainGroup {
  /// Numbers of the first group: rows of the batch and dropout go by these, whichever ranks are left.
  int data_ranks = 1, data_rank = 0;
  /// Replicas of the first group that are left, and how many there were.
  std::vector<int> replicas{};
  int num_replicas = 1;

  /// The rest is of a later group. The batch is divided, the data read and the folder of saves the run's already.
  bool goes_on = false;
  std::int64_t updates = 0;           ///< made before
  std::vector<bool> has_state{};      ///< by rank of the group
  const ckpt::CarriedState* state{};  ///< this rank's; empty if it has none
  RunRecord record{};                 ///< of a rank that has the state
  double seconds_before = 0;          ///< that a step which was left had taken
  RunData data{};                     ///< may lack its tokens in the first group, where they are read

  /// Asked by rank 0 between steps: whether the next group is to be formed.
  std::function<bool()> has_next{};
};

/// Two changes told as one, since the group between them has made no step. Who was lost before both, and in between has
/// come and gone, is not told of again. `present`: after both.
StepMetrics::Regroup merged(const StepMetrics::Regroup& first, const StepMetrics::Regroup& second,
                            const std::vector<int>& present);

/// "replica 1", "replicas 0, 2".
std::string replicas_text(const std::vector<int>& replicas);

class Regroup {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  Regroup() = default;
  explicit Regroup(TrainGroup place) : place_(std::move(place)) {}

  bool survives() const { return place_.has_value(); }
  /// An earlier group of the run has trained before this one.
  bool goes_on() const { return place_ && place_->goes_on; }

  // ---- before the first step ----

  /// Rows of the batch and random rows go by this; unset: by the mesh.
  std::optional<nn::BatchPart> batch_part() const {
    return place_ ? std::optional(nn::BatchPart{place_->data_rank, 1, place_->data_ranks}) : std::nullopt;
  }
  /// The data that an earlier group has read; without tokens if there is none.
  RunData data() const { return place_ ? place_->data : RunData(); }
  /// All ranks take the record of the first one that has the state. Collective if the run goes on.
  void take_over(RunState& state, RunSaves& saves, ProcessGroup& group);
  /// Ranks without the state are given it by a replica that has it. Collective. Error, on every rank, if none has it
  /// whole. Of a run that goes on.
  void give_state(const std::vector<nn::StateEntry>& state, const DeviceMesh& root, ProcessGroup& group);
  /// Says what the step to come has cost since `start`, and who takes part in it.
  void say(const RunState& state, ProcessGroup& group, TimePoint start);

  // ---- in the loop ----

  void begin_step() {
    if (place_) step_begin_ = std::chrono::steady_clock::now();
  }
  /// The step is issued: notes the replicas, for its metrics.
  void end_step(StepMetrics& metrics);
  /// The step is known: its line is what the next group writes if this one has not.
  void note_line(const StepMetrics& metrics, RunState& state) const {
    if (place_) state.last_line = step_line(metrics);
  }
  /// Adds to what this rank is asked for that the next group is to be formed.
  void add_wish(Wishes& own, RunState& state, const RunSaves& saves, const ProcessGroup& group) const;
  /// run() has ended between two steps, as the next group is to be formed.
  void end_by(const Wishes& wishes) { is_ended_ = place_ && wishes.regroup && wishes.stop == 0; }
  bool is_ended() const { return is_ended_; }
  std::optional<SurvivalCounts> counts() const { return place_ ? std::optional(place_->record.counts) : std::nullopt; }

  // ---- for ranks of the next group ----

  /// `first_step`: updates made before this one.
  RunRecord record(std::int64_t first_step, const RunState& state, const RunSaves& saves) const;
  /// Begin of a step that has been left.
  std::optional<TimePoint> left_step_began() const { return step_begin_; }

 private:
  std::optional<TrainGroup> place_;
  std::optional<TimePoint> step_begin_;  // of the step that is being made
  bool is_ended_ = false;
  std::set<int> newcomers_;                       // replicas that were given the state
  std::optional<StepMetrics::Regroup> untold_{};  // until the first step is made
};

}  // namespace sherd::train
