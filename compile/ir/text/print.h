#pragma once
// The text forms of a program: deterministic, free of pointers and storage ids, numbered in order of first appearance.
//
//   $0 f32[8,16]                                                     external values first
//   @w f32[4,16]
//   %0 f32[8] = sum($0) {dims=2 keep=false}  # blocks.0              a node that makes %0
//   %0 = relu(%0)                                                    written in place
//   @w.grad += linear_weight_grad(%1, $0)                            added to a gradient from before the step
//   sgd(@w!, %2, @lr, #0) {...}                                      ! = input written in place
//   return %3:f32[8]s[4]+2                                           a view: dtype, shape, strides, offset
//   @step = %4                                                       slots after the step
//
// The complete form, text(), has all that a program consists of: its tables, values, guards and lifetimes stand before
// the nodes, and so does each layout of a unit that nodes name (unit_table.h). parse.h reads it.
//
//   unit_layout blocks.0 {name=blocks.0 shard_axis=dp#2 shards=2 ... pieces=[{shape=[8,4] dtype=f32 ...}]}
//   gather_start(@s, &0) {unit=blocks.0} restores &0
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "compile/ir/program.h"

namespace sherd::ir {

struct PrintOptions {
  /// Leaves out what may differ between ranks that run the same program: sizes of local tensors, offsets in them,
  /// attributes marked as local, and waits for the rank's own queues.
  bool rank_neutral = false;
};

/// The short form, for messages and for comparing ranks.
std::vector<std::string> lines(const Program& program, PrintOptions options = {});
/// One node as its line shows it.
std::string describe_node(const Program& program, std::size_t index);
/// The lines, each ended by a line feed.
std::string to_string(const Program& program);

/// The complete form of a verified program: parse(text(p)) == p, and equal programs have equal texts.
std::string text(const Program& program);

}  // namespace sherd::ir
