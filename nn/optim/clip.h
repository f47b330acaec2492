#pragma once
// Global gradient norm and clipping over any mix of sharded and plain parameters.
#include <vector>

#include "nn/optim/optimizer.h"

namespace sherd::nn {

/// 0-d f32: the p-norm of all gradients seen as one vector, the same on every rank. Gradients may be distributed over
/// different slices of a mesh, replicated or plain; each element counts once. Fused passes over the local extents, then
/// for each root mesh one all-reduce of one number, over the axes that shard: the last bits depend on the layout. p =
/// 1, 2, 3, infinity, ... Error: Partial gradients; a parameter twice in the list.
Tensor grad_norm(const std::vector<Parameter*>& parameters, double p = 2);

/// The same number, reduced over all ranks of the meshes instead of the axes that shard: where a gradient is not finite
/// on any rank, though others hold a replica that is, the norm of every rank says so.
Tensor agreed_grad_norm(const std::vector<Parameter*>& parameters, double p = 2);

/// As grad_norm(), by sums that lose nothing: one number for all layouts that cut no row. Each index of dim 0 is summed
/// alone, then without rounding: for each axis, and each set of axes that shard, an all-reduce of 69 integers. Error
/// also for p = infinity, and for gradients that are offloaded.
Tensor layout_free_grad_norm(const std::vector<Parameter*>& parameters, double p = 2);

/// What gradients of this norm are multiplied by to limit it: min(1, max_norm / (norm + 1e-6)); NaN if the norm is not
/// finite, with which Optimizer::step() changes nothing. Error: max_norm not above 0.
Tensor clip_factor(const Tensor& norm, double max_norm);

/// Limits the norm of what the next optimizer.step() applies: gradients are scaled by min(1, max_norm / (norm + 1e-6))
/// inside the update. A norm that is not finite makes that step change nothing. max_norm = infinity does only this.
/// Returns the norm before clipping.
Tensor clip_grad_norm(Optimizer& optimizer, double max_norm, double p = 2);
/// The same by a norm that is known: of layout_free_grad_norm(), or of more parameters than the optimizer has. Returns
/// it.
Tensor clip_grad_norm(Optimizer& optimizer, double max_norm, Tensor norm);

}  // namespace sherd::nn
