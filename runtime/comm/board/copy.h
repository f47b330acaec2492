#pragma once
// Moving elements into a tensor of a collective.
#include <cstddef>
#include <cstdint>

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

}  // namespace sherd::comm
