#include "tools/plan/forecast.h"

#include "nn/plan/apply.h"
#include "tools/train/exit_status.h"
#include "tools/train/ghost_step.h"
#include "tools/train/mfu.h"
#include "tools/train/model_factory.h"

namespace sherd::plan {

namespace {

constexpr std::int64_t kBytes = 256;

std::int64_t at(const CategoryBytes& bytes, MemoryCategory category) {
  return bytes[static_cast<std::size_t>(category)];
}

/// Whether a unit's parameters stay from their first use to the end of backward, or of the update.
bool stays_gathered(const nn::TrainingPlan& plan) {
  const nn::UnitPolicy policy = nn::unit_policy(plan, nn::PlanFacts{});
  if (policy.parameters == nn::ShardedOver::none) return true;
  return policy.reshard_after_forward && policy.reshard_after_forward->is_off();
}

}  // namespace

std::int64_t planned_vocabulary(const TrainConfig& config) {
  if (config.model.vocabulary > 0) return config.model.vocabulary;
  check_usage(config.vocabulary != "chars",
              "vocabulary = chars is that of the data, which a plan does not open; give --model.vocabulary");
  return kBytes;
}

Forecast forecast(const TrainConfig& config, int ranks, std::int64_t vocabulary) {
  GhostStep ghost = ghost_step(config, 0, ranks, vocabulary);
  const std::int64_t state = state_bytes(config.plan, ghost.memory);
  return {std::move(ghost.memory), state, std::move(ghost.timeline)};
}

// Gradients of what AdamW updates are as wide as each of its two moments.
std::int64_t state_bytes(const nn::TrainingPlan& plan, const nn::Prediction& memory) {
  using enum MemoryCategory;
  const std::int64_t state = at(memory.peak, optimizer), gathered = at(memory.peak, unsharded);
  return at(memory.peak, parameters) + state + state / 2 + (stays_gathered(plan) ? gathered : 0);
}

ModelSize model_size(const TrainConfig& config, std::int64_t vocabulary) {
  ModelSize size;
  for (const nn::Parameter* const parameter : make_model(config.model, vocabulary)->parameters())
    size.parameters += parameter->numel();
  size.flops = step_flops(config, size.parameters);
  return size;
}

}  // namespace sherd::plan
