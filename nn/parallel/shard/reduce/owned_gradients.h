#pragma once
// The second half of a reduction where replicas divide the shards (hybrid_shard_state): from gradients of this rank's
// shard, summed over shards, to those of what it owns of it, summed over replicas too.
//
//   shard   | p0 rows of the shard | p1 rows of the shard | ...     in the wider of the types that gradients travel in
//        one reduce_start over replicas, on their queue             and add up in
//   owned   | p0 part of them | p1 part of them | ...               grad() of the parameters
//
// Sums that earlier passes have left (set_requires_all_reduce) are where the first half adds to. They are read where
// they are if that is one buffer, else they are put together first: whatever a replica has used in which pass, it
// issues one row, of the same types.
#include <span>
#include <vector>

#include "runtime/op/unit/unit.h"

namespace sherd::nn {

class OwnedGradients {
 public:
  /// `owned` says what of its shards this rank owns (PlacedUnit::owned).
  explicit OwnedGradients(const UnitLayout& owned);

  struct Member {
    int piece = 0;
    Tensor shard{};                 ///< dense: where the first half puts it
    AddTo add_to = AddTo::nothing;  ///< what its gradient is added to by the second half
  };
  /// One for each of `pieces`, whose `earlier` sums are undefined, those that replicas have not summed yet, or
  /// gradients; all in one buffer. Changes what the first half adds `pieces` to: to such sums, or to nothing.
  std::vector<Member> make_room(std::span<ReducedPiece> pieces, std::span<const Tensor> earlier, Device device) const;
  /// Starts to reduce the members' shards into `gradients`, one dense tensor for each. `in_flight` as of a reduction.
  void reduce(std::span<const Member> members, std::span<const Tensor> gradients, int in_flight) const;

 private:
  bool lie_together(std::span<const ReducedPiece> pieces, std::span<const Tensor> earlier) const;

  UnitLayoutPtr shards_;  // its full tensors are gradients of the shards
};

}  // namespace sherd::nn
