#pragma once
// Which part of a whole tensor a rank holds, and who saves it.
#include "nn/checkpoint/box.h"
#include "runtime/op/tensor.h"

namespace sherd::nn {

/// All of a plain tensor. Error if it is Partial: its values are nowhere.
Box local_box(const Tensor& value);

/// Of the ranks that hold equal elements one saves them: of a plain tensor rank 0, of a distributed one those with
/// coordinate 0 along all axes of the root mesh that do not cut it.
bool saves_box(const Tensor& value, int rank);

}  // namespace sherd::nn
