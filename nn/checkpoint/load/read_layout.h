#pragma once
// How ranks divide the reading of a tensor among them. A block is read whole to be checked, and nearly every block of a
// matrix has some of each column: who holds columns would read all of it. So ranks read rows, and give each other
// columns.
//
//   saved {0: dp}      held {1: tp}       read {0: tp}         one all_to_all over tp
//   | a a a a |        | a a | . .       | a a a a |
//   | b b b b |        | b b | . .       | . . . . |
#include <vector>

#include "dtensor/spec.h"
#include "nn/checkpoint/format/manifest.h"
#include "runtime/op/core/tensor.h"

namespace sherd::ckpt {

/// The layout in which the ranks of a distributed tensor read it from pieces of that global shape, to be redistributed
/// to its own; null where each reads its own shard: if no piece is cut in a dim but the first, if all of it is one
/// block, or if it has fewer rows than ranks would read. The same on all ranks of the mesh.
const Spec* read_layout(const Tensor& value, const Shape& shape, const std::vector<const PieceEntry*>& pieces);

}  // namespace sherd::ckpt
