#pragma once
// Whether refs share bytes, for any strides.
#include <cstdint>

#include "compile/ir/program.h"

namespace sherd::ir {

/// Whether an element of `a` and one of `b`, which starts `shift` bytes further on, share a byte: columns that
/// interleave do not. True where finding out would take long.
bool share_bytes(const TensorRef& a, const TensorRef& b, std::int64_t shift = 0);

/// False if no two elements of a tensor share a byte, because each step is longer than all that the smaller ones span.
bool repeats_bytes(const TensorRef& ref);

}  // namespace sherd::ir
