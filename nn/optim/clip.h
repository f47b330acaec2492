#pragma once
// Global gradient norm and clipping over any mix of sharded and plain parameters.
#include <vector>

#include "nn/optim/optimizer.h"

namespace sherd::nn {

/// 0-d f32: the p-norm of all gradients seen as one vector, the same on every rank. Gradients may be distributed over
/// different slices of a mesh, replicated or plain; each element counts once. Fused passes over the local extents, then
/// for each root mesh one all-reduce of one number, over the axes that shard. p = 1, 2, 3, infinity, ... Error: Partial
/// gradients.
Tensor grad_norm(const std::vector<Parameter*>& parameters, double p = 2);

/// Limits the norm of what the next optimizer.step() applies: gradients are scaled by min(1, max_norm / (norm + 1e-6))
/// inside the update. A norm that is not finite makes that step change no parameter and no state. max_norm = infinity
/// does only this. Returns the norm before clipping.
Tensor clip_grad_norm(Optimizer& optimizer, double max_norm, double p = 2);

}  // namespace sherd::nn
