#pragma once
// What a node was recorded to find, as numbers that the program carries: so a program that was moved wrongly is refused
// without the one it came from. They do not change under legal moves, because they count only what must not move past
// the node.
//
//   one for each input     the writes before it of bytes that it reads; 0 if absent, or awaited
//   one for each output    the same of bytes that it writes
//   one for each value that it restores or releases
//   one if it has effects  how many nodes with effects come before
//   one if it hands work to a queue, without other effects: how many calls before it have done so
//
// The writes before are a count, if all bytes have seen as many; else a mix of how many each part of them has seen, at
// least kMixed. As writers have numbers too, they name the writes: the n-th write of a byte is always the same node's.
#include <string_view>

#include "compile/ir/program.h"

namespace sherd::ir {

inline constexpr std::int32_t kMixed = 1 << 30;

/// Writes GraphNode::numbers: after recording, and after a pass that gives values other names and has proved by
/// check_same_meaning() that nodes still read what they did.
void write_numbers(Program& program);

/// Throws Error naming the node, the value, and both numbers, where a node does not find what it was recorded to find.
/// A program without any numbers passes.
void check_numbers(const Program& program);

/// Calls that must keep their order on all ranks share a lane, which is the queue that they hand work to: groups
/// share it, and a rank that swapped calls of two groups would wait for one whose peers wait for the other. Empty: the
/// node hands nothing to a queue.
std::string_view lane_of(const GraphNode& node);

}  // namespace sherd::ir
