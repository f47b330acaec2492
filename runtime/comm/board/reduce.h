#pragma once
// The arithmetic of a reduction: one pass over all ranks' inputs, in rank order, rounded once.
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/comm/group/reduce_kind.h"
#include "runtime/tensor/dtype.h"

namespace sherd::comm {

struct Reduction {
  ReduceKind kind = ReduceKind::sum;
  double factor = 1.0;      // scale, divided by the number of ranks for avg
  bool accumulate = false;  // add the result to what `out` holds
  DType in, wire, out;      // of the inputs, what inputs and result are rounded to, of the output
};

/// Throws Error if `options` cannot be honoured exactly: integers have no avg or scale, bool has only max (or)
/// and min (and).
void check_reducible(DType dtype, const ReduceOptions& options);

/// out[i] = round((in_0[i] op in_1[i] op ...) * factor [+ out[i]]) for `count` elements. Floats of 16 bits accumulate
/// in f32, all others in their own type; what `out` holds is added in the wider of that and its own type. A NaN in any
/// input is the maximum and the minimum. `out` may be one of the inputs. Where types differ, all are floats. `streams`
/// writes past the caches. The bits depend neither on it nor on how a range is split into calls.
void reduce(std::span<const std::byte* const> inputs, std::byte* out, std::int64_t count, const Reduction& reduction,
            bool streams);

}  // namespace sherd::comm
