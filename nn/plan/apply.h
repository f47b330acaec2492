#pragma once
// A plan carried out on a model.
//
//   const AppliedPlan applied = apply(plan, facts, *model, mesh, make_plan(architecture, plan.tensor_parallel));
//   model->materialize(Seed{1}, plan.device);
//   AdamW optimizer(model->parameters());
//   offload_state(plan, facts, optimizer);
#include <cstdint>
#include <vector>

#include "nn/optim/optimizer.h"
#include "nn/parallel/tensor_parallel.h"
#include "nn/plan/check.h"
#include "nn/plan/job_mesh.h"

namespace sherd::nn {

struct AppliedPlan {
  std::vector<UnitHandle> units{};  ///< the model's last; none without fully_shard
  std::int64_t local_batch = 0;     ///< sequences of this rank in a step; 0 where facts name no batch
};

/// What fully_shard is told.
UnitPolicy unit_policy(const TrainingPlan& plan, const PlanFacts& facts);

/// Shards matrices of `model` over mesh.tensor() as `styles` say, which parallelize() takes, marks blocks that are
/// recomputed, shards all parameters over mesh.data(), and marks blocks whose activations leave memory. The model has
/// no values yet, or those of the whole model. Collective where reshard_after_forward is a number of ranks, whose
/// groups it makes; else no communication. Errors, the same on every rank, before the model is changed: check_plan(), a
/// mesh that is not the plan's, a model that is sharded or recomputed already. Then those of parallelize() and
/// shard_units().
AppliedPlan apply(const TrainingPlan& plan, const PlanFacts& facts, Module& model, const JobMesh& mesh,
                  const Plan& styles = {});
/// Moves the optimizer's state to where the plan says; no-op if it stays. Errors as Optimizer::offload().
void offload_state(const TrainingPlan& plan, const PlanFacts& facts, Optimizer& optimizer);

}  // namespace sherd::nn
