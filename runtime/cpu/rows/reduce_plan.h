#pragma once
// How a reduction walks its input: dims reordered to [outer..., reduced..., inner...], where outer and inner are kept.
// With inner == 1 a result is the reduction of a row; else whole rows of `inner` results are combined at a time, which
// is what memory order asks for when the reduced dims are not the fast ones.
#include "runtime/op/core/op.h"

namespace sherd::cpu {

/// Elements per piece of work: a split of the reduced dims has as many, a parallel chunk at least.
inline constexpr std::int64_t kReduceGrain = 1 << 15;

struct ReducePlan {
  Shape shape;
  Strides strides;
  std::int64_t outer = 1, count = 1, inner = 1;  ///< elements of the three groups; results are [outer, inner]
  std::int64_t width = 1, tiles = 1;             ///< a unit of work has `width` results; `tiles` of them cover inner
  std::int64_t rows_per_split = 1, splits = 1;   ///< where results are few, `count` is split and combined in order
  /// Bytes of the splits' partial results, 8 per result.
  std::int64_t partial_bytes() const { return splits == 1 ? 0 : outer * tiles * splits * width * 8; }
};

/// `mask`: bit d set = dim d is reduced. `rows_only` keeps inner at 1.
ReducePlan plan_reduction(const Shape& shape, const Strides& strides, std::uint64_t mask, bool rows_only = false);

/// The dims of `from` that sum_to `to` sums over.
std::uint64_t sum_to_mask(const Shape& from, const Shape& to);

}  // namespace sherd::cpu
