#pragma once
// A plan carried out on a model.
//
//   const AppliedPlan applied = apply(plan, facts, *model, mesh, make_plan(architecture, plan.tensor_parallel));
//   model->materialize(Seed{1}, plan.device);
//   AdamW optimizer(model->parameters());
//   apply_offload(plan, facts, *model, optimizer);
//   for (...) {
//     forward_backward(plan, *model, batch, loss_of);
//     optimizer.step_and_clear();
//   }
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "nn/optim/loss_scaler.h"
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
/// recomputed, and shards all parameters over mesh.data(). Touches no file and no device. The model has no values yet,
/// or those of the whole model. Collective where reshard_after_forward is a number of ranks, whose groups it makes;
/// else no communication. Errors, the same on every rank, before the model is changed: check_plan(), a mesh that is not
/// the plan's, a model that is sharded or recomputed already. Then those of parallelize() and shard_units().
AppliedPlan apply(const TrainingPlan& plan, const PlanFacts& facts, Module& model, const JobMesh& mesh,
                  const Plan& styles = {});
/// Moves the optimizer's state, and what blocks save for backward, to where the plan says; no-op for what stays. Error
/// for a folder that is not there or takes no files.
void apply_offload(const TrainingPlan& plan, const PlanFacts& facts, Module& model, Optimizer& optimizer);

struct ForwardBackward {
  LossScaler* scaler = nullptr;         ///< scales losses; null: they are as they are
  std::function<void()> before_last{};  ///< before the last forward: Optimizer::step_in_backward()
  bool leaves_share_pass = false;       ///< with layout_free; for `loss` of a model alone, see why_micro_batches()
};

/// Adds the gradients of the mean of `loss` over plan.micro_batches equal parts of the batch, rows of its tensors, or
/// over this rank's leaves (plan.numerics); the units reduce them with the last part's, unless the plan accumulates
/// shards. Returns that mean of this rank's rows: 0-d, not scaled, without a graph. `batch`: [rows, ...] each.
/// Collective over the mesh of the plan; does not wait for the device. Error if the rows do not divide. Random rows
/// draw as one rank does for the whole batch, in which this rank's rows are neighbours; of accumulate_shards those that
/// all ranks have in one part are. Leaves: rows are this rank's own, neighbours of each other in the batch; only
/// gradients that units reduce are averaged over leaves. Error for a distributed batch. Leaves that share a pass have
/// the bits of those that do not; then `loss` is called once, with the whole batch, and what LeavesScope
/// (runtime/autograd/leaves.h) refuses is an Error.
Tensor forward_backward(const TrainingPlan& plan, Module& model, std::span<const Tensor> batch,
                        const std::function<Tensor(std::span<const Tensor> part)>& loss,
                        const ForwardBackward& options = {});

}  // namespace sherd::nn
