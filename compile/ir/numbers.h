#pragma once
// What a node was recorded to find, as numbers that the program carries: so a program that was moved wrongly is refused
// without the one it came from. They do not change under legal moves, because they count only what must not move past
// the node.
//
//   one for each input     how many writes before it have touched bytes that it reads; 0 if absent, or awaited
//   one for each output    the same of bytes that it writes
//   one for each value that it restores or releases
//   one if it has effects  how many nodes with effects come before
//   one if it communicates, without other effects: how many calls on its channel come before
#include <string>

#include "compile/ir/program.h"

namespace sherd {

/// Writes GraphNode::numbers: after recording, and after a pass that gives values other names and has proved by
/// check_same_meaning() that nodes still read what they did.
void write_numbers(Program& program);

/// Throws Error naming the node, the value, and both numbers, where a node does not find what it was recorded to find.
/// A program without any numbers passes.
void check_numbers(const Program& program);

/// Calls that must keep their order on all ranks share a channel: collectives of one queue and group. Empty: the row
/// does not communicate, or its effects order it.
std::string channel_name(const GraphNode& node);

}  // namespace sherd
