#pragma once
// Rows that change the layout of a tensor and not its value. To autograd each is the identity on the global tensor; the
// dist layer runs them, so capture sees the collectives only.
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "dtensor/transition/transition.h"
#include "runtime/op/core/tensor.h"

namespace sherd {

/// In which types values travel. What is reduced is rounded to that type by each rank, and sums are rounded once more.
struct RedistributeOptions {
  std::optional<DType> forward_dtype{};   ///< of the result, and of what is sent; default: x's
  std::optional<DType> backward_dtype{};  ///< of gradients as they are sent; they arrive in x's, which is the default
};

/// The same tensor in another layout of its mesh, by the cheapest transition; x itself if that is its layout and type.
/// Differentiable: the gradient is redistributed to x's layout, Replicate where x is Partial, and has x's type.
/// Collective unless the transition is free; does not wait, the first read of the result does. The local tensor may be
/// a view of x's. Error: a plain tensor, a layout of another mesh, Shard or Replicate -> Partial,
/// Partial(a) -> Partial(b), a type in `options` where it or x's is no float.
Tensor redistribute(Tensor x, const Spec* to, const RedistributeOptions& options = {});
/// One placement per axis of x's mesh; axes on one dim split it in mesh order. Negative dims count from the end.
Tensor redistribute(Tensor x, std::span<const Placement> placements, const RedistributeOptions& options = {});
inline Tensor redistribute(Tensor x, std::initializer_list<Placement> placements,
                           const RedistributeOptions& options = {}) {
  return redistribute(std::move(x), std::span(placements.begin(), placements.size()), options);
}

/// x itself, but its gradient is redistributed to x's layout, Replicate where x is Partial: a Partial gradient is
/// reduced here once, and not again by each of its users. Communicates in backward only.
Tensor align_gradient(Tensor x);

/// The default layout of the gradient of a tensor in this layout: Partial becomes Replicate.
const Spec* gradient_spec(const Spec* spec);
/// Placements with dims counted from the front. Error for dims that `ndim` dims do not have.
std::vector<Placement> normalize_placements(std::span<const Placement> placements, int ndim);

}  // namespace sherd
