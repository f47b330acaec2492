#pragma once
// How a reduction walks its input: dims reordered to [outer..., reduced..., inner...], where outer and inner are kept.
// With inner == 1 a result is the reduction of a row; else whole rows of `inner` results are combined at a time, which
// is what memory order asks for when the reduced dims are not the fast ones.
#include "runtime/tensor/tensor.h"

namespace sherd::cpu {

struct ReducePlan {
  Shape shape;
  Strides strides;
  std::int64_t outer = 1, count = 1, inner = 1;  ///< elements of the three groups; results are [outer, inner]
};

/// `mask`: bit d set = dim d is reduced. `rows_only` keeps inner at 1.
ReducePlan plan_reduction(const Shape& shape, const Strides& strides, std::uint64_t mask, bool rows_only = false);

}  // namespace sherd::cpu
