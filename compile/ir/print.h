#pragma once
// The text form of a graph: deterministic, free of pointers and storage ids, numbered in order of first appearance.
//
//   $0 f32[8,16]                                                     external values first
//   @w f32[4,16]
//   %0 f32[8] = sum($0) {dims=2 keep=false}  # blocks.0              a node that makes %0
//   %0 = relu(%0)                                                    written in place
//   @w.grad += linear_weight_grad(%1, $0)                            added to a gradient from before the step
//   sgd(@w!, %2, @lr, #0) {...}                                      ! = input written in place
//   return %3:f32[8]s[4]+2                                           a view: dtype, shape, strides, offset
//   @step = %4                                                       slots after the step
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "compile/ir/graph.h"

namespace sherd {

struct PrintOptions {
  /// Leaves out what may differ between ranks that run the same program: sizes of local tensors, offsets in them, and
  /// attributes marked as local.
  bool rank_neutral = false;
};

std::vector<std::string> lines(const Graph& graph, PrintOptions options = {});
/// One node as its line shows it, for messages.
std::string describe_node(const Graph& graph, std::size_t index);
/// The lines, each ended by a line feed.
std::string to_string(const Graph& graph);
/// FNV-1a.
std::uint64_t hash_text(std::string_view text);

}  // namespace sherd
