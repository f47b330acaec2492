#pragma once
// A collective as steps of a bare group: which addresses are cast, packed, moved, summed. Data alone.
#include <optional>
#include <vector>

#include "runtime/comm/group/bare_group.h"

namespace sherd::comm {

/// The rank that a plan is for, and what its library can do.
struct ComposedRank {
  int rank = 0, size = 1;
  Abilities library{};
  bool orders_sums = true;
};

struct ComposedPlan {
  std::vector<ListMove> before;
  std::vector<BareCall> calls;
  std::vector<RankPiece> sends, receives;
  bool has_exchange = false;  ///< of the pieces above
  std::optional<ExchangeSum> exchange;
  std::vector<ListMove> after;
  std::vector<ListSum> sums;

  /// As work of `queue`.
  void run(BareGroup& bare, const GroupKernels& kernels, Queue& queue) const;
};

/// The plan of a valid call. Takes its memory from `scratch`.
ComposedPlan composed_plan(const Collective& call, const ComposedRank& who, Scratch& scratch);

}  // namespace sherd::comm
