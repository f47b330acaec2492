#pragma once
// The box of a global tensor that a rank holds, and which rank saves it.
#include <vector>

#include "nn/checkpoint/format/box.h"
#include "runtime/op/core/tensor.h"

namespace sherd::ckpt {

/// This rank's shard; of a plain tensor the full box. Error if it is Partial: no rank has its values.
Box local_box(const Tensor& value);

/// A box of a saved tensor, and its values, of the box's shape.
struct LocalPart {
  Box box;
  Tensor values;
};

/// What this rank has of a tensor that is saved in `shape`: its box, or, where leading dims of it are one dim of
/// `value` (nn::shard_merged), the boxes that make up this rank's rows, in their order. Error as of local_box().
std::vector<LocalPart> local_parts(const Tensor& value, const Shape& shape);

/// The axes of a distributed tensor's root mesh, of more than one rank, along which ranks hold the same box.
std::vector<int> replica_axes(const Tensor& value);

/// Whether this rank saves its box. Of replicas one is saved: of a plain tensor rank 0's, of a distributed one that
/// with coordinate 0 along all axes of the root mesh that do not shard it.
bool saves_box(const Tensor& value, int rank);

}  // namespace sherd::ckpt
