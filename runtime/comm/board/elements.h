#pragma once
// What collectives do to elements: copies and casts, and the arithmetic of a reduction, which is one pass over the
// inputs of all ranks, in the order of a tree (group/sum_order.h), rounded once.
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/comm/group/reduction.h"
#include "runtime/tensor/dtype.h"

namespace sherd::comm {

/// Launches whose full tensors have this size or more are written past the caches, which saves reading every line
/// before it is overwritten. Two pinned processes, f32 all_gather in place, plain and streaming stores (Emerald Rapids,
/// 2 MB of L2): 1 MB 38 and 48 us, 2 MB 120 and 98, 8 MB 566 and 438, 64 MB 17200 and 9100. What fits a cache is left
/// there.
inline constexpr std::int64_t kStreamBytes = std::int64_t{4} << 20;

/// Writes past the caches. Other threads see it after end_stream().
void stream_bytes(std::byte* to, const std::byte* from, std::size_t bytes);
void end_stream();

/// to[i] = cast(from[i]); the ranges are equal or do not overlap. `streams` writes past the caches: the data is
/// visible to peers after their next meeting with this rank, as ever. Floats round to nearest even. Returns the bytes
/// written: none if they are there.
std::int64_t copy(void* to, DType to_dtype, const void* from, DType from_dtype, std::int64_t count, bool streams);

/// out[i] = round((in_0[i] op in_1[i] op ...) * factor [+ out[i]]) for `count` elements, the ops in the order of the
/// tree over inputs. Floats of 16 bits accumulate in f32, all others in their own type; what `out` holds is added in
/// the wider of that and its own type. A NaN in any input is the maximum and the minimum. `out` may be one of the
/// inputs. Where types differ, all are floats. `streams` writes past the caches. The bits depend neither on it nor on
/// how a range is split into calls.
void reduce(std::span<const std::byte* const> inputs, std::byte* out, std::int64_t count, const Reduction& reduction,
            bool streams);

}  // namespace sherd::comm
