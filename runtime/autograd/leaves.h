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
#include <unordered_map>
#include <vector>

#include "runtime/autograd/slot.h"
#include "runtime/op/core/tape_modes.h"
#include "runtime/tensor/no_copy.h"

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

/// Leaves whose gradients the running backward pass adds up; 1 outside of one.
std::int64_t leaves_of_backward();

/// Gradients of slots in a pass of several leaves. Terms of a leaf are added in the gradient's type, leaves in that of
/// the sink's home for their sum, which may be wider; the sum lies there if that is fresh.
class LeafGradients : NoCopy {
 public:
  explicit LeafGradients(std::int64_t leaves) : count_(leaves) {}
  std::int64_t count() const { return count_; }

  /// Where the next term of a leaf is written. Leaves come in order; where vjps give several terms, each comes in
  /// order. No buffer where terms do not lie as the sum: add() knows how.
  GradSink::Destination place_of(std::int64_t leaf, Leaf& slot, const TensorMeta& gradient);
  /// Adds a term that was computed elsewhere.
  void add(std::int64_t leaf, Leaf& slot, Tensor gradient);
  bool has(const Leaf& slot) const { return sums_.contains(&slot); }
  /// All terms are in: gives the sum over leaves to the slot's sink, if there is one.
  void put_sum(const Leaf& slot);

 private:
  // The sums of one slot. Where a leaf has terms of several vjps, leaves wait for all of them.
  class Sums {
   public:
    Sums(std::int64_t leaves, TensorMeta gradient, GradSink::Destination home, bool has_several_terms);
    GradSink::Destination place_of(std::int64_t leaf);
    const Tensor& total();
    const GradSink::Destination& home() const { return home_; }

   private:
    void add_up_to(std::int64_t leaf);
    bool is_wide() const { return home_.buffer.defined() && home_.buffer.dtype() != gradient_.dtype; }
    Tensor place_for(DType dtype, bool goes_home) const;
    TensorMeta gradient_;
    GradSink::Destination home_;
    bool has_several_terms_;
    std::vector<Tensor> sums_;  // by first leaf
    std::int64_t added_ = 0;    // leaves
  };
  Sums& sums_of(Leaf& slot, const TensorMeta& gradient);

  const std::int64_t count_;
  std::unordered_map<const Leaf*, Sums> sums_;
};

}  // namespace sherd
