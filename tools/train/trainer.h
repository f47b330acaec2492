#pragma once
// The training loop of `sherd train`, as an object: one per rank, whether ranks are processes or threads.
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "compile/compile.h"
#include "nn/checkpoint/folder_lock.h"
#include "nn/checkpoint/training_state.h"
#include "nn/data/token_data.h"
#include "nn/models/language_model.h"
#include "nn/optim/adamw.h"
#include "nn/optim/schedule.h"
#include "runtime/comm/group/process_group.h"
#include "tools/train/config.h"
#include "tools/train/job_mesh.h"
#include "tools/train/step_log.h"
#include "tools/train/step_trace.h"
#include "tools/train/weights.h"

namespace sherd {

class Trainer {
 public:
  /// Called on every rank for each step, in order; `metrics.val_loss` is set when the step ended with an evaluation. On
  /// a GPU the loss of a step arrives while later ones are queued, and so does this call: at most a few steps late, and
  /// before an evaluation, a checkpoint or an error goes on.
  using StepObserver = StepLog::Observer;
  /// Called at every step boundary: the number of the signal that asks this rank to stop, 0 if none does.
  using StopPoll = std::function<int()>;

  /// Opens the data, builds, shards and initialises (by `init_from`, or resumes) the model. Collective. Errors, on
  /// every rank: ranks with different configs, a batch that does not divide by the ranks, a checkpoint that does not
  /// fit, ...
  Trainer(const TrainConfig& config, std::shared_ptr<ProcessGroup> group);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains up to config.steps, evaluating and saving as configured. With `stop`, on all ranks or on none, the ranks
  /// ask one another after each step, and end together after the step in which one of them was asked to, saved if
  /// config.save is set; an evaluation is left for it. Collective. Throws ExitError, on every rank: kDiverged when a
  /// loss or a gradient norm is not finite, which names the step and where it began, and is never saved;
  /// kStoppedWithoutSave when that last save fails.
  TrainSummary run(const StepObserver& observe, const StopPoll& stop = {});

  /// One update; returns {mean loss over the global batch, gradient norm before clipping}, both 0-d, on the device of
  /// the run. Does not wait for that device.
  std::vector<Tensor> train_step(std::int64_t step);
  /// Mean loss over validation windows (all, or the first eval_batches x batch).
  double evaluate();
  void save(std::int64_t step);

  nn::LanguageModel& model() { return *model_; }
  const TokenData& data() const { return *data_; }
  ProcessGroup& group() { return *group_; }
  const JobMesh& mesh() const { return *mesh_; }
  /// Updates made before this run (0 unless resumed).
  std::int64_t first_step() const { return first_step_; }
  bool is_sharded() const { return config_.fully_shard; }

 private:
  void agree_on_config();
  void open_data();
  void open_initial();
  void claim_save_folder();
  void build();
  void spread();
  void resume();
  int run_step(std::int64_t step, StepTrace& trace, StepLog& log, const StopPoll& stop);
  int agreed_stop(const StopPoll& stop);
  std::optional<double> evaluate_unless_stopped(const StopPoll& stop);
  void save_and_stop(std::int64_t step, int signal);
  [[noreturn]] void fail_diverged(const StepMetrics& metrics);
  Tensor forward_backward(std::span<const Tensor> in);
  std::vector<Tensor> step_function(std::span<const Tensor> in);
  std::vector<Tensor> training_batch(std::int64_t step);

  TrainConfig config_;
  std::shared_ptr<ProcessGroup> group_;
  std::optional<JobMesh> mesh_;
  Device device_;
  std::unique_ptr<CheckpointReader> resumed_;
  std::optional<FolderLock> save_lock_;  // rank 0's
  std::string run_;                      // rank 0's: names the run in its saves, and is kept by who resumes
  Retention retention_;
  std::unique_ptr<Weights> initial_;
  std::optional<TokenData> data_;
  std::unique_ptr<nn::LanguageModel> model_;
  std::unique_ptr<nn::AdamW> optimizer_;
  nn::CosineSchedule schedule_;
  std::unique_ptr<CompiledStep> compiled_;
  std::int64_t first_step_ = 0, local_batch_ = 0;
};

}  // namespace sherd
