#pragma once
// The point of a step at which its ranks agree to make its update: before it none has, after it all do.
//
//   backward, reductions, norm | agree_to_update | adamw
//                              |                 '--- a rank that gets here knows that all have all gradients
//                              '--- a rank that is lost before it has taken its gradients with it
//
// So after a rank is lost the others can tell by two facts of each of them whether the step is made: how many updates
// it has made, and whether it has come to this point of the next one.
#include <functional>
#include <span>

#include "nn/optim/optimizer.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/tensor/error.h"

namespace sherd::nn {

/// What a rank does if it has come to the point and others have not, as one of them is lost. If it returns, the update
/// is made; else it throws, and the step is left with parameters and state as they were. Runs on the rank's thread.
using WhenRanksAreLost = std::function<void(const CommError&)>;

/// This rank's; empty, as at first: the CommError leaves the step.
WhenRanksAreLost& when_ranks_are_lost();

/// A barrier of the ranks of `group`, as a row that comes before the updates of the next step(), in a captured step
/// too: it writes the gradient scale, which they read. It waits for `known`: what must be known before, such as the
/// norm of all gradients, which is known when they are reduced. No-op on a ghost rank. On the host only: Error for
/// parameters of a device. Collective; blocks.
void agree_to_update(Optimizer& optimizer, std::span<const Tensor> known, ProcessGroup& group);

}  // namespace sherd::nn
