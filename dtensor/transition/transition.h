#pragma once
// From one layout of a tensor to another: the cheapest list of collectives, found by a shortest path over layouts.
//
//   {0: dp; 1: tp}  --all_to_all(tp)-->  {0: dp,tp}  --all_gather(dp+tp)-->  {}
//
//   slice            R -> S   every rank keeps its chunk; no communication
//   all_gather       S -> R   of the axis that splits a dim innermost; of several when one group spans them
//   all_to_all       S -> S   from the innermost split of one dim to that of another
//   reduce_scatter   P -> S   a new innermost split
//   all_reduce       P -> R
//
// Splits with listed sizes are gathered first and sliced last (listed_splits.h).
// Replicate -> Partial and Shard -> Partial do not exist: a value becomes Partial by ops only. Where several axes are
// Partial by kinds that do not commute (a sum of maxima), later axes reduce first.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dtensor/spec.h"
#include "runtime/exec/price.h"
#include "runtime/op/core/tensor.h"
#include "runtime/tensor/small_vec.h"

namespace sherd {

struct TransitionStep {
  enum class Kind : std::uint8_t { slice, all_gather, all_to_all, reduce_scatter, all_reduce };
  Kind kind = Kind::slice;
  SmallVec<int, 2> axes;         ///< mesh axes; several: one call on DeviceMesh::joint_group(axes)
  int from_dim = 0, to_dim = 0;  ///< the dim that is gathered, the dim that is split
  ReduceKind reduce = ReduceKind::sum;
  SpecRef result;
  std::int64_t bytes = 0;            ///< of the full buffer on the rank with the largest local tensor; 0 for a slice
  std::vector<std::int64_t> rows{};  ///< of the dim, per rank of the axis, where a layout lists them; else empty
};

struct Transition {
  std::vector<TransitionStep> steps;
  double seconds = 0;      ///< by the prices of the axes
  std::int64_t bytes = 0;  ///< sum over the steps
  /// Without any collective.
  bool is_free() const;
  /// "all_to_all(tp, dim 1 -> 0) -> {0: dp,tp}; all_gather(dp+tp, dim 0) -> {}"; "nothing".
  std::string describe() const;
};

/// Cheapest plan for a tensor of global `shape`, cached per rank; the reference is valid until the rank has asked for
/// kMaxTransitions / 2 others. Local: the same plan on all ranks. Axes of size 1 never communicate; those that are
/// Replicate or Partial in both layouts are left alone. Error: layouts of two meshes, a dim the shape does not have,
/// Shard or Replicate -> Partial, Partial(a) -> Partial(b).
const Transition& plan_transition(const Spec* from, const Spec* to, const Shape& shape, DType dtype);

inline constexpr std::size_t kMaxTransitions = 1 << 10;

/// The plan's price alone, in seconds; infinity where it is refused.
double transition_seconds(const Spec* from, const Spec* to, const Shape& shape, DType dtype);

/// Runs a plan on this rank's local tensor of global `shape`, by calls below the dist layer, so that capture records
/// them. Collective; returns without waiting. The result has the local shape of the plan's target and may be a view of
/// `local`.
Tensor run_transition(Tensor local, const Shape& shape, const Transition& plan);

/// Sets the price of axes of that name for this rank's plans; plans made so far are dropped. All ranks must set the
/// same. Unset: the default link.
void set_axis_price(std::string_view axis, const LinkPrice& price);

/// Part of forget_plans().
void forget_transitions();
/// Number of transitions in this rank's cache.
std::size_t num_transitions();

}  // namespace sherd
