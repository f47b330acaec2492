#pragma once
// Several leaves of a batch in one forward and one backward pass. Leaves are equal parts of the rows, one after the
// other along dim 0, and gradients get the bits of passes over each alone, added up as a tree (comm/group/sum_order.h).
//
//   a value of the batch    | leaf 0 | leaf 1 | leaf 2 | leaf 3 |      one gradient, of all rows
//   a parameter             (g0 + g1) + (g2 + g3)                      the vjp sums each leaf's rows alone
//
// Vjps that sum over rows give the sums leaf by leaf (VjpCall::give_rows, give_of_leaf). Where such a sum reaches a
// call that is not of the batch itself (a row of positions, a cast or transposed weight), that call's vjp runs for each
// leaf.
#include <cstdint>
#include <vector>

#include "runtime/autograd/slot.h"
#include "runtime/op/core/tape_modes.h"

namespace sherd {

/// While it lives, linear_cross_entropy() on this rank's thread sums the means of `leaves` leaves, and backward() from
/// that loss adds up gradients as a tree over them. All else in it must keep rows of dim 0 apart. Error unless `leaves`
/// is a power of two; backward() throws Error, naming the call, where the root is no such loss, or a parameter gets a
/// gradient by a vjp that does not know leaves.
class LeavesScope {
 public:
  explicit LeavesScope(std::int64_t leaves);
  ~LeavesScope();
  LeavesScope(const LeavesScope&) = delete;
  LeavesScope& operator=(const LeavesScope&) = delete;

 private:
  TapeModes& modes_;
  const std::int64_t outer_;
};

/// The gradient of one slot in a pass of several leaves. A sum over 2^k leaves lies where its first leaf's term began,
/// the whole in `home` if that is fresh. Where a leaf has terms of several vjps, leaves wait for all of them.
class LeafSums {
 public:
  LeafSums(std::int64_t leaves, TensorMeta gradient, GradSink::Destination home, bool has_several_terms);
  /// Where the next term of a leaf is written; leaves come in order, unless they have several terms. What adds its term
  /// once it is finished (`adds_once`) does so to the leaf before, where the two are a sum.
  GradSink::Destination place_of(std::int64_t leaf, bool adds_once);
  /// The sum over all leaves.
  const Tensor& total();
  const GradSink::Destination& home() const { return home_; }

 private:
  void add_up_to(std::int64_t leaf);
  TensorMeta gradient_;
  GradSink::Destination home_;
  bool has_several_terms_;
  std::vector<Tensor> sums_;  // by first leaf
  std::int64_t added_ = 0;    // leaves
  std::int64_t joined_ = -1;  // the last leaf that went to the one before
};

}  // namespace sherd
