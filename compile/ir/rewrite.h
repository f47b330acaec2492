#pragma once
// Changing a program: nodes and values come and go, and all tables that name values follow.
//
//   std::vector<GraphNode> nodes = ...;          a pass makes the list anew, or
//   erase_nodes(program, is_dead);               takes nodes out
//   drop_unmentioned(program);                   values without a mention go, the others close up
//   settle(program);                             frees and numbers follow; now it can be proved (verify, meaning)
#include <span>
#include <vector>

#include "compile/ir/program.h"

namespace sherd::ir {

/// A new temporary of the size, account and device of this value, in a place of its own.
ValueId add_like(Program& program, ValueId value);

/// A node that does what this one does, once more, into new temporaries like its outputs. It reads the same values, is
/// part of the same module and phase, and is not in the program yet. For nodes that write no input.
GraphNode clone_node(Program& program, const GraphNode& node);

/// Lets this value stand in the bytes of each: by value, itself, another one, or kNoValue for a temporary that is to go
/// and that nothing mentions. Values that stay keep their order and are numbered from 0.
void renumber(Program& program, std::span<const ValueId> holder);

/// Takes out the temporaries that no node, result or update mentions.
void drop_unmentioned(Program& program);

/// Takes out the nodes that are true here.
void erase_nodes(Program& program, const std::vector<bool>& erased);

/// Writes frees and numbers for the nodes as they are now.
void settle(Program& program);

}  // namespace sherd::ir
