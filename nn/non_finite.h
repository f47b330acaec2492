#pragma once
// Finds where NaN or infinity first appears, for training runs that have diverged.
#include <functional>
#include <string>

#include "nn/module.h"
#include "runtime/comm/group/process_group.h"

namespace sherd::nn {

/// Calls `forward_and_backward` once and checks the outputs of every module of `model`. Returns, the same on all ranks,
/// where the first NaN or infinite value appears: `the output of "blocks.2.mlp.up" on rank 1`; if every output is
/// finite, `the gradient of "blocks.5.attn.wo.weight" on rank 0`; empty if the gradients are finite too. Modules are
/// ordered by the end of their forwards, so an inner one before those around it; parameters from the last to the first,
/// as backward reaches them.
///
/// Collective over `group`: all ranks of the step call it. Waits for the device after each module. Leaves the gradients
/// to the caller, who should clear them. Throws what the step throws.
std::string first_non_finite(Module& model, ProcessGroup& group, const std::function<void()>& forward_and_backward);

}  // namespace sherd::nn
