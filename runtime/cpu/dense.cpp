#include "runtime/cpu/dense.h"

#include "runtime/cpu/rows/strided_copy.h"
#include "runtime/cpu/scratch.h"

namespace sherd::cpu {

std::int64_t dense_scratch_bytes(const TensorMeta& t) {
  return !t.defined() || t.is_contiguous() ? 0 : ScratchCursor::rounded(t.bytes());
}

const void* ScratchCursor::dense_raw(const Tensor& t) {
  if (t.is_contiguous()) return t.raw();
  std::byte* to = take<std::byte>(t.bytes());
  strided_copy(t.dtype(), t.shape(), {t.raw(), t.strides()}, {to, contiguous_strides(t.shape())}, false);
  return to;
}

std::int64_t dense_scratch(const InferCall& call) {
  std::int64_t bytes = 0;
  for (const TensorMeta& t : call.in) bytes += dense_scratch_bytes(t);
  return bytes;
}

}  // namespace sherd::cpu
