#pragma once
// Global gradient norm and clipping over any mix of sharded and plain parameters.
#include <cstdint>
#include <vector>

#include "nn/optim/optimizer.h"

namespace sherd::nn {

/// How the powers of a norm are added.
enum class NormSum : std::uint8_t {
  rounded,     ///< as they lie on each rank, then over ranks: its last bits depend on the layout
  layout_free  ///< each index of dim 0 alone, then without rounding: one number for all layouts that cut no row; p
               ///< finite, gradients in memory
};

/// 0-d f32: the p-norm of all gradients seen as one vector, the same on every rank. Gradients may be distributed over
/// different slices of a mesh, replicated or plain; each element counts once. Fused passes over the local extents, then
/// for each root mesh one all-reduce of one number, over the axes that shard; layout_free: for each axis, and each set
/// of axes that shard, one of 69 integers. p = 1, 2, 3, infinity, ... Error: Partial gradients; a parameter twice in
/// the list; layout_free of p = infinity, or of gradients that are offloaded.
Tensor grad_norm(const std::vector<Parameter*>& parameters, double p = 2, NormSum sum = NormSum::rounded);

/// The same number, reduced over all ranks of the meshes instead of the axes that shard: where a gradient is not finite
/// on any rank, though others hold a replica that is, the norm of every rank says so.
Tensor agreed_grad_norm(const std::vector<Parameter*>& parameters, double p = 2);

/// What gradients of this norm are multiplied by to limit it: min(1, max_norm / (norm + 1e-6)); NaN if the norm is not
/// finite, with which Optimizer::step() changes nothing. Error: max_norm not above 0.
Tensor clip_factor(const Tensor& norm, double max_norm);

/// Limits the norm of what the next optimizer.step() applies: gradients are scaled by min(1, max_norm / (norm + 1e-6))
/// inside the update. A norm that is not finite makes that step change nothing. max_norm = infinity does only this.
/// Returns the norm before clipping.
Tensor clip_grad_norm(Optimizer& optimizer, double max_norm, double p = 2, NormSum sum = NormSum::rounded);

}  // namespace sherd::nn
