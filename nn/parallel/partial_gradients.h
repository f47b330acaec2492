#pragma once
// Gradients of parameters that are whole on every rank of an axis, of which each rank has computed a term only: a
// norm's weight where ranks hold parts of the sequence. They are small and many, so they are summed together at the end
// of backward:
//
//   terms      | norm | norm | ... | norm |   one copy
//              one all_reduce of the axis
//   gradients  views of the sum
#include <memory>
#include <string_view>
#include <vector>

#include "dtensor/spec.h"
#include "runtime/autograd/slot.h"

namespace sherd::nn {

/// What the running backward pass of a rank has brought for one mesh axis. Whoever puts terms in also calls discard()
/// from its sink's abandon().
class PartialGradients final : public std::enable_shared_from_this<PartialGradients> {
 public:
  /// The one of this rank's thread for a mesh of one axis; all who ask share it, so that a pass has one reduction.
  /// Lives as long as its holders.
  static std::shared_ptr<PartialGradients> of(const DeviceMesh& mesh);

  explicit PartialGradients(const DeviceMesh& mesh) : mesh_(mesh) {}
  PartialGradients(const PartialGradients&) = delete;
  PartialGradients& operator=(const PartialGradients&) = delete;

  /// Takes this rank's term of the gradient of `slot`: a plain tensor, which summed over the axis is the local part of
  /// a tensor of global `shape` placed as `layout`. Terms of one slot add up. At the end of the pass, after what others
  /// have queued there, the sum is added to slot.grad() and the slot's hooks run. All ranks of the axis must bring the
  /// same slots in the same order. Error outside of a backward pass.
  void add(Slot& slot, Tensor term, const Shape& shape, const Spec* layout);
  /// Whether the running pass has brought a term for it.
  bool has(const Slot& slot) const;
  /// Drops the terms of a pass that was left by an exception. Local.
  void discard() noexcept;

 private:
  struct Entry {
    Slot* slot;
    Tensor term;
    Shape shape;
    const Spec* layout;
  };
  void reduce();

  DeviceMesh mesh_;
  std::vector<Entry> entries_;
  bool is_queued_ = false;
};

/// Adds a gradient to slot.grad(), which becomes it if there is none yet. Both lie as `layout` says; `local` is this
/// rank's part.
void add_gradient(Slot& slot, Tensor local, const Shape& shape, const Spec* layout);

}  // namespace sherd::nn
