#pragma once
// A language model in training: parameters, optimizer, and the step that updates both, on any mesh. Trainer and the
// benchmarks train by it; data, evaluation, saves and logs are the caller's.
//
//   TrainStep step(config, nn::JobMesh(config.plan.mesh, group), data.vocabulary().size());
//   for (std::int64_t i = 0; i < config.steps; ++i) {
//     step.set_step(i);
//     const TrainStep::Result out = step.update(tokens, targets);  // i32 [B, T], this rank's part of the batch
//   }
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "nn/models/model_config.h"
#include "nn/optim/adamw.h"
#include "nn/optim/loss_scaler.h"
#include "nn/optim/schedule.h"
#include "nn/plan/job_mesh.h"
#include "tools/train/config.h"

namespace sherd::train {

/// The learning rates that [optimizer] describes, of a resolved config.
nn::CosineSchedule schedule_of(const TrainConfig& config);

/// Takes from `config` what makes the numbers and the layout: seed, accumulate, compile, fully_shard and what belongs
/// to it, loss_scale, [parallel], [model], [optimizer]. One per rank, on the rank's thread.
class TrainStep {
 public:
  struct Options {
    /// What a log of the job wants of an update: the loss averaged over the ranks with data of their own, and the norm
    /// of the gradients; one all-reduce of one number each. Off: the loss is that of this rank's tokens, there is no
    /// norm, so no clipping (optimizer.clip must be 0), and without a loss scale gradients that are not finite are
    /// applied like any others.
    bool metrics = true;
    /// All ranks of the mesh agree before each update to make it (nn/optim/update_agreement.h), when loss and norm are
    /// known. Needs metrics, the host, and what is offloaded to be nothing.
    bool agrees = false;
    /// Off: parameters have memory and no values; the first update is refused until all of them are loaded.
    bool draws = true;
  };
  /// All 0-d, on the device of the model.
  struct Result {
    Tensor loss;           ///< mean nats per token, not scaled: of the job, or of this rank (Options::metrics)
    Tensor grad_norm;      ///< before clipping, not scaled; undefined without metrics
    Tensor loss_scale;     ///< of this update; undefined if config.plan.loss_scale asks for none
    Tensor skipped_steps;  ///< this one included; undefined as well
  };

  /// Builds the model that config.model describes, for `data_vocabulary` tokens where it leaves that open; shards
  /// matrices over mesh.tensor(), then all parameters over mesh.data(); draws the initial values on the plan's device,
  /// the same bits on any mesh (unless options.draws is off); and makes AdamW for it. Sets the rank's seed and step of
  /// random numbers; rows of the batch are those of the mesh, unless nn::set_batch_part() has said which. All ranks of
  /// the mesh make one, but without communication. Throws ExitError of kUsage, the same on every rank: what resolve()
  /// refuses, a vocabulary that is too small, heads that do not divide by tp, ranks that would train models of their
  /// own.
  TrainStep(const TrainConfig& config, const nn::JobMesh& mesh, std::int64_t data_vocabulary, const Options& options);
  TrainStep(const TrainConfig& config, const nn::JobMesh& mesh, std::int64_t data_vocabulary)
      : TrainStep(config, mesh, data_vocabulary, Options()) {}
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  /// The next update is that of step `step`, counted from 0: its learning rate, its dropout. Until the first call the
  /// learning rate is optimizer.lr. Local; does not wait for the device.
  void set_step(std::int64_t step);

  /// Makes captured updates fit config.plan.memory_budget before the first of them; nothing without a budget. Where one
  /// rank cannot begin with updates that its ghost has recorded, none does: then updates are recorded as they run, and
  /// budget_text() says why. Collective over the mesh. Error, on all ranks, if the least that an update can hold is
  /// more.
  void prepare();
  /// One update by this rank's part of the batch: tokens and targets, i32 or i64 [B, T] on the model's device; B is a
  /// multiple of config.plan.micro_batches, T at most the model's positions. If config.plan.compiled is set, updates
  /// are captured and replayed, with the same bits. A norm that is not finite leaves parameters and optimizer state as
  /// they are (unless updates are made within backward: offload without clipping); with a loss scale such an update is
  /// skipped on all ranks and the scale backs off. Collective over the mesh; ranks that differ along tp give the same
  /// batch. Does not wait for the device.
  Result update(const Tensor& tokens, const Tensor& targets);
  /// The same, neither captured nor replayed.
  Result update_eagerly(const Tensor& tokens, const Tensor& targets);
  /// The first half of an update: adds to the gradients and returns the 0-d mean loss of this rank's tokens. Collective
  /// over the mesh.
  Tensor forward_backward(const Tensor& tokens, const Tensor& targets);

  /// The 0-d mean loss of this rank's tokens by the model in evaluation mode, in which it is left; no gradients. If
  /// config.plan.compiled is set, it is captured, apart from updates. Collective over the mesh. Does not wait for the
  /// device.
  Tensor evaluate(const Tensor& tokens, const Tensor& targets);

  /// Whether the last update() was a replay of a captured one.
  bool is_captured() const { return compiled_ && compiled_->mode() == CompiledStep::Mode::replay; }
  /// How the last update() ran, and why: "eager", "replayed: ...", as CompiledStep::why().
  std::string how() const { return compiled_ ? compiled_->why() : "eager"; }
  /// What was done to captured updates and what they will hold and take, a line; empty without a budget, and before
  /// prepare().
  std::string budget_text() const;
  /// What a captured update will hold, once prepare() or the first of them knows.
  std::optional<CompiledStep::Predicted> predicted() const;
  /// Why a rank's leaves (numerics = layout_free) run one after the other; empty: they share a pass.
  const std::string& why_micro_batches() const { return why_micro_batches_; }
  /// The recording of updates, before passes; null without one.
  const ir::Program* recorded() const { return compiled_ ? compiled_->recorded() : nullptr; }
  /// How the last evaluate() ran.
  std::string how_evaluated() const { return compiled_evaluation_ ? compiled_evaluation_->why() : "eager"; }
  /// The learning rate of a step counted from 0.
  double learning_rate(std::int64_t step) const { return schedule_.at(step); }
  nn::LanguageModel& model() { return *model_; }
  nn::AdamW& optimizer() { return *optimizer_; }
  /// Null if the loss is not scaled.
  nn::LossScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }

 private:
  void plan(std::int64_t data_vocabulary);
  std::unique_ptr<CompiledStep> captured_updates();
  void make_state();
  void begin_captured(std::int64_t data_vocabulary);
  bool steps_in_backward() const;
  Tensor micro_batches(std::span<const Tensor> in, bool steps_in_backward);
  Tensor loss_of_job(Tensor loss) const;
  std::vector<Tensor> run(std::span<const Tensor> in);
  std::vector<Tensor> evaluation(std::span<const Tensor> in);
  Result result_of(const std::vector<Tensor>& out) const;

  TrainConfig config_;
  nn::JobMesh mesh_;
  Options options_;
  std::unique_ptr<nn::LanguageModel> model_;
  std::unique_ptr<nn::AdamW> optimizer_;
  std::optional<nn::LossScaler> scaler_;
  nn::CosineSchedule schedule_;
  std::unique_ptr<CompiledStep> compiled_, compiled_evaluation_;
  /// A ghost's recording of updates that are not replayed from the first one on, and why.
  struct NotBegun {
    ir::Program recorded;
    std::string reason;
    std::optional<CompiledStep::Predicted> predicted{};
  };
  std::optional<NotBegun> not_begun_;
  std::string why_micro_batches_;
};

}  // namespace sherd::train
