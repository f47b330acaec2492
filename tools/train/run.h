#pragma once
// A run that has been opened on this rank: what its steps, evaluations and saves work on. One per rank, on the rank's
// thread.
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "nn/checkpoint/training_state.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/exec/memory_log.h"
#include "tools/train/config.h"
#include "tools/train/regroup.h"
#include "tools/train/run_data.h"
#include "tools/train/run_saves.h"
#include "tools/train/run_stops.h"
#include "tools/train/train_step.h"

namespace sherd::train {

/// In the state of a save: "tree", in which order its reductions added (docs/numerics.md). Those of before say nothing,
/// and added ranks one after the other.
inline constexpr const char* kSumsOfSave = "sums";

struct Run {
  TrainConfig config{};       ///< resolved; its mesh names replicas if the hosts are replicas
  nn::MeshAxes asked_mesh{};  ///< as it was given
  std::shared_ptr<ProcessGroup> group{};
  Regroup regroup{};
  std::optional<nn::JobMesh> mesh{};
  Device device{};
  std::optional<RunSaves> saves{};
  RunData data{};
  BatchRows rows{};
  std::optional<MemoryLog> memory_log{};  ///< rank 0's, with config.explain_peak
  std::optional<TrainStep> step{};
  RunState state{};
  std::int64_t first_step = 0;  ///< updates made before this run, or before this group of it

  std::vector<nn::StateEntry> training_state() {
    return nn::training_state(step->model(), &step->optimizer(), step->scaler());
  }
  /// Tokens and targets of a step counted from 0, on the device.
  std::pair<Tensor, Tensor> batch_of(std::int64_t step) const;
  /// One update. Collective. Does not wait for the device.
  TrainStep::Result update(std::int64_t step);
  /// Mean loss over the validation windows that config asks for; nothing if a signal has stopped it. Collective; waits
  /// for the device.
  std::optional<double> evaluate(const RunStops& stops);
  /// A save of the present state, as of `step` updates. Collective.
  void save(std::int64_t step);
  /// Adds to the error what would fit (memory_advice.h).
  void explain(OutOfMemory& error) noexcept;
};

/// Resolves the config, opens the data, builds, shards and initialises (by `init_from`, or resumes) the model.
/// Collective over `group`. Throws as the constructor of Trainer.
std::unique_ptr<Run> open_run(const TrainConfig& config, std::shared_ptr<ProcessGroup> group, Regroup regroup);

}  // namespace sherd::train
