#pragma once
// A training run as an object, one per rank, whether ranks are processes or threads: data, steps, evaluation, saves.
// `sherd train` adds flags, the metrics file (config.metrics), signals and shares of CPUs; a program makes the config:
//
//   TrainConfig config;
//   config.data = "input.txt";
//   Trainer trainer(config, world_group());
//   trainer.run([](const StepMetrics& m) { fmt::print("{} {}\n", m.step, m.loss); });
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tools/train/rollback.h"
#include "tools/train/run.h"
#include "tools/train/step_log.h"

namespace sherd::train {

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
  ///
  /// `place`: of a run that outlives replicas. `config` is that of the group then, whose mesh has the replicas that are
  /// left; ranks without the state are given it by a replica that has it. Error, on every rank, if none has it whole.
  Trainer(const TrainConfig& config, std::shared_ptr<ProcessGroup> group, std::optional<TrainGroup> place = {});

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
  TrainStep::Result train_step(std::int64_t step) { return run_->update(step); }
  /// Mean loss over validation windows (all, or the first eval_batches x batch). Collective; waits for the device.
  double evaluate();
  /// A checkpoint of the present state in config.save, as of `step` updates. With config.save_async it is written while
  /// the caller goes on, which may fail later: run() looks at each step's end, finish_save() waits. Collective. Throws
  /// Error naming the file, on every rank.
  void save(std::int64_t step) { run_->save(step); }
  /// Waits for a save that is still being written. Collective; nothing without one. Throws Error, on every rank, if it
  /// has failed.
  void finish_save() { run_->saves->finish(); }

  nn::LanguageModel& model() { return run_->step->model(); }
  /// Resolved; its mesh names replicate if the hosts are replicas, its vocabulary is that of the data.
  const TrainConfig& config() const { return run_->config; }
  const TokenData& data() const { return *run_->data.tokens(); }
  ProcessGroup& group() { return *run_->group; }
  const nn::JobMesh& mesh() const { return *run_->mesh; }
  /// Updates made before this run (0 unless resumed), or before this group of it.
  std::int64_t first_step() const { return run_->first_step; }
  /// Updates made in all.
  std::int64_t updates() const { return run_->state.updates; }
  const RunState& run_state() const { return run_->state; }
  /// What was done to captured updates so that they fit config().plan.memory_budget, a line; and what they were
  /// predicted to hold and take on this rank. Empty without a budget.
  std::string notes() const { return run_->step->notes(); }
  std::optional<CompiledStep::Predicted> predicted() const { return run_->step->predicted(); }

  // ---- of a run that outlives replicas ----

  /// An earlier group of the run has trained before this one.
  bool goes_on() const { return run_->regroup.goes_on(); }
  /// run() has ended between two steps, as the next group is to be formed.
  bool is_regrouped() const { return run_->regroup.is_ended(); }
  /// What a Trainer of the next group takes over. Local; the group may have failed.
  ckpt::CarriedState carry();
  RunRecord record() const { return run_->regroup.record(run_->first_step, run_->state, *run_->saves); }
  const RunData& shared_data() const { return run_->data; }
  /// Begin of a step that has been left.
  std::optional<Regroup::TimePoint> left_step_began() const { return run_->regroup.left_step_began(); }

  /// Lines of the metrics file that are known late: run() calls each once, on rank 0.
  struct LateLines {
    /// RunState::last_line, when what an earlier group has left of that step is done.
    std::function<void(const std::string& line)> write_last{};
    /// RunState::owed_line with the evaluation that was owed, which run() makes first.
    std::function<void(const std::string& line, std::int64_t step, double val_loss)> write_owed{};
  };
  void when_lines_are_known(LateLines late) { late_ = std::move(late); }

 private:
  std::unique_ptr<Run> run_;
  LateLines late_;
};

}  // namespace sherd::train
