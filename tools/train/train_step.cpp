#include "tools/train/train_step.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "compile/ir/homes.h"
#include "nn/layers/dropout.h"
#include "nn/optim/clip.h"
#include "nn/optim/update_agreement.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/plan/apply.h"
#include "nn/plan/leaf_pass.h"
#include "nn/random_rows.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/exec/step_clock.h"
#include "runtime/op/rows/ops.h"
#include "tools/train/exit_status.h"
#include "tools/train/ghost_recording.h"
#include "tools/train/model_factory.h"

namespace sherd::train {

namespace {

nn::AdamWOptions adamw_options(const TrainConfig::Optimizer& o) {
  return {.lr = o.lr,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .eps = o.eps,
          .weight_decay = o.weight_decay,
          .decay_matrices_only = o.decay_matrices_only};
}

}  // namespace

nn::CosineSchedule schedule_of(const TrainConfig& config) {
  const TrainConfig::Optimizer& o = config.optimizer;
  return {o.lr, o.min_lr, o.warmup, o.decay_steps};
}

TrainStep::TrainStep(const TrainConfig& config, const nn::JobMesh& mesh, std::int64_t data_vocabulary,
                     const Options& options)
    : config_(config), mesh_(mesh), options_(options) {
  as_usage([&] { plan(data_vocabulary); });
  const nn::Seed seed{static_cast<std::uint64_t>(config_.seed)};
  const nn::TrainingPlan& plan = config_.plan;
  if (options_.draws) model_->materialize(seed, plan.device);
  else model_->allocate(plan.device);
  optimizer_ = std::make_unique<nn::AdamW>(model_->parameters(), adamw_options(config_.optimizer));
  nn::apply_offload(plan, facts_of(config_, mesh_.group()->size()), *model_, *optimizer_);
  if (const auto scaling = plan.loss_scale.options(nn::has_f16(plan))) scaler_.emplace(*scaling);
  schedule_ = schedule_of(config_);
  if (!plan.compiled) return;
  compiled_evaluation_ = std::make_unique<CompiledStep>(
      [this](std::span<const Tensor> in) { return evaluation(in); },
      CompileOptions{.group = mesh_.group(), .passes = ir::passes_named(config_.passes)});
  compiled_ = captured_updates();
  if (!plan.memory_budget.is_set()) return;
  make_state();
  begin_captured(data_vocabulary);
}

std::unique_ptr<CompiledStep> TrainStep::captured_updates() {
  const nn::TrainingPlan& plan = config_.plan;
  CompileOptions options{
      .group = mesh_.group(), .passes = ir::passes_named(config_.passes), .memory_budget = plan.memory_budget};
  if (plan.memory_budget.is_set() && plan.offload_activations.any())
    options.activations_folder = plan.offload_activations.options(plan.device, 0).folder;
  return std::make_unique<CompiledStep>([this](std::span<const Tensor> in) { return run(in); }, std::move(options));
}

// All that an update would make when it first needs it, beside what is there since the plan was applied: a replay is
// to find it.
void TrainStep::make_state() {
  optimizer_->state();
  optimizer_->counts();
  if (steps_in_backward()) optimizer_->prepare_steps_in_backward();
  nn::random_step(config_.plan.device);
}

// The first update is to fit, so it is recorded before, by a ghost, which has no bytes of what the step makes of values
// of the host: a step with such constants is recorded by its first updates, as is one whose names mean something else
// on this rank, which trains another model too.
void TrainStep::begin_captured(std::int64_t data_vocabulary) {
  const ProcessGroup& group = *mesh_.group();
  Options asked = options_;
  asked.draws = true;  // nobody loads a ghost
  ir::Program recorded = recorded_on_ghost(config_, group.rank(), group.size(), data_vocabulary, asked);
  try {
    check(std::ranges::all_of(ir::homes_of(recorded), std::identity()), "they hold values of the host");
    compiled_->begin_with(recorded);
  } catch (const OutOfMemory&) { throw; } catch (const Error& error) {
    not_begun_ = {std::move(recorded), error.message()};
  }
}

// All that a wrong value can show in: the model has no memory yet, and no file and no device is touched.
void TrainStep::plan(std::int64_t data_vocabulary) {
  resolve(config_);
  const TrainConfig::Optimizer& o = config_.optimizer;
  check(options_.metrics || o.clip == 0, "optimizer.clip = {} needs the gradient norm, which is one of the metrics",
        o.clip);
  const nn::TrainingPlan& plan = config_.plan;
  check(!options_.agrees || (options_.metrics && plan.device == Device::cpu() && !plan.offload.any()),
        "ranks agree before each update on the host, with metrics and without offload; device = {}, metrics {}, "
        "offload = {}",
        to_string(plan.device), options_.metrics ? "on" : "off", plan.offload.text());
  nn::set_seed({static_cast<std::uint64_t>(config_.seed)});
  nn::set_step(0);
  const nn::LanguageModelConfig architecture = model_config(config_.model, data_vocabulary);
  model_ = nn::make_language_model(architecture);
  nn::apply(plan, facts_of(config_, mesh_.group()->size()), *model_, mesh_,
            nn::make_plan(architecture, plan.tensor_parallel));
  why_micro_batches_ = nn::why_micro_batches(plan, *model_, config_.batch / plan.leaves * config_.model.sequence);
}

void TrainStep::prepare() {
  if (!compiled_ || !config_.plan.memory_budget.is_set()) return;
  const std::vector<std::string> reasons = gather_text(*mesh_.group(), not_begun_ ? not_begun_->reason : "");
  const auto first = std::ranges::find_if_not(reasons, &std::string::empty);
  if (first == reasons.end()) return compiled_->prepare();
  if (!not_begun_) not_begun_ = {*compiled_->recorded(), *first};
  compiled_ = captured_updates();
  not_begun_->predicted = compiled_->predict(not_begun_->recorded);
}

std::optional<CompiledStep::Predicted> TrainStep::predicted() const {
  std::optional<CompiledStep::Predicted> known;
  if (compiled_) known = compiled_->predicted();
  return known || !not_begun_ ? known : not_begun_->predicted;
}

std::string TrainStep::budget_text() const {
  const std::optional<CompiledStep::Predicted> known = predicted();
  if (!known) return "";
  const auto text = [&](std::string_view which) {
    return fmt::format("{}; {} will hold {} and take {:.3g} ms\n", known->notes, which, format_bytes(known->peak),
                       known->seconds * 1e3);
  };
  if (!not_begun_) return text("an update");
  return fmt::format(
      "budget: the first three updates hold {} as without one, and the third its batch twice, since they are recorded "
      "as they run: {}\n{}",
      format_bytes(known->without), not_begun_->reason, text("a later one"));
}

void TrainStep::set_step(std::int64_t step) {
  nn::set_step(step);
  optimizer_->set_lr(schedule_.at(step));
}

Tensor TrainStep::forward_backward(const Tensor& tokens, const Tensor& targets) {
  const Tensor in[] = {tokens, targets};
  return micro_batches(in, false);
}

Tensor TrainStep::micro_batches(std::span<const Tensor> in, bool steps_in_backward) {
  nn::ForwardBackward options{.scaler = scaler(), .leaves_share_pass = why_micro_batches_.empty()};
  if (steps_in_backward)
    options.before_last = [this] { optimizer_->step_in_backward({.clears_gradients = !options_.metrics}); };
  const auto loss_of = [this](std::span<const Tensor> part) {
    step_clock().enter(StepPhase::forward);
    Tensor loss = (*model_)(part[0], part[1]);
    step_clock().enter(StepPhase::backward);
    return loss;
  };
  return nn::forward_backward(config_.plan, *model_, in, loss_of, options);
}

// Transfers of what is offloaded then hide behind backward. Clipping, and what may skip a step, want all gradients
// first.
bool TrainStep::steps_in_backward() const {
  return config_.plan.offload.any() && config_.optimizer.clip == 0 && !scaler_ && config_.on_nonfinite != "skip";
}

Tensor TrainStep::loss_of_job(Tensor loss) const {
  if (!options_.metrics || mesh_.num_data_ranks() == 1) return loss;
  return all_reduce(std::move(loss), mesh_.data_group(), ReduceKind::avg);
}

// A norm that is not finite leaves the parameters alone, so who looks for where it began finds them as they were.
std::vector<Tensor> TrainStep::run(std::span<const Tensor> in) {
  Tensor loss = micro_batches(in, steps_in_backward());
  step_clock().enter(StepPhase::optimizer);
  GradMode off(false);
  const double clip = config_.optimizer.clip, max_norm = clip > 0 ? clip : std::numeric_limits<double>::infinity();
  Tensor norm, scale;
  if (scaler_) {
    scale = add(scaler_->current_scale(), 0);
    norm = scaler_->unscale(*optimizer_, max_norm);
  } else if (options_.metrics) {
    const std::vector<nn::Parameter*> all = model_->parameters();
    norm = config_.plan.numerics.layout_free() ? nn::layout_free_grad_norm(all) : nn::grad_norm(all);
    if (!steps_in_backward()) nn::clip_grad_norm(*optimizer_, max_norm, norm);
  }
  if (options_.agrees) {
    loss = loss_of_job(loss);
    nn::agree_to_update(*optimizer_, std::vector{loss, norm}, *mesh_.group());
  }
  optimizer_->step_and_clear();
  if (scaler_) scaler_->update();
  if (!options_.agrees) loss = loss_of_job(loss);
  std::vector<Tensor> out{loss};
  if (options_.metrics) out.push_back(norm);
  if (scaler_) out.insert(out.end(), {scale, add(scaler_->skipped_steps(), 0)});
  return out;
}

std::vector<Tensor> TrainStep::evaluation(std::span<const Tensor> in) { return {(*model_)(in[0], in[1]).local()}; }

Tensor TrainStep::evaluate(const Tensor& tokens, const Tensor& targets) {
  GradMode off(false);
  model_->train(false);
  const Tensor in[] = {tokens, targets};
  return (compiled_evaluation_ ? (*compiled_evaluation_)(in) : evaluation(in))[0];
}

TrainStep::Result TrainStep::result_of(const std::vector<Tensor>& out) const {
  Result result;
  result.loss = out[0];
  if (options_.metrics) result.grad_norm = out[1];
  if (!scaler_) return result;
  result.loss_scale = out[out.size() - 2];
  result.skipped_steps = out.back();
  return result;
}

TrainStep::Result TrainStep::update(const Tensor& tokens, const Tensor& targets) {
  const StepClock::Scope updates(step_clock(), StepPart::forward);
  const Tensor in[] = {tokens, targets};
  return result_of(compiled_ ? (*compiled_)(in) : run(in));
}

TrainStep::Result TrainStep::update_eagerly(const Tensor& tokens, const Tensor& targets) {
  const Tensor in[] = {tokens, targets};
  return result_of(run(in));
}

}  // namespace sherd::train
