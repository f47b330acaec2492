#pragma once
// Moving elements between two strided layouts, for the rows that are nothing else and for inputs that must be dense
// (dense.h). All work is queued on the context's stream.
#include "runtime/cuda/device/context.h"

namespace sherd::cuda {

/// Where and how the elements of a tensor lie.
struct Layout {
  void* data;
  Strides strides;
};
inline Layout layout_of(const Tensor& t) { return {t.raw(), t.strides()}; }

/// to[i] = from[i] over `shape`, bit for bit.
void strided_copy(Context& context, DType dtype, const Shape& shape, const Layout& from, const Layout& to);
/// to[i] = from[i] rounded to `to_dtype`; `add` adds that to what is there and rounds again.
void strided_convert(Context& context, const Shape& shape, DType from_dtype, const Layout& from, DType to_dtype,
                     const Layout& to, bool add);
/// to[i] = value, the element whose bytes these are.
void strided_fill(Context& context, DType dtype, const Shape& shape, const Layout& to, const void* value);

}  // namespace sherd::cuda
