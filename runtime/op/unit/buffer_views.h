#pragma once
// Tensors inside byte buffers that many tensors share.
#include "runtime/op/core/tensor.h"

namespace sherd {

/// Tensors in a buffer begin at multiples of a cache line; the gaps are padding.
inline constexpr std::int64_t kBufferAlign = 64;
constexpr std::int64_t align(std::int64_t bytes) { return (bytes + kBufferAlign - 1) / kBufferAlign * kBufferAlign; }

/// All bytes of a storage, u8.
inline Tensor bytes_over(Ref<Storage> storage) {
  const Shape shape{storage->bytes()};
  return Tensor::over(std::move(storage), shape, contiguous_strides(shape), 0, DType::u8);
}

inline Tensor view_at(const Tensor& buffer, const Shape& shape, std::int64_t byte_offset, DType dtype) {
  return Tensor::make_dense(buffer.storage(), shape, dtype, buffer.device(), byte_offset / byte_size(dtype));
}
/// `count` contiguous elements of `buffer`.
inline Tensor run_at(const Tensor& buffer, std::int64_t count, std::int64_t byte_offset, DType dtype) {
  return view_at(buffer, {count}, byte_offset, dtype);
}
inline Tensor flat(const Tensor& t) { return run_at(t, t.numel(), t.offset() * byte_size(t.dtype()), t.dtype()); }

}  // namespace sherd
