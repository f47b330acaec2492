#pragma once
// Transitions from and to layouts that list the sizes of shards (Spec::with_rows). The search knows the chunk rule
// only: such splits are gathered before it and made by slices after it, the innermost of a dim at a time.
//
//   {0: dp(1,7)}  --all_gather(dp, dim 0)-->  {}  --slice(dp, dim 1)-->  {1: dp}
#include <cstdint>
#include <vector>

#include "dtensor/transition/transition.h"

namespace sherd {

/// The innermost split of a dim whose shards are listed, and the layout without it.
struct ListedSplit {
  int dim = 0, axis = 0;
  std::vector<std::int64_t> rows;  ///< of this rank's shard by the outer splits, per rank of the axis
  SpecRef split, joined;
};

/// All of them, in the order in which they are gathered: the last one's `joined` lists no sizes.
std::vector<ListedSplit> listed_splits(const Spec* spec);

/// The gather of a split, or the slice that makes it, of a tensor of global `shape`.
TransitionStep gather_step(const ListedSplit& split, const Shape& shape, DType dtype);
TransitionStep slice_step(const ListedSplit& split);

/// Runs a step of gather_step(), below the dist layer: shards are padded to the longest, gathered, and the padding is
/// left out by a copy.
Tensor gather_listed(Tensor x, const TransitionStep& step);

}  // namespace sherd
