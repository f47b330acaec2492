#pragma once
// The runtime reads a tensor by its handle: its block, with the bytes, the layout and the place on the tape. What
// programs ask of a tensor is in tensor.h.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/memory/storage.h"
#include "runtime/op/core/distributed.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/intrusive.h"
#include "runtime/tensor/meta.h"
#include "runtime/tensor/shape.h"

namespace sherd {

class Tensor;
class Node;
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

/// A handle on a block, or on nothing; every one is a Tensor. What is asked of nothing is an Error that names it.
class TensorHandle {
 public:
  TensorHandle() = default;
  explicit TensorHandle(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}

  // ---- making ----
  /// Uninitialised, on the account of `category`.
  static Tensor empty(const Shape& shape, DType dtype, Device device, MemoryCategory category);
  /// A tensor over existing storage; `offset` in elements. Checks that it fits.
  static Tensor over(Ref<Storage> storage, const Shape& shape, const Strides& strides, std::int64_t offset,
                     DType dtype);
  /// This rank's `local` tensor as a distributed tensor of global `shape`.
  static Tensor distributed(const Shape& shape, const Distributed* layout, const Tensor& local);
  /// The same, in shape, layout and strides those of the distributed tensor `like`; the local tensors lie alike.
  static Tensor distributed_like(const Tensor& like, const Tensor& local);
  /// Fresh metadata over `storage`, without the checks of over().
  static Tensor make(Ref<Storage> storage, const Shape& shape, const Strides& strides, std::int64_t offset, DType dtype,
                     Device device);
  /// The same for a whole dense tensor that begins at this element of the storage.
  static Tensor make_dense(Ref<Storage> storage, const Shape& shape, DType dtype, Device device,
                           std::int64_t offset = 0);

  // ---- reading ----
  TensorImpl* impl() const { return impl_.get(); }
  /// All of the metadata; kAbsent if undefined.
  const TensorMeta& meta() const { return impl_ ? impl_->meta : kAbsent; }
  const Distributed* layout() const { return known("layout()").meta.layout; }
  const Ref<Storage>& storage() const { return known("storage()").storage; }
  Node* grad_node() const { return known("grad_node()").grad_node; }
  int output_index() const { return known("output_index()").output_index; }
  /// Makes `node` the maker of this tensor.
  void set_grad_node(Ref<Node> node, int output_index);

 protected:
  /// What `asked` is of: an Error if there is no tensor. A branch on the pointer that the caller loads anyway.
  const TensorImpl& known(const char* asked) const {
    if (!impl_) [[unlikely]]
      refuse_empty(asked);
    return *impl_.get();
  }
  [[noreturn]] static void refuse_empty(const char* asked);

  Ref<TensorImpl> impl_;
};

/// "f32[2,3]", with placements for a distributed tensor: "f32[14336,4096]{0: tp,dp}"; "undefined" if it is absent.
std::string describe(const TensorMeta& meta);

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
