#pragma once
// A training run as an object, one per rank, whether ranks are processes or threads: data, steps, evaluation, saves.
// `sherd train` adds flags, the metrics file (config.metrics), signals and shares of CPUs; a program makes the config:
//
//   TrainConfig config;
//   config.data = "input.txt";
//   Trainer trainer(config, world_group());
//   trainer.run([](const StepMetrics& m) { fmt::print("{} {}\n", m.step, m.loss); });
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "nn/checkpoint/training_state.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/exec/memory_log.h"
#include "tools/train/config.h"
#include "tools/train/regroup.h"
#include "tools/train/run_data.h"
#include "tools/train/run_saves.h"
#include "tools/train/run_stops.h"
#include "tools/train/step_log.h"
#include "tools/train/step_trace.h"
#include "tools/train/train_step.h"
#include "tools/train/weights.h"

namespace sherd {

/// A run that comes back to the same save more often has diverged.
inline constexpr int kMostRollbacks = 10;

class Trainer {
 public:
  /// Called on every rank for each step, in order; `metrics.val_loss` is set when the step ended with an evaluation. On
  /// a GPU the loss of a step arrives while later ones are queued, and so does this call: at most a few steps late, and
  /// before an evaluation, a checkpoint or an error goes on.
  using StepObserver = StepLog::Observer;
  /// Called at every step boundary.
  using StopPoll = RunStops::StopPoll;
  using SavePoll = RunStops::SavePoll;

  /// Resolves the config, opens the data, builds, shards and initialises (by `init_from`, or resumes) the model. Gives
  /// `group` the config's deadline and link, this rank its memory limit and its threads (0: as many as it has; it is
  /// `sherd train` that shares the CPUs of a host among ranks). Collective over `group`. Throws
  /// Error, on every rank: ranks with different configs, those of resolve(), a hybrid strategy without replicas
  /// (nn::MeshAxes::with_replicas()), a batch that does not divide by the ranks, data that cannot be read, a checkpoint
  /// that does not fit, a folder that holds another run's saves, a device that is not there. An ExitError of kUsage but
  /// where a file cannot be read or is damaged, which the next start may find whole.
  Trainer(const TrainConfig& config, std::shared_ptr<ProcessGroup> group);
  /// Trainer of a run that outlives replicas: `config` is that of the group, whose mesh has the replicas that are left.
  /// Ranks without the state are given it by a replica that has it. Error, on every rank, if none has it whole.
  Trainer(const TrainConfig& config, std::shared_ptr<ProcessGroup> group, TrainGroup place);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains up to config.steps, evaluating and saving as configured. With `stop` or `save`, on all ranks or on none,
  /// the ranks ask one another after each step, and end together after the step in which one of them was asked to,
  /// saved if config.save is set, for which an evaluation is left; or save together and go on. By the clock of rank 0
  /// they save every config.save_minutes; with config.save_async beside the steps that follow, and a failure of that is
  /// thrown at the end of one of them. Replicas are compared as configured: Error naming the ranks that differ. A
  /// step that has diverged (divergence.h) is never saved: config.on_nonfinite skips it, or goes back to the last save,
  /// at most kMostRollbacks times to the same one. Collective. Throws ExitError, on every rank: kDiverged, which names
  /// the step and where it began; kStoppedWithoutSave when that last save fails; OutOfMemory, which says what would fit
  /// (memory_advice.h).
  TrainSummary run(const StepObserver& observe, const StopPoll& stop = {}, const SavePoll& save = {});

  /// One update, by the batch of step `step`, counted from 0; run() is the way to make them all. Returns the mean loss
  /// over the global batch and the gradient norm before clipping. Collective. Does not wait for the device.
  TrainStep::Result train_step(std::int64_t step);
  /// Mean loss over validation windows (all, or the first eval_batches x batch). Collective; waits for the device.
  double evaluate();
  /// A checkpoint of the present state in config.save, as of `step` updates. With config.save_async it is written while
  /// the caller goes on, which may fail later: run() looks at each step's end, finish_save() waits. Collective. Throws
  /// Error naming the file, on every rank.
  void save(std::int64_t step);
  /// Waits for a save that is still being written. Collective; nothing without one. Throws Error, on every rank, if it
  /// has failed.
  void finish_save() { saves_->finish(); }

