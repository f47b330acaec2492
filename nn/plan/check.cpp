#include "nn/plan/check.h"

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

}  // namespace

void check_plan(const TrainingPlan& plan) {
  check(plan.micro_batches >= 1, "micro_batches must be at least 1, got {}", plan.micro_batches);
  check_dtypes(plan);
  check_units(plan);
  check_shards(plan);
  check_reshard(plan);
  check_offload(plan);
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
  check(plan.device == Device::cpu(), "device = {}: ranks outlive others on the host only", to_string(plan.device));
  check(!plan.offload.any(), "offload = {}: what lies outside of memory is not carried to the next group; leave it out",
        plan.offload.text());
}

std::int64_t local_batch(const TrainingPlan& plan, std::int64_t batch, std::int64_t data_ranks) {
  const std::int64_t parts = data_ranks * plan.micro_batches;
  check(batch % parts == 0, "batch = {} does not divide into {} ranks x {} micro-batches; make it a multiple of {}",
        batch, data_ranks, plan.micro_batches, parts);
  return batch / data_ranks;
}

}  // namespace sherd::nn
