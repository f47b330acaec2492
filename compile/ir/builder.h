#pragma once
// Making nodes and values in passes, and what a node's row says of it.
#include "compile/ir/program.h"
#include "runtime/op/core/meta_list.h"

namespace sherd {
class ProcessGroup;
}

namespace sherd::ir {

/// A node of this row in the place of another: it has that one's module and phase, and nothing else yet.
GraphNode node_beside(const GraphNode& node, const Op& op, Attrs attrs = {});

/// A new temporary, with a dense ref to it.
TensorRef add_temporary(Program& program, const Shape& shape, DType dtype, Device device, MemoryCategory category);

/// What the row's columns see of a node's inputs.
SmallVec<TensorMeta, 4> metas_of(const Program& program, const GraphNode& node);

/// Where its kernel runs.
Device device_of(const Program& program, const GraphNode& node);

/// The group in a node's CollectiveAttrs; null if it has others. Rows of units name theirs by axis.
ProcessGroup* group_of(const GraphNode& node);

}  // namespace sherd::ir
