#include "tools/train/sharding.h"

#include "nn/plan/apply.h"
#include "runtime/comm/group/sum_order.h"
#include "runtime/memory/accounting.h"

namespace sherd::train {

namespace {

// Which way a rank's leaves take, and why.
std::string leaves_text(const nn::TrainingPlan& plan, int data_ranks, std::string_view why_micro_batches) {
  std::string text = fmt::format(", layout_free: {} leaves in {} levels", plan.leaves,
                                 tree_levels(static_cast<std::size_t>(plan.leaves)));
  const std::int64_t own = plan.leaves / data_ranks;
  if (own <= 1) return text;
  if (why_micro_batches.empty()) return text + fmt::format(", {} in one pass of a rank", own);
  return text + fmt::format(", {} one after the other on a rank ({})", own, why_micro_batches);
}

// Where every rank has whole gradients anyway, waiting takes no more.
std::string accumulation_text(const nn::TrainingPlan& asked, int data_ranks) {
  const nn::TrainingPlan plan = nn::on_ranks(asked, data_ranks);
  const nn::UnitPolicy policy = nn::unit_policy(plan, {});
  if (plan.micro_batches == 1 || data_ranks == 1 || policy.optimizer == nn::ShardedOver::none) return "";
  if (policy.gradients != nn::ShardedOver::none)
    return fmt::format(", shards of the gradients of {} micro-batches add up", plan.micro_batches);
  return fmt::format(", full gradients of {} micro-batches wait ({} bytes x parameters more per rank)",
                     plan.micro_batches, nn::waiting_gradient_bytes(plan));
}

}  // namespace

std::string sharding_text(const nn::TrainingPlan& plan, int data_ranks, std::string_view why_micro_batches) {
  std::string memory = plan.recompute != "none" ? fmt::format(", recompute {}", plan.recompute.text()) : "";
  if (plan.offload.any()) memory += fmt::format(", offload {}", plan.offload.text());
  if (plan.offload_keep > 0) memory += fmt::format(" but for {}", format_bytes(plan.offload_keep));
  if (plan.offload_activations.any())
    memory += fmt::format(", offload activations of {}", plan.offload_activations.text());
  if (!plan.fully_shard) return "not sharded (fully_shard = false)" + memory;
  const nn::UnitPolicy policy = nn::unit_policy(plan, {});
  const std::string_view name = nn::strategy_name(policy, policy.needs_replicas || plan.mesh.has("replicate"));
  std::string text = fmt::format("strategy {}", name.empty() ? plan.strategy.text() : name);
  if (plan.reshard_after_forward != nn::ReshardAfterForward(true))
    text += fmt::format(" (reshard_after_forward = {})", plan.reshard_after_forward.text());
  if (!plan.gather.is_exact()) text += fmt::format(", {} gathers", plan.gather.text());
  if (!plan.reduce.is_exact()) text += fmt::format(", {} reductions", plan.reduce.text());
  if (plan.units != "block") text += fmt::format(", units {}", plan.units.text());
  if (plan.units == "coarse" && plan.reshard_after_forward.ranks())
    text += " (one, which does not reshard after forward)";
  const bool is_free = plan.numerics.layout_free();
  if (is_free) memory += leaves_text(plan, data_ranks, why_micro_batches);
  if (is_free && why_micro_batches.empty()) return text + memory;
  return text + memory + accumulation_text(plan, data_ranks);
}

}  // namespace sherd::train
