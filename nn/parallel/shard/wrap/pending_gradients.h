#pragma once
// Gradients that no reduction has seen yet, or not the one over replicas: to look at and to change between passes.
//
//   units(model).set_requires_gradient_sync(false);
//   for (...) backward(...);                                        // full gradients add up, nothing is sent
//   for (PendingGradient& g : pending_gradients(model)) ...g.full   // may be written
//   units(model).set_requires_gradient_sync(true);
//   finalize_backward(model);                                       // reduces what waits; nothing if called again
#include <vector>

#include "nn/module.h"
#include "runtime/comm/group/reduce_kind.h"

namespace sherd::nn {

/// What earlier passes have left of one parameter's gradient to a later one.
struct PendingGradient {
  Parameter* parameter = nullptr;
  /// Sum of this rank's full gradients of passes with set_requires_gradient_sync() off, placed as the parameter is when
  /// gathered (plain, or distributed over the axis of tensor parallelism), in the type of the reduction; a view of it
  /// where leading dims are merged (shard_merged). Undefined if none waits.
  Tensor full{};
  /// What the reduction makes of `full`: an average over the data ranks, or a sum of gradients that were Partial. Zeros
  /// for an unused parameter (reduce_unused) take the kind of the first gradient that is added to them.
  ReduceKind kind = ReduceKind::avg;
  /// This rank's shard of passes with set_requires_all_reduce() off: a plain tensor, reduced and scaled, but not summed
  /// over replicas. Undefined if none waits.
  Tensor shard{};
};

/// Parameters with gradients that wait, of the units of `module` and of the modules below, unit by unit in module
/// order; of those that add up as a tree (UnitPolicy::sums_in_tree) once for each sum that waits, which is another one
/// after each pass. Local, without communication; reading a tensor waits for work in flight. A parameter's tensor (if
/// distributed, its local one) is the same object after every further pass until it is reduced, or dropped: by clearing
/// the parameter's gradient, as Optimizer::clear_gradients() does, or by reset_after_error(). What is written into it
/// counts; a copy that is kept keeps its unit's bytes. Error within a backward pass, whose gradients are not complete.
std::vector<PendingGradient> pending_gradients(Module& module);

}  // namespace sherd::nn
