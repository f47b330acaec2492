#pragma once
// When is a recorded graph valid for another call? When arguments and slots have the same shapes, dtypes, strides and
// layouts and share memory as they did, the same slots want gradients and have one already; and when settings that the
// step has read are unchanged.
#include <span>
#include <string>
#include <vector>

#include "compile/ir/graph.h"

namespace sherd {

/// The difference in arguments (or in the recording mode) as text; empty if there is none.
std::string argument_mismatch(const ir::Graph& graph, std::span<const Tensor> arguments);

/// The same for settings the step has read.
std::string setting_mismatch(const ir::Graph& graph);

/// The same for the slots the step uses. Throws Error naming a slot that no longer exists.
std::string slot_mismatch(const ir::Graph& graph);

/// The slot that a name of the program stands for. Error if it no longer exists.
Slot& living_slot(const ir::Graph& graph, int index);

/// Whether tensors that lay apart in the recorded run now share memory that the step writes: the program knows nothing
/// of that, so a write would be seen where no node says so. Empty if not. After the other two. `shares`: by value, the
/// first whose memory it has, of all from outside but arguments; -1 for others.
std::string sharing_mismatch(const ir::Graph& graph, std::span<const Tensor> arguments,
                             std::vector<ir::ValueId>* shares = nullptr);

/// Freezes and unfreezes slots as the step leaves them.
void leave_requires_grad(const ir::Graph& graph);

/// The tensor a binding looks up now: the slot's value, what it keeps, or its gradient; undefined if there is none.
Tensor bound_tensor(const ir::Graph& graph, const ir::Binding& binding);

}  // namespace sherd
