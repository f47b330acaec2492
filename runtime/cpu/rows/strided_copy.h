#pragma once
// Moving elements between two strided layouts of one shape and dtype: the one loop behind copy, cat and padding.
#include "runtime/op/core/tensor.h"

namespace sherd::cpu {

/// Where and how a tensor's elements lie.
struct Layout {
  void* data;
  Strides strides;
};

/// to[i] = from[i] over `shape`; with `accumulate` to[i] + from[i], rounded to `dtype` (f32 inside for 16-bit floats).
void strided_copy(DType dtype, const Shape& shape, const Layout& from, const Layout& to, bool accumulate);

}  // namespace sherd::cpu
