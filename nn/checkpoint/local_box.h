#pragma once
// The box of a global tensor that a rank holds, and which rank saves it.
#include "nn/checkpoint/box.h"
#include "runtime/op/tensor.h"

namespace sherd::nn {

/// This rank's shard; of a plain tensor the full box. Error if it is Partial: no rank has its values.
Box local_box(const Tensor& value);

/// Whether this rank saves its box. Of replicas one is saved: of a plain tensor rank 0's, of a distributed one that
/// with coordinate 0 along all axes of the root mesh that do not shard it.
bool saves_box(const Tensor& value, int rank);

}  // namespace sherd::nn
