#pragma once
// The second half of a reduction where replicas divide the shards (hybrid_shard_state): from gradients of this rank's
// shard, summed over shards, to those of what it owns of it, summed over replicas too.
//
//   shard   | p0 rows of the shard | p1 rows of the shard | ...     in the type that gradients travel in
//        reduce_start over replicas, on their queue
//   owned   | p0 part of them | p1 part of them | ...               grad() of the parameters
//
// Sums that earlier passes have left (set_requires_all_reduce) are where the first half adds to, and are read there.
#include <span>
#include <vector>

#include "runtime/op/unit.h"

namespace sherd::nn {

class OwnedGradients {
 public:
  /// `owned` says what of its shards this rank owns (PlacedUnit::owned).
  explicit OwnedGradients(const UnitLayout& owned);

  struct Member {
    int piece = 0;
    Tensor shard{};                 ///< dense: where the first half puts it
    bool is_apart = true;           ///< in memory of its own
    AddTo add_to = AddTo::nothing;  ///< what its gradient is added to by the second half
  };
  /// One for each of `pieces`, whose `earlier` sums are undefined, those that replicas have not summed yet, or
  /// gradients. Memory for those that are not added to such a sum; their pieces are stored there.
  std::vector<Member> make_room(std::span<ReducedPiece> pieces, std::span<const Tensor> earlier, Device device) const;
  /// Starts to reduce the members' shards into `gradients`, one dense tensor for each. `in_flight` as of a reduction.
  void reduce(std::span<const Member> members, std::span<const Tensor> gradients, int in_flight) const;

 private:
  const UnitLayout* sums_;   // from the type of grad(), in which sums of earlier passes wait
  const UnitLayout* apart_;  // from the type of the wire
};

}  // namespace sherd::nn
