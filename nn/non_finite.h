#pragma once
// Where NaN and infinity come from: what to look at when a training run has diverged.
#include <functional>
#include <string>

#include "nn/module.h"
#include "runtime/comm/group/process_group.h"

namespace sherd::nn {

/// Calls `forward_and_backward` once and looks at what every module of `model` returns while it runs. Says, alike on
/// all ranks, where the first value that is NaN or infinite appears: `the output of "blocks.2.mlp.up" on rank 1`; if
/// every output is finite, `the gradient of "blocks.5.attn.wo.weight" on rank 0`; empty if the gradients are finite
/// too. Modules count in the order in which their forwards end, so an inner one before those around it; parameters
/// count from the last to the first, as backward reaches them.
///
/// Collective over `group`: all ranks that take part in the step call it. Waits for the device after each module.
/// Leaves the gradients to the caller, who should clear them. Throws what the step throws.
std::string first_non_finite(Module& model, ProcessGroup& group, const std::function<void()>& forward_and_backward);

}  // namespace sherd::nn
