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

#include "nn/data/token_data.h"
#include "runtime/comm/group/process_group.h"
#include "tools/train/config.h"
#include "tools/train/metrics.h"
#include "tools/train/summary.h"
#include "tools/train/train_step.h"

namespace sherd::train {

struct Run;

class Trainer {
 public:
  /// Called on every rank for each step, in order; `metrics.val_loss` is set when the step ended with an evaluation. On
  /// a GPU the loss of a step arrives while later ones are queued, and so does this call: at most a few steps late, and
  /// before an evaluation, a checkpoint or an error goes on.
  using StepObserver = std::function<void(const StepMetrics& metrics)>;
  /// Called at every step boundary: the number of the signal that asks this rank to stop, 0 if none does.
  using StopPoll = std::function<int()>;
  /// Whether this rank is asked to save and go on.
  using SavePoll = std::function<bool()>;

  /// Resolves the config, opens the data, builds, shards and initialises (by `init_from`, or resumes) the model. Gives
  /// `group` the config's deadline and link, this rank its memory limit and its threads (0: as many as it has; it is
  /// `sherd train` that shares the CPUs of a host among ranks). Collective over `group`. Throws
  /// Error, on every rank: ranks with different configs, those of resolve(), a hybrid strategy without replicas
  /// (nn::MeshAxes::with_replicas()), a batch that does not divide by the ranks, data that cannot be read, a checkpoint
  /// that does not fit, a folder that holds another run's saves, a device that is not there. An ExitError of kUsage but
  /// where a file cannot be read or is damaged, which the next start may find whole.
  Trainer(const TrainConfig& config, std::shared_ptr<ProcessGroup> group);
  /// A run that was opened otherwise, as one that outlives replicas (run.h).
  explicit Trainer(std::unique_ptr<Run> run);
  ~Trainer();
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
  void finish_save();

  nn::LanguageModel& model();
  /// Resolved; its mesh names replicate if the hosts are replicas, its vocabulary is that of the data.
  const TrainConfig& config() const;
  const TokenData& data() const;
  ProcessGroup& group();
  const nn::JobMesh& mesh() const;
  /// Updates made before this run (0 unless resumed), or before this group of it.
  std::int64_t first_step() const;
  /// Updates made in all.
  std::int64_t updates() const;
  /// What all of it works on (run.h).
  Run& opened() { return *run_; }

 private:
  const std::unique_ptr<Run> run_;
};

}  // namespace sherd::train
