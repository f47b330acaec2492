#pragma once
// Reverse-mode differentiation on a tape. No double backward: gradients are computed with recording off.
#include <cstdint>
#include <functional>

#include "runtime/autograd/node.h"
#include "runtime/op/core/dispatch.h"
#include "runtime/op/core/grad_mode.h"

namespace sherd {

struct BackwardOptions {
  Tensor grad{};              ///< cotangent of the root; default 1, for one-element roots only
  bool retain_graph = false;  ///< keep what the tape saved, for another backward through the same nodes
};

/// Sends gradients from `root` to the sinks of all slots it was computed from. Nodes run in strictly descending
/// creation order; several uses of a value are summed in that order. Errors carry the module of the forward call.
void backward(const Tensor& root, const BackwardOptions& options = {});

/// Runs `hook` when the gradient of `tensor` (not a slot's) is complete, before it is used; a defined result replaces
/// it. An Error while a step is captured, whose replays would not run it.
void register_grad_hook(const Tensor& tensor, GradHook hook);
/// The same of a hook whose doings all go through ops and slots, which are replayed: also while a step is captured.
void register_capturable_grad_hook(const Tensor& tensor, GradHook hook);

/// Runs `callback` once when the running backward pass has delivered everything. Error outside of a pass.
void at_end_of_backward(std::function<void()> callback);

/// True inside backward() on this thread.
bool in_backward();

/// A number of the running backward pass that no other pass of this rank has; 0 outside of one.
std::uint64_t backward_pass();

}  // namespace sherd
