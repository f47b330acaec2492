#include "tools/train/sharding.h"

#include <algorithm>

#include "nn/plan/apply.h"
#include "runtime/comm/group/sum_order.h"
#include "runtime/cpu/gemm/onednn.h"
#include "runtime/memory/accounting.h"
#include "runtime/os/instruction_level.h"

namespace sherd::train {

namespace {

std::string tree_text(std::int64_t leaves, std::string_view what) {
  const int levels = tree_levels(static_cast<std::size_t>(leaves));
  return fmt::format("{} {} in {} level{}", leaves, what, levels, levels == 1 ? "" : "s");
}

// Which way a rank's leaves take, and why.
std::string leaves_text(const nn::TrainingPlan& plan, int data_ranks, std::string_view why_micro_batches) {
  std::string text = ", layout_free: " + tree_text(plan.leaves, "leaves");
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

std::string sums_text(const nn::TrainingPlan& plan, int ranks) {
  if (plan.numerics.layout_free())
    return "tree of " + tree_text(plan.leaves, "leaves") +
           (plan.param_dtype == DType::f32 ? "" : fmt::format(", each rounded to {}", name(plan.param_dtype)));
  const auto axes = plan.mesh.of(ranks);
  const int all = nn::count_data_ranks(axes);
  if (all == 1) return "";
  const int replicas = std::max(1, nn::MeshAxes(axes).size("replicate"));
  const bool is_split = replicas > 1 && replicas < all && plan.strategy.value().optimizer != nn::ShardedOver::none;
  std::string text =
      is_split ? fmt::format("{}, then {}", tree_text(all / replicas, "shards"), tree_text(replicas, "replicas"))
               : tree_text(all, "ranks");
  if (byte_size(plan.reduce_dtype) < byte_size(DType::f32))
    text += fmt::format(", rounds gradients to {} {}", name(plan.reduce_dtype), is_split ? "twice" : "once");
  return text;
}

std::string kernels_text(const nn::TrainingPlan& plan) {
  if (plan.device != Device::cpu()) return "cuda";
  const std::string text = fmt::format("cpu {}", instruction_level().name);
  return plan.param_dtype != DType::bf16 ? text : fmt::format("{}, bf16 products by {}", text, cpu::bf16_engine());
}

}  // namespace sherd::train
