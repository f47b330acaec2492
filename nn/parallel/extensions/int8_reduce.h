#pragma once
// Gradients reduced in 8 bits, as ZeRO++ does (Wang et al. 2023): an example of a reduction of the user's, and of a row
// that works on a queue.
//
//   units(model).set_custom_reduce(int8_reduce());
//
//   full gradients of this rank   | for rank 0 ... | for rank 1 ... |      8-bit values and a scale for each block
//   (blocks.h)
//                                        all_to_all
//   from rank 0, from rank 1 ...  | values, scales | values, scales |      added in f32 in rank order, scaled, stored:
//   out
//
// Each contribution is rounded once, sums are not: the result is off by at most the sum over ranks of half a step,
// times the scale. Of N elements in b blocks 1 N + 4 b bytes move, where an f32 reduction moves 4 N. All of it,
// arithmetic included, runs on the queue "reduce" beside compute. Over replicas gradients are summed as without it.
#include "nn/parallel/extensions/blocks.h"
#include "nn/parallel/shard/gather/unit_gather.h"

namespace sherd::nn {

/// Falls back to start_reduce() for a unit with f64 gradients or shards of inner dims. Works on the host only: the row
/// has no kernel on a device, which is an Error that names the row. Error as quantize_blocks() for `block`.
UnitReduce int8_reduce(int block = kQuantizationBlock);

}  // namespace sherd::nn
