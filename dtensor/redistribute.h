#pragma once
// Rows that change where a tensor lies and not what it is. To autograd each is the identity on the global tensor; the
// dist layer runs them, so capture sees the collectives only.
#include <initializer_list>
#include <span>

#include "dtensor/transition.h"
#include "runtime/op/dispatch.h"

namespace sherd {

/// The same tensor in another layout of its mesh, by the cheapest transition; x itself if it has it. Differentiable:
/// the gradient comes back in x's layout, Replicate where x is Partial. Collective unless the transition is free; does
/// not wait, the result is waited for where it is first read. The local part may be a view of x's.
/// Error: a plain tensor, a layout of another mesh, Shard or Replicate -> Partial, Partial(a) -> Partial(b).
Tensor redistribute(Tensor x, const Spec* to);
/// Placements per axis of x's mesh, which cut in mesh order; negative dims count from the end.
Tensor redistribute(Tensor x, std::span<const Placement> placements);
inline Tensor redistribute(Tensor x, std::initializer_list<Placement> placements) {
  return redistribute(std::move(x), std::span(placements.begin(), placements.size()));
}

/// x itself, but its gradient is brought to x's layout, Replicate where x is Partial: a gradient whose terms lie on
/// several ranks is reduced here, once, and not by each who uses it. Communicates in backward only.
Tensor align_gradient(Tensor x);

/// The layout that a gradient of a tensor of this layout takes: Partial becomes Replicate.
const Spec* gradient_spec(const Spec* spec);
/// Placements with dims counted from the front. Error for dims that `ndim` dims do not have.
std::vector<Placement> normalize_placements(std::span<const Placement> placements, int ndim);

/// A row with the trait `placement`. It is in no table: `run` makes its result, from the local part down.
struct PlacementRow : Op {
  Tensor (*run)(OpCall& call) = nullptr;
};
/// What the dist layer does for rows with that trait.
Tensors run_placement_row(OpCall& call);

}  // namespace sherd
