#pragma once
// When does a recorded graph hold for another call? When arguments and slots look as they did: shapes, dtypes, strides,
// layouts, who shares memory with whom, which slots want gradients and which have one already; and when settings that
// the step has read are what they were.
#include <span>
#include <string>

#include "compile/ir/graph.h"

namespace sherd {

/// What of the arguments (or of the recording mode) differs, in words; empty if nothing does.
std::string argument_mismatch(const Graph& graph, std::span<const Tensor> arguments);

/// The same for settings the step has read.
std::string setting_mismatch(const Graph& graph);

/// The same for the slots the step uses. Throws Error naming a slot that no longer exists.
std::string slot_mismatch(const Graph& graph);

/// Freezes and thaws slots as the step leaves them.
void leave_requires_grad(const Graph& graph);

/// The tensor a binding looks up now: the slot's value or gradient; undefined if there is none.
Tensor bound_tensor(const Graph& graph, const Binding& binding);

}  // namespace sherd
