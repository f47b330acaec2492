#pragma once
// A run that has been opened on this rank: what its steps, evaluations and saves work on. One per rank, on the rank's
// thread.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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

/// In the state of a save: "tree", in which order its reductions added (docs/numerics.md), followed by sums_text().
/// Saves of before say nothing, and added ranks one after the other. "... of neighbours": micro-batches of a rank were
/// neighbouring rows, which those of before were with accumulate = 1 alone.
inline constexpr const char* kSumsOfSave = "sums";
inline constexpr std::string_view kSumsOfNeighbours = " of neighbours";  ///< within that word
/// ... or "fast": in the order of NCCL.
inline constexpr std::string_view kFastSums = "fast";
/// In the state of a save: kernels_text(), which saves of before do not have.
inline constexpr const char* kKernelsOfSave = "kernels";
/// In the state of a save of GPUs: the job's picks (exec/picks.h), as a text.
inline constexpr const char* kPicksOfSave = "picks";

/// Lines of the metrics file that are known late: a run calls each once, on rank 0.
struct LateLines {
  /// RunState::last_line, when what an earlier group has left of that step is done.
  std::function<void(const std::string& line)> write_last{};
  /// RunState::owed_line with the evaluation that was owed, which the run makes first.
  std::function<void(const std::string& line, std::int64_t step, double val_loss)> write_owed{};
};

struct Run {
  TrainConfig config{};                   ///< resolved; its mesh names replicas if the hosts are replicas
  nn::MeshAxes asked_mesh{};              ///< as it was given
  std::shared_ptr<ProcessGroup> group{};  ///< of the device's memory too
  std::string group_text{};               ///< "memory of GPUs through the host (staged), "; empty on CPUs
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
  LateLines late{};

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

  /// What ranks of the next group take over: the state, and the record of the run. Local; the group may have failed.
  ckpt::CarriedState carry();
  RunRecord record() const { return regroup.record(first_step, state, *saves); }
};

/// Resolves the config, opens the data, builds, shards and initialises (by `init_from`, or resumes) the model.
/// Collective over `group`. Throws as the constructor of Trainer. `regroup`: of a run that outlives replicas. `config`
/// is that of the group then, whose mesh has the replicas that are left; ranks without the state are given it by a
/// replica that has it. Error, on every rank, if none has it whole.
std::unique_ptr<Run> open_run(const TrainConfig& config, std::shared_ptr<ProcessGroup> group, Regroup regroup = {});

}  // namespace sherd::train
