// A ghost rank lives for the time of a prediction, with a context, a world and a mesh of its own; the rank that asks
// goes on as it was. The order of allocations is the Trainer's: a batch is there while its update runs, and the numbers
// of an update until the next one begins.
#include "tools/train/predicted_peak.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "nn/checkpoint/save/async_saver.h"
#include "nn/memory_names.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/grad_mode.h"
#include "tools/train/saved_mesh.h"

namespace sherd {

namespace {

class Prediction {
 public:
  Prediction(const TrainConfig& config, int rank, int ranks, const PredictOptions& options)
      : config_(config),
        options_(options),
        scope_(fmt::format("rank {} of {}", rank, ranks), {.ghost = true}),
        device_(config.plan.device),
        memory_(RankContext::current().allocator(device_)) {
    set_world_group(make_ghost_group(rank, ranks));
    memory_.set_limit(options.memory_limit);
    const nn::JobMesh mesh(config_.plan.mesh, world_group());
    config_.link.shape(mesh);
    if (ranks > 1) RankContext::current().rank_text = mesh.rank_text();
    local_batch_ = local_batch(config_, mesh.num_data_ranks());
    mesh_.emplace(mesh);
  }

  PredictedPeak run(std::int64_t data_vocabulary) {
    if (!options_.look) return train(data_vocabulary);
    const MemoryLog log(
        memory_, [this](MemoryPicture& picture) { nn::name_by_slots(picture, step_ ? &step_->model() : nullptr); });
    try {
      PredictedPeak predicted = train(data_vocabulary);
      options_.look(log, &*step_);
      return predicted;
    } catch (const OutOfMemory&) {
      options_.look(log, step_ ? &*step_ : nullptr);
      throw;
    }
  }

 private:
  PredictedPeak train(std::int64_t data_vocabulary) {
    step_.emplace(config_, *mesh_, data_vocabulary);
    note("building the model");
    if (config_.save_async && device_ == Device::cpu()) {
      saver_.emplace(*world_group());
      saver_->reserve(nn::training_state(step_->model(), &step_->optimizer(), step_->scaler()));
      note("taking memory for copies of what is saved");
    }
    if (options_.observe) options_.observe(*step_, 0);
    const int steps = config_.plan.compiled ? 4 : 3;  // an order is recorded in the first, a program in the second
    for (int i = 0; i < steps; ++i) update(fmt::format("step {}", i + 1));
    predicted_.held = memory_.accounting().current();
    if (options_.evaluates) {
      memory_.accounting().reset_peaks();
      for (std::int64_t i = 0; i < std::min<std::int64_t>(config_.plan.micro_batches, 2); ++i) evaluate();
      count_peak();
      note("evaluation");
      update("a step after an evaluation");  // which may leave parameters gathered
    }
    return std::move(predicted_);
  }

  // Tokens or targets: i32 [rows, T]
  Tensor batch(std::int64_t rows) const { return Tensor::empty({rows, config_.model.sequence}, DType::i32, device_); }

  void update(std::string when) {
    memory_.accounting().reset_peaks();
    {
      step_->set_step(updates_);
      const Tensor tokens = batch(local_batch_), targets = batch(local_batch_);
      const TrainStep::Result result = step_->update(tokens, targets);
    }
    note(std::move(when));
    count_peak();
    ++updates_;
    if (options_.observe) options_.observe(*step_, updates_);
  }

  void evaluate() {
    const GradMode off(false);
    step_->model().train(false);
    const std::int64_t micro = local_batch_ / config_.plan.micro_batches;
    const Tensor loss = step_->model()(batch(micro), batch(micro)).local();
    step_->model().train(true);
  }

  void count_peak() {
    for (std::size_t c = 0; c < kNumCategories; ++c)
      predicted_.peak[c] = std::max(predicted_.peak[c], memory_.accounting().peak()[c]);
  }

  void note(std::string when) {
    const Accounting& account = memory_.accounting();
    if (account.total_peak() <= predicted_.bytes) return;
    predicted_.bytes = account.total_peak();
    predicted_.at_peak = account.at_peak();
    predicted_.when = std::move(when);
  }

  TrainConfig config_;
  const PredictOptions& options_;
  const RankScope scope_;
  const Device device_;
  Allocator& memory_;
  std::int64_t local_batch_ = 0;
  int updates_ = 0;
  std::optional<nn::JobMesh> mesh_;
  std::optional<TrainStep> step_;
  std::optional<nn::AsyncSaver> saver_;
  PredictedPeak predicted_;
};

}  // namespace

PredictedPeak predict_peak(const TrainConfig& config, int rank, int ranks, std::int64_t data_vocabulary,
                           const PredictOptions& options) {
  return Prediction(config, rank, ranks, options).run(data_vocabulary);
}

}  // namespace sherd
