#pragma once
// Tensor: a cheap value handle on shared metadata, which points at shared bytes. Tensors are read-only values;
// ops make new ones, views alias, and only a Slot's contents change (see autograd/slot.h).
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/memory/storage.h"
#include "runtime/op/core/distributed.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/intrusive.h"
#include "runtime/tensor/meta.h"
#include "runtime/tensor/shape.h"

namespace sherd {

class Node;
class NodeRef;
/// Drops a reference to a tape node (autograd/node.h).
void release_node(Node* node);

/// One block per tensor: no field of it allocates.
class TensorImpl final : public RefCounted {
 public:
  enum Flag : std::uint8_t { kRequiresGrad = 1, kDistributed = 2, kMeta = 4 };
  static void destroy(TensorImpl* impl);

  TensorMeta meta;  // never absent; strides are always set
  std::int64_t numel = 0;
  std::uint8_t flags = 0;
  bool contiguous = true;
  int output_index = 0;       // which output of grad_node
  Ref<Storage> storage;       // empty on meta and for distributed tensors
  Node* grad_node = nullptr;  // owned; the node that made this tensor, or a slot's leaf
  Ref<TensorImpl> local;      // this rank's local tensor of a distributed tensor

  /// Gives a fresh block its layout, which it holds from now on.
  void set_layout(const Distributed* layout) {
    meta.layout = layout;
    hold_layout(layout);
  }

 private:
  template <class T>
  friend class Pool;
  TensorImpl(const Shape& shape, const Strides& strides, std::int64_t offset, DType dtype, Device device)
      : meta{.shape = shape, .dtype = dtype, .device = device, .strides = strides, .offset = offset},
        flags(device.is_meta() ? kMeta : 0) {}
  ~TensorImpl();
};

class Tensor {
 public:
  Tensor() = default;

  // ---- making (plain, uninitialised unless said) ----
  static Tensor empty(const Shape& shape, DType dtype, Device device = Device::cpu(),
                      MemoryCategory category = MemoryCategory::activations);
  /// A tensor over existing storage; `offset` in elements. Checks that it fits.
  static Tensor over(Ref<Storage> storage, const Shape& shape, const Strides& strides, std::int64_t offset,
                     DType dtype);
  /// This rank's `local` tensor as a distributed tensor of global `shape`.
  static Tensor distributed(const Shape& shape, const Distributed* layout, const Tensor& local);
  /// The same, in shape, layout and strides those of the distributed tensor `like`; the local tensors lie alike.
  static Tensor distributed_like(const Tensor& like, const Tensor& local);
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
  /// All of it; kAbsent if undefined.
  const TensorMeta& meta() const { return impl_ ? impl_->meta : kAbsent; }
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
  const Distributed* layout() const { return known("layout()").meta.layout; }
  /// This rank's local tensor; the tensor itself if it is plain.
  Tensor local() const { return (known("local()").flags & TensorImpl::kDistributed) ? Tensor(impl_->local) : *this; }

  // ---- bytes (plain tensors; addresses of a device are for its kernels) ----
  const Ref<Storage>& storage() const { return known("storage()").storage; }
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
  Node* grad_node() const { return known("grad_node()").grad_node; }
  int output_index() const { return known("output_index()").output_index; }
  /// Makes `node` the maker of this tensor.
  void set_grad_node(NodeRef node, int output_index);

  [[noreturn]] void refuse_bytes() const;  ///< the Error of raw() for a tensor that has none

  TensorImpl* impl() const { return impl_.get(); }
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}
  /// Fresh metadata over `storage`, without the checks of over().
  static Tensor make(Ref<Storage> storage, const Shape& shape, const Strides& strides, std::int64_t offset, DType dtype,
                     Device device);
  /// The same for a whole dense tensor that begins at this element of the storage.
  static Tensor make_dense(Ref<Storage> storage, const Shape& shape, DType dtype, Device device,
                           std::int64_t offset = 0);

 private:
  /// What `asked` is of: an Error if there is no tensor. A branch on the pointer that the caller loads anyway.
  const TensorImpl& known(const char* asked) const {
    if (!impl_) [[unlikely]]
      refuse_empty(asked);
    return *impl_.get();
  }
  [[noreturn]] static void refuse_empty(const char* asked);
  double item_as_double() const;
  Ref<TensorImpl> impl_;
};

/// Error: `what` is an empty tensor, a handle on nothing.
[[noreturn]] void fail_empty(std::string_view what);

/// "f32[2,3]", with placements for a distributed tensor: "f32[14336,4096]{0: tp,dp}"; "undefined" if it is absent.
std::string describe(const TensorMeta& meta);
inline std::string describe(const Tensor& tensor) { return describe(tensor.meta()); }
/// Values like PyTorch's print: rows in brackets, at most 6 leading and trailing entries per dim.
std::string to_string(const Tensor& tensor);

}  // namespace sherd

/// Tensors and metadata as arguments of check() and fail(), as describe() has them: text is made only when there is an
/// error.
template <>
struct fmt::formatter<sherd::TensorMeta> : fmt::formatter<std::string> {
  template <class Context>
  auto format(const sherd::TensorMeta& meta, Context& context) const {
    return fmt::formatter<std::string>::format(sherd::describe(meta), context);
  }
};
template <>
struct fmt::formatter<sherd::Tensor> : fmt::formatter<sherd::TensorMeta> {
  template <class Context>
  auto format(const sherd::Tensor& tensor, Context& context) const {
    return fmt::formatter<sherd::TensorMeta>::format(tensor.meta(), context);
  }
};
