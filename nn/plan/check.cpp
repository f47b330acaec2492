#include "nn/plan/check.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "runtime/tensor/error.h"

namespace sherd::nn {

namespace {

// The settings of units are nobody's without units.
void check_units(const TrainingPlan& plan) {
  if (plan.fully_shard) return;
  const auto refuse = [](bool holds, std::string_view key, const std::string& value) {
    check(holds, "{} = {} is a setting of fully_shard; leave fully_shard on", key, value);
  };
  refuse(plan.strategy == "full_shard", "strategy", plan.strategy.text());
  refuse(plan.gather.is_exact(), "gather", plan.gather.text());
  refuse(plan.reduce.is_exact(), "reduce", plan.reduce.text());
  refuse(!plan.reshard_after_forward.ranks(), "reshard_after_forward", plan.reshard_after_forward.text());
  check(plan.param_dtype == DType::f32 && plan.reduce_dtype == DType::f32,
        "param_dtype = {} and reduce_dtype = {} are settings of fully_shard; leave it on", name(plan.param_dtype),
        name(plan.reduce_dtype));
  check(!plan.offload.parameters(),
        "offload = {} is of the units of fully_shard; leave fully_shard on, or offload the optimizer",
        plan.offload.text());
}

void check_budget(const TrainingPlan& plan) {
  check(plan.compiled || !plan.memory_budget.is_set(),
        "memory_budget = {} is of captured steps; set compile, or leave it out", plan.memory_budget.text());
}

void check_dtypes(const TrainingPlan& plan) {
  for (const auto& [key, dtype] : {std::pair("param_dtype", plan.param_dtype), {"reduce_dtype", plan.reduce_dtype}})
    check(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
          "{} must be one of f32, bf16, f16, got \"{}\"", key, name(dtype));
}

// Settings of shards are nobody's where every rank has all state.
void check_shards(const TrainingPlan& plan) {
  if (plan.strategy.value().optimizer != ShardedOver::none) return;
  for (const auto& [key, travel] : {std::pair("gather", &plan.gather), {"reduce", &plan.reduce}})
    check(travel->is_exact(),
          "{} = {} with strategy = {}: nothing is gathered there, and gradients are averaged whole, in the type of the "
          "reduction; take shard_optimizer, or leave {} out",
          key, travel->text(), plan.strategy.text(), key);
  check(!plan.accumulate_shards,
        "accumulate_shards with strategy = {}: every rank has whole gradients, so there are no shards to add up; take "
        "shard_optimizer, or leave it out",
        plan.strategy.text());
}

void check_reshard(const TrainingPlan& plan) {
  const std::optional<int> ranks = plan.reshard_after_forward.ranks();
  if (!ranks) return;
  check(*ranks >= 2, "reshard_after_forward must be true, false or a number of ranks from 2, got {}", *ranks);
  const UnitPolicy policy = plan.strategy.value();
  check(policy.parameters != ShardedOver::none && !policy.reshard_after_forward,
        "reshard_after_forward = {} needs a strategy that reshards after forward, as full_shard and hybrid_shard do; "
        "strategy = {} keeps what was gathered",
        *ranks, plan.strategy.text());
  check(plan.gather.is_exact(),
        "gather = {} with reshard_after_forward = {}: what travels so is gathered among all ranks; leave one of them "
        "out",
        plan.gather.text(), *ranks);
}

void check_offload(const TrainingPlan& plan) {
  check(plan.offload_keep >= 0, "offload_keep must be a number of bytes, 0 or more, got {}", plan.offload_keep);
  check(plan.offload_keep == 0 || plan.offload.any(), "offload_keep = {} with offload = {}: all stays in memory anyway",
        plan.offload_keep, plan.offload.text());
  if (!plan.offload.parameters()) return;
  const UnitPolicy policy = plan.strategy.value();
  check(policy.parameters != ShardedOver::shards || policy.optimizer != ShardedOver::all,
        "offload = {} with strategy = {}: where replicas divide the shards a gather writes them, so they cannot be "
        "offloaded; take hybrid_shard, or offload the optimizer",
        plan.offload.text(), plan.strategy.text());
  check(plan.gather.is_exact(),
        "offload = {} with gather = {}: what travels so is made of shards that are in memory; leave one of them out",
        plan.offload.text(), plan.gather.text());
}

bool is_power_of_two(std::int64_t n) { return n > 0 && std::has_single_bit(static_cast<std::uint64_t>(n)); }

// The powers of two on both sides: "4 or 8".
std::string nearest_leaves(std::int64_t leaves) {
  if (leaves < 1) return "1";
  const auto n = static_cast<std::uint64_t>(leaves);
  const bool has_above = n <= std::bit_floor(static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  return fmt::format("{}{}", std::bit_floor(n), has_above ? fmt::format(" or {}", std::bit_ceil(n)) : "");
}

// What a loss is scaled by, and which setting does not.
std::string unscaled(const TrainingPlan& plan) {
  if (!has_f16(plan)) return "take loss_scale = none";
  const bool is_of_f16 = !plan.loss_scale.options(false);
  return fmt::format("take loss_scale = none, or bf16 for param_dtype{}", is_of_f16 ? "" : " and loss_scale = auto");
}

// What would be added, or rounded, in an order that the layout decides.
void check_numerics(const TrainingPlan& plan) {
  if (!plan.numerics.layout_free()) {
    check(
        plan.leaves == TrainingPlan{}.leaves,
        "leaves = {} with numerics = default: leaves are summed by layout_free; pass --numerics layout_free, or leave "
        "them out",
        plan.leaves);
    return;
  }
  check(is_power_of_two(plan.leaves), "leaves = {}: their sum is a balanced tree, so they are a power of two; take {}",
        plan.leaves, nearest_leaves(plan.leaves));
  const auto refuse = [](bool holds, std::string_view key, const std::string& value, std::string_view why) {
    check(holds, "{} = {} with numerics = layout_free: {}", key, value, why);
  };
  refuse(
      plan.micro_batches == 1, "accumulate", std::to_string(plan.micro_batches),
      fmt::format("a rank's micro-batches are its share of leaves = {}; leave accumulate out, or set leaves to as many "
                  "times the ranks with data of their own",
                  plan.leaves));
  refuse(plan.fully_shard, "fully_shard", "false", "the units of fully_shard add up leaves; leave it on");
  refuse(plan.reduce_dtype == DType::f32, "reduce_dtype", std::string(name(plan.reduce_dtype)),
         "sums would be rounded as often as ranks send them; leave it at f32");
  refuse(!plan.loss_scale.options(has_f16(plan)), "loss_scale", plan.loss_scale.text(),
         "scaled gradients are not summed in this order; " + unscaled(plan));
  refuse(plan.gather.is_exact(), "gather", plan.gather.text(), "each rank's shard has scales of its own; leave it out");
  refuse(plan.reduce.is_exact(), "reduce", plan.reduce.text(), "each rank's part has scales of its own; leave it out");
  refuse(!plan.accumulate_shards, "accumulate_shards", "true", "leaves add up in full, before ranks do; leave it out");
  refuse(!plan.offload.gradients(), "offload", plan.offload.text(),
         "their norm is summed in pieces; take offload = parameters or optimizer");
}

// The numbers of ranks with data of their own on both sides that leaves divide among, and the least leaves for those
// that there are: "leaves = 16, or 8 of these ranks".
std::string nearest_ranks(std::int64_t leaves, std::int64_t data_ranks) {
  const auto n = static_cast<std::uint64_t>(data_ranks);
  const auto below = static_cast<std::int64_t>(std::bit_floor(n)), above = static_cast<std::int64_t>(std::bit_ceil(n));
  const std::string ranks =
      above > leaves ? std::to_string(std::min(below, leaves)) : fmt::format("{} or {}", below, above);
  return fmt::format("{}{} of these ranks",
                     is_power_of_two(data_ranks) ? fmt::format("leaves = {}, or ", data_ranks) : "", ranks);
}

// The multiples of leaves on both sides of a batch, and the most leaves that divide it and that ranks share.
std::string nearest_batch(std::int64_t batch, std::int64_t leaves, std::int64_t data_ranks) {
  const std::int64_t below = batch / leaves * leaves, fitting = batch & -batch;
  const std::string other = fitting % data_ranks == 0 ? fmt::format(", or take leaves = {}", fitting) : "";
  return fmt::format("{}{}, a multiple of {}{}", below > 0 ? fmt::format("{} or ", below) : "", below + leaves, leaves,
                     other);
}

// The plan has passed check_numerics().
void check_leaves(const TrainingPlan& plan, std::int64_t batch, std::int64_t data_ranks) {
  if (!plan.numerics.layout_free()) return;
  check(
      plan.leaves % data_ranks == 0,
      "leaves = {} do not divide among {} ranks with data of their own, and numerics = layout_free gives each as many; "
      "take {} (of several axes: dp times replicate)",
      plan.leaves, data_ranks, nearest_ranks(plan.leaves, data_ranks));
  check(batch % plan.leaves == 0, "batch = {} does not divide into leaves = {}; make it {}", batch, plan.leaves,
        nearest_batch(batch, plan.leaves, data_ranks));
}

}  // namespace

void check_plan(const TrainingPlan& plan) {
  check(plan.micro_batches >= 1, "micro_batches must be at least 1, got {}", plan.micro_batches);
  check_dtypes(plan);
  check_budget(plan);
  check_units(plan);
  check_shards(plan);
  check_reshard(plan);
  check_offload(plan);
  check_numerics(plan);
}

void check_plan(const TrainingPlan& plan, const PlanFacts& facts) {
  check_plan(plan);
  const auto axes = plan.mesh.of(facts.ranks);
  const int data_ranks = count_data_ranks(axes);
  check(plan.fully_shard || data_ranks == 1,
        "fully_shard = false on {0} ranks would train {0} separate models; pass --fully-shard true, and --strategy "
        "no_shard for whole copies",
        data_ranks);
  if (lacks_replicas(plan)) plan.mesh.with_replicas(facts.ranks, 1, plan.strategy.text());
  check_leaves(plan, facts.batch, data_ranks);
  if (facts.batch > 0) local_batch(plan, facts.batch, data_ranks);
}

void check_survives(const TrainingPlan& plan, int ranks) {
  int replicas = 1;
  for (const MeshAxes::Axis& axis : plan.mesh.of(ranks))
    if (axis.name == "replicate") replicas = axis.size;
  check(replicas > 1,
        "a run outlives one of several replicas, and mesh = \"{}\" has one; pass --strategy hybrid_shard --mesh "
        "replicate=2,dp=N, or --restarts N for a run that goes on from its saves",
        plan.mesh.text());
  check(plan.strategy.value().optimizer != ShardedOver::all,
        "strategy = {} divides the optimizer's state among the replicas, so it dies with each of them; take "
        "hybrid_shard",
        plan.strategy.text());
  check(
      !plan.numerics.layout_free(),
      "numerics = layout_free: the replicas that are left are no power of two, or train other leaves; leave it out, or "
      "pass --restarts N for a run that goes on from its saves");
  check(plan.device == Device::cpu(), "device = {}: ranks outlive others on the host only", to_string(plan.device));
  check(!plan.offload.any(), "offload = {}: what lies outside of memory is not carried to the next group; leave it out",
        plan.offload.text());
}

TrainingPlan on_ranks(TrainingPlan plan, std::int64_t data_ranks) {
  check_leaves(plan, 0, data_ranks);
  if (plan.numerics.layout_free()) plan.micro_batches = plan.leaves / data_ranks;
  return plan;
}

bool divides(const TrainingPlan& plan, std::int64_t batch, std::int64_t data_ranks) {
  if (!plan.numerics.layout_free()) return batch % (data_ranks * plan.micro_batches) == 0;
  return batch % plan.leaves == 0 && plan.leaves % data_ranks == 0;
}

std::int64_t local_batch(const TrainingPlan& plan, std::int64_t batch, std::int64_t data_ranks) {
  check_leaves(plan, batch, data_ranks);
  const std::int64_t parts = data_ranks * plan.micro_batches;
  check(batch % parts == 0, "batch = {} does not divide into {} ranks x {} micro-batches; make it a multiple of {}",
        batch, data_ranks, plan.micro_batches, parts);
  return batch / data_ranks;
}

}  // namespace sherd::nn