  nn::LanguageModel& model() { return step_->model(); }
  /// Resolved; its mesh names replicate if the hosts are replicas, its vocabulary is that of the data.
  const TrainConfig& config() const { return config_; }
  const TokenData& data() const { return *data_.tokens(); }
  ProcessGroup& group() { return *group_; }
  const nn::JobMesh& mesh() const { return *mesh_; }
  /// Updates made before this run (0 unless resumed), or before this group of it.
  std::int64_t first_step() const { return first_step_; }
  /// Updates made in all.
  std::int64_t updates() const { return state_.updates; }
  const RunState& run_state() const { return state_; }

  // ---- of a run that outlives replicas ----

  /// An earlier group of the run has trained before this one.
  bool goes_on() const { return regroup_ && regroup_->place().goes_on; }
  /// run() has ended between two steps, as the next group is to be formed.
  bool is_regrouped() const { return regroup_ && regroup_->is_ended; }
  /// What a Trainer of the next group takes over. Local; the group may have failed.
  ckpt::CarriedState carry();
  RunRecord record() const { return regroup_->record(first_step_, state_, *saves_); }
  const RunData& shared_data() const { return data_; }
  /// Begin of a step that has been left.
  std::optional<Regroup::TimePoint> left_step_began() const { return regroup_->step_begin; }

  /// Lines of the metrics file that are known late: run() calls each once, on rank 0.
  struct LateLines {
    /// RunState::last_line, when what an earlier group has left of that step is done.
    std::function<void(const std::string& line)> write_last{};
    /// RunState::owed_line with the evaluation that was owed, which run() makes first.
    std::function<void(const std::string& line, std::int64_t step, double val_loss)> write_owed{};
  };
  void when_lines_are_known(LateLines late) { late_ = std::move(late); }

 private:
  /// together(), for what reads files: on every rank an Error, or an ExitError of kUsage if on one of them a value was
  /// wrong.
  void look_together(const std::function<void()>& work);
  void agree_on_config();
  void start();
  void open_group();
  void place_replicas();
  void open_data();
  void say_what_changes(const TrainConfig& saved);
  void check_recipe_of(const ckpt::Manifest& save);
  void open_initial();
  void claim_save_folder();
  void build();
  void explain(OutOfMemory& error) noexcept;
  std::vector<nn::StateEntry> state();
  void resume();
  void load(const ckpt::CheckpointReader& save);
  void prepare_saves();
  int run_step(std::int64_t step, StepTrace& trace, StepLog& log, const RunStops& stops);
  void make_step(std::int64_t step, StepTrace& trace, StepLog& log);
  bool is_due(std::int64_t step, std::int64_t every) const;
  void evaluate_step(StepLog& log, const RunStops& stops);
  /// Returns the signal to stop by.
  int make_owed_evaluation(const RunStops& stops);
  int end_step(std::int64_t step, StepLog& log, const RunStops& stops);
  int end_step_of_earlier_group(StepLog& log, const RunStops& stops);
  Wishes agreed_wishes(const RunStops& stops);
  void compare_replicas(std::int64_t step);
  std::optional<double> evaluate_unless_stopped(const RunStops& stops);
  void save_and_stop(std::int64_t step, int signal);
  [[noreturn]] void fail_diverged(const Divergence& found);
  DivergenceRule divergence_rule();
  void save_before_the_first_step(const RunStops& stops);
  std::int64_t roll_back(StepLog& log);
  std::pair<Tensor, Tensor> training_batch(std::int64_t step);

  TrainConfig config_;
  nn::MeshAxes asked_mesh_;  // config_.plan.mesh may name replicas that it does not: those of hosts
  std::shared_ptr<ProcessGroup> group_;
  std::optional<nn::JobMesh> mesh_;
  Device device_;
  std::unique_ptr<ckpt::CheckpointReader> resumed_;
  std::optional<RunSaves> saves_;
  std::unique_ptr<Weights> initial_;
  RunData data_;
  std::optional<MemoryLog> memory_log_;
  std::optional<TrainStep> step_;
  RunState state_;
  std::int64_t first_step_ = 0, local_batch_ = 0;
  BatchRows rows_;
  std::int64_t rolled_back_to_ = -1;                                 // the step of the save
  int rollbacks_in_a_row_ = 0;                                       // to that save
  std::optional<Regroup> regroup_;                                   // of a run that outlives replicas
  LateLines late_;
};

}  // namespace sherd
