// The order of allocations is the Trainer's: a batch is there while its update runs, and the numbers of an update until
// the next one begins.
#include "tools/train/predicted_peak.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "nn/checkpoint/save/async_saver.h"
#include "runtime/comm/job/world.h"
#include "runtime/op/core/grad_mode.h"
#include "tools/train/ghost_training.h"
#include "tools/train/saved_mesh.h"

namespace sherd::train {

namespace {

/// A run on its ghost.
struct GhostRun {
  TrainConfig config;
  std::int64_t local_batch = 0;
  TrainStep step;
  std::optional<nn::AsyncSaver> saver{};

  GhostRun(const TrainConfig& c, const nn::JobMesh& mesh, std::int64_t data_vocabulary, const PredictOptions& options)
      : config(c), step(c, mesh, data_vocabulary, options.step) {
    const int parts = options.batch_part ? static_cast<int>(options.batch_part->all) : mesh.num_data_ranks();
    local_batch = train::local_batch(c, parts);
    config.plan = nn::on_ranks(config.plan, parts);
    if (!c.save_async || c.plan.device != Device::cpu()) return;
    saver.emplace(*world_group());
    saver->reserve(nn::training_state(step.model(), &step.optimizer(), step.scaler()));
  }

  // Tokens or targets: i32 [rows, T]
  Tensor batch(std::int64_t rows) const {
    return Tensor::empty({rows, config.model.sequence}, DType::i32, config.plan.device);
  }
  void update(std::int64_t number) {
    step.set_step(number);
    const Tensor tokens = batch(local_batch), targets = batch(local_batch);
    const TrainStep::Result result = step.update(tokens, targets);
  }
  void evaluate() {
    const GradMode off(false);
    const std::int64_t parts = config.plan.micro_batches;
    step.model().train(false);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(parts, 2); ++i)
      step.model()(batch(local_batch / parts), batch(local_batch / parts)).local();
    step.model().train(true);
  }
};

}  // namespace

PredictedPeak predict_peak(const TrainConfig& config, int rank, int ranks, std::int64_t data_vocabulary,
                           const PredictOptions& options) {
  TrainStep* step = nullptr;
  const auto build = [&](const nn::JobMesh& mesh) {
    config.link.shape(mesh);
    nn::set_batch_part(options.batch_part);
    const auto run = std::make_shared<GhostRun>(config, mesh, data_vocabulary, options);
    step = &run->step;
    nn::PlannedModel::Loop loop{.update =
                                    [&options, run](std::int64_t number) {
                                      if (options.observe && number == 0) options.observe(run->step, 0);
                                      std::optional<TimelineRecording> recording;
                                      if (options.record && number + 1 == options.record->update)
                                        recording.emplace(*options.record->timeline, options.record->site);
                                      run->update(number);
                                      recording.reset();
                                      if (options.observe) options.observe(run->step, static_cast<int>(number) + 1);
                                    },
                                .model = &step->model()};
    if (options.evaluates) loop.evaluate = [run] { run->evaluate(); };
    return loop;
  };
  nn::LooksAtMemory look;
  if (options.look) look = [&](const MemoryLog& log) { options.look(log, step); };
  return nn::predict(config.plan, {.ranks = ranks, .memory_limit = options.memory_limit}, {.build = build}, rank, look);
}

PredictedPeak predict_peak(const TrainConfig& config, int rank, int ranks, std::int64_t data_vocabulary) {
  return predict_peak(config, rank, ranks, data_vocabulary, PredictOptions());
}

}  // namespace sherd::train
