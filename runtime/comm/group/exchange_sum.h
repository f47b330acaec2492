#pragma once
// Reductions of any group that moves bytes between pairs, in the order of sum_order.h: the same bits as on the host.
//
//   reduce_scatter   [pack, cast to the wire]   every rank sends each owner its part   one sum of all ranks' parts
//   all_reduce       the same for even parts, whose sums then go to all ranks; small ones go to all ranks at once
//
// A rank sends and receives as many bytes as with a ring, and takes temporary memory of (ranks - 1) parts of its own.
#include <span>
#include <vector>

#include "runtime/comm/group/group_kernels.h"
#include "runtime/comm/group/scratch.h"

namespace sherd::comm {

/// Bytes that go to a rank, or come from one.
struct RankPiece {
  int peer = 0;
  std::byte* address = nullptr;
  std::int64_t bytes = 0;
};

/// Moves bytes between pairs of ranks.
class PieceMover {
 public:
  virtual ~PieceMover() = default;
  /// Sends and receives all of these at once, as work of `queue`. Every rank calls it, also one that has none; what
  /// rank a sends to b is what b receives from a, in the order of their lists. No piece is empty.
  virtual void exchange(std::span<const RankPiece> sends, std::span<const RankPiece> receives, Queue& queue) = 0;
};

/// The steps of a reduction on one rank, in their order.
struct ExchangeSum {
  std::vector<ListMove> packs;
  std::vector<RankPiece> sends, receives;
  std::vector<ListMove> widened;  ///< f64 inputs that have travelled in another type are summed in f64
  std::vector<ListSum> sums;
  std::vector<RankPiece> sum_sends, sum_receives;
  bool has_exchange = false, has_second = false;  ///< alike on all ranks, whatever they have to move

  /// The call is a reduce_scatter or an all_reduce of `size` ranks, with valid parts. Takes its memory from `scratch`.
  ExchangeSum(const Collective& call, int rank, int size, Scratch& scratch);
  /// As work of `queue`.
  void run(PieceMover& mover, const GroupKernels& kernels, Queue& queue) const;
};

}  // namespace sherd::comm
