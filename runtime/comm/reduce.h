#pragma once
// The arithmetic of a reduction: one pass over all ranks' inputs, in rank order, rounded once.
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/comm/process_group.h"

namespace sherd::comm {

struct Reduction {
  ReduceKind kind = ReduceKind::sum;
  double factor = 1.0;      // scale, divided by the number of ranks for avg
  bool accumulate = false;  // add the result to what `out` holds
};

/// Throws Error if `options` cannot be honoured exactly: integers have no avg or scale, bool has only max (or)
/// and min (and).
void check_reducible(DType dtype, const ReduceOptions& options);

/// out[i] = round((in_0[i] op in_1[i] op ...) * factor [+ out[i]]) for `count` elements. Floats of 16 bits accumulate
/// in f32, all others in their own type; a NaN in any input is the maximum and the minimum. `out` may be one
/// of the inputs. The bits do not depend on how a range is cut into calls.
void reduce(DType dtype, std::span<const std::byte* const> inputs, std::byte* out, std::int64_t count,
            const Reduction& reduction);

}  // namespace sherd::comm
