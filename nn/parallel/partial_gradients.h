#pragma once
// Gradients of replicated parameters that are Partial over an axis: a norm's weight where the sequence is sharded. They
// are small and many, so they are reduced together at the end of backward:
//
//   partial    | norm | norm | ... | norm |   one copy
//              one all_reduce over the axis
//   gradients  views of the sum
#include <memory>
#include <string_view>
#include <vector>

#include "dtensor/spec.h"
#include "runtime/autograd/slot.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::nn {

/// The Partial gradients of a rank's running backward pass over one mesh axis. A sink that calls add() also calls
/// discard() from its abandon().
class PartialGradients final : public std::enable_shared_from_this<PartialGradients>, NoCopy {
 public:
  /// The instance of this rank for a mesh of one axis, shared so that a pass has one reduction. Lives as long as its
  /// holders.
  static std::shared_ptr<PartialGradients> of(const DeviceMesh& mesh);

  explicit PartialGradients(const DeviceMesh& mesh) : mesh_(mesh) {}

  /// Takes this rank's partial gradient of `slot`: a plain tensor, whose sum over the axis is the local tensor of a
  /// gradient of global `shape` in `layout`. Values of one slot accumulate. At the end of the pass, after callbacks
  /// that others have queued there, the sum is added to slot.grad() and the slot's hooks run. All ranks of the axis
  /// must add the same slots in the same order. Error outside of a backward pass.
  void add(Slot& slot, Tensor partial, const Shape& shape, const Spec* layout);
  /// Whether the running pass has added a value for it.
  bool has(const Slot& slot) const;
  /// Drops the values of a pass that was left by an exception. Local.
  void discard() noexcept;

 private:
  struct Entry {
    Slot* slot;
    Tensor partial;
    Shape shape;
    SpecRef layout;
  };
  void reduce();

  DeviceMesh mesh_;
  std::vector<Entry> entries_;
  bool is_queued_ = false;
};

/// Adds a gradient to slot.grad(), or sets it if there is none. Both have layout `layout`; `local` is the gradient's
/// local tensor.
void add_gradient(Slot& slot, Tensor local, const Shape& shape, const Spec* layout);

}  // namespace sherd::nn
