#pragma once
// Tensor: a cheap value handle on shared metadata, which points at shared bytes. Tensors are read-only values;
// ops make new ones, views alias, and only a Slot's contents change (see autograd/slot.h).
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/op/core/tensor_handle.h"

namespace sherd {

class Tensor : public TensorHandle {
 public:
  Tensor() = default;
  using TensorHandle::TensorHandle;

  // ---- making (plain, uninitialised unless said) ----
  using TensorHandle::empty;
  static Tensor empty(const Shape& shape, DType dtype, Device device = Device::cpu()) {
    return empty(shape, dtype, device, MemoryCategory::activations);
  }
  /// Copies host values: Tensor::from<float>({1, 2, 3, 4}, {2, 2}).
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape);
  template <class T>
  static Tensor from(std::initializer_list<T> values, const Shape& shape) {
    return from(std::span<const T>(values.begin(), values.size()), shape);
  }
  static Tensor scalar(double value, DType dtype = DType::f32);

  // ---- metadata (global for distributed tensors). Of an empty tensor each is an Error that names it ----
  bool defined() const { return static_cast<bool>(impl_); }
  const Shape& shape() const { return known("shape()").meta.shape; }
  std::int64_t size(int dim) const { return shape()[normalize_dim(dim, ndim())]; }
  int ndim() const { return known("ndim()").meta.shape.size(); }
  std::int64_t numel() const { return known("numel()").numel; }
  DType dtype() const { return known("dtype()").meta.dtype; }
  Device device() const { return known("device()").meta.device; }
  const Strides& strides() const { return known("strides()").meta.strides; }
  std::int64_t offset() const { return known("offset()").meta.offset; }
  bool is_contiguous() const { return known("is_contiguous()").contiguous; }
  bool requires_grad() const { return known("requires_grad()").flags & TensorImpl::kRequiresGrad; }
  bool is_meta() const { return known("is_meta()").flags & TensorImpl::kMeta; }
  /// Whether it is of a ghost rank: it has an address and no values.
  bool is_ghost() const { return storage() && impl_->storage->is_ghost(); }
  std::int64_t bytes() const { return numel() * byte_size(dtype()); }

  bool is_distributed() const { return known("is_distributed()").flags & TensorImpl::kDistributed; }
  /// This rank's local tensor; the tensor itself if it is plain.
  Tensor local() const { return (known("local()").flags & TensorImpl::kDistributed) ? Tensor(impl_->local) : *this; }

  // ---- bytes (plain tensors; addresses of a device are for its kernels) ----
  /// To read: waits for a queue that writes the bytes. (Kernels may write what the dispatcher has asked for to write.)
  void* raw() const {
    if (!known("raw()").storage) [[unlikely]]
      refuse_bytes();
    return impl_->storage->read() + impl_->meta.offset * byte_size(impl_->meta.dtype);
  }
  /// To write: waits for all queues that use the bytes.
  void* raw_to_write() const {
    if (!known("raw_to_write()").storage) [[unlikely]]
      refuse_bytes();
    return impl_->storage->write() + impl_->meta.offset * byte_size(impl_->meta.dtype);
  }
  template <class T>
  const T* data() const {
    return static_cast<const T*>(raw());
  }
  /// For kernels and for filling a fresh tensor; never for a tensor that has other handles.
  template <class T>
  T* mutable_data() const {
    return static_cast<T*>(raw_to_write());
  }
  /// The value of a one-element tensor. Of a device: waits for it. In a captured step and a recomputed module: an
  /// Error.
  template <class T>
  T item() const {
    return convert<T>(item_as_double());
  }
  /// Elements in row-major order, converted. Of a device: waits for them.
  template <class T>
  std::vector<T> to_vector() const;

  // ---- autograd ----
  /// The same bytes without history.
  Tensor detach() const;
  /// As detach(), always with a handle of its own.
  Tensor alias() const;

  [[noreturn]] void refuse_bytes() const;  ///< the Error of raw() for a tensor that has none

 private:
  double item_as_double() const;
};

/// Error: `what` is an empty tensor, a handle on nothing.
[[noreturn]] void fail_empty(std::string_view what);

/// "f32[2,3]", with placements for a distributed tensor: "f32[14336,4096]{0: tp,dp}"; "undefined" if it is empty.
inline std::string describe(const Tensor& tensor) { return describe(tensor.meta()); }
/// Values like PyTorch's print: rows in brackets, at most 6 leading and trailing entries per dim.
std::string to_string(const Tensor& tensor);

}  // namespace sherd

/// As an argument of check() and fail(): text is made only when there is an error.
template <>
struct fmt::formatter<sherd::Tensor> : fmt::formatter<std::string> {
  template <class Context>
  auto format(const sherd::Tensor& tensor, Context& context) const {
    return fmt::formatter<std::string>::format(sherd::describe(tensor), context);
  }
};
