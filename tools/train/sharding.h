#pragma once
// What a run says of how its plan shards the model.
#include <string>
#include <string_view>

#include "nn/plan/training_plan.h"

namespace sherd::train {

/// The strategy that the plan comes to, and from what: "strategy shard_grad_op (reshard_after_forward = false)", and
/// what is recomputed; of several micro-batches also what their gradients take until the last one, where `data_ranks`
/// share them. Leaves are said to share a pass, unless `why_micro_batches` says why they do not.
std::string sharding_text(const nn::TrainingPlan& plan, int data_ranks, std::string_view why_micro_batches = "");

}  // namespace sherd::train
