#pragma once
// Kernels here want dense inputs. One that is not is copied into the call's scratch first, so every row takes any
// strides: the scratch column reserves the bytes from metadata, the kernel takes them in the same order.
#include "runtime/op/core/op.h"

namespace sherd::cpu {

/// Bytes of scratch that making `t` dense takes: 0 if it is dense or absent.
std::int64_t dense_scratch_bytes(const TensorMeta& t);

/// Hands out parts of the call's scratch, each aligned to 64 bytes.
class ScratchCursor {
 public:
  explicit ScratchCursor(const Exec& exec) : at_(exec.scratch) {}
  template <class T>
  T* take(std::int64_t count) {
    std::byte* place = at_;
    at_ += rounded(count * static_cast<std::int64_t>(sizeof(T)));
    return reinterpret_cast<T*>(place);
  }
  static constexpr std::int64_t rounded(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }
  /// The elements of `t` in row-major order: its own bytes if it is dense.
  const void* dense_raw(const Tensor& t);
  template <class T>
  const T* dense(const Tensor& t) {
    return static_cast<const T*>(dense_raw(t));
  }

 private:
  std::byte* at_;
};

}  // namespace sherd::cpu
