#pragma once
// What a run says of how its plan shards the model, and of what its sums depend on.
#include <string>
#include <string_view>

#include "nn/plan/training_plan.h"

namespace sherd::train {

/// The strategy that the plan comes to, and from what: "strategy shard_grad_op (reshard_after_forward = false)", and
/// what is recomputed; of several micro-batches also what their gradients take until the last one, where `data_ranks`
/// share them. Leaves are said to share a pass, unless `why_micro_batches` says why they do not.
std::string sharding_text(const nn::TrainingPlan& plan, int data_ranks, std::string_view why_micro_batches = "");

/// The order of the sums over `ranks` ranks and leaves: "tree of 8 leaves in 3 levels", "2 shards in 1 level, then 2
/// replicas in 1 level, rounds gradients to bf16 twice"; empty where there is nothing to add. The plan's mesh is for
/// `ranks`.
std::string sums_text(const nn::TrainingPlan& plan, int ranks);

/// The kernels of this process, which add in an order of their own each: "cpu x86-64-v4", of products in bf16 their
/// engine too; "cuda".
std::string kernels_text(const nn::TrainingPlan& plan);

}  // namespace sherd::train
