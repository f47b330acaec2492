#pragma once
// When the same bytes can be read as another shape.
#include "runtime/tensor/shape.h"

namespace sherd {

/// Strides that read a tensor of `shape` and `strides` as `to`, which has as many elements; false if no alias can.
bool view_strides(const Shape& shape, const Strides& strides, const Shape& to, Strides& result);

}  // namespace sherd
