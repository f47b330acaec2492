#pragma once
// A reduction as its kernel sees it, and which ones there are.
#include "runtime/comm/group/collective.h"

namespace sherd::comm {

struct Reduction {
  ReduceKind kind = ReduceKind::sum;
  double factor = 1.0;      // scale, divided by the number of ranks for avg
  bool accumulate = false;  // add the result to what `out` holds
  DType in, wire, out;      // of the inputs, what inputs and result are rounded to, of the output
};

/// What `size` ranks do to elements of `dtype`, and to those of a part.
Reduction reduction_of(const ReduceOptions& options, int size, DType dtype);
Reduction reduction_of(const ReduceOptions& options, int size, const CollectivePart& part);

/// Throws Error if `options` cannot be honoured exactly: integers have no avg or scale, bool has only max (or)
/// and min (and).
void check_reducible(DType dtype, const ReduceOptions& options);

}  // namespace sherd::comm
