#pragma once
// What a reduction computes: parts added one after another, each sum rounded to the type as a ring does, in an order
// that is drawn for each stretch of elements. NaN loses in max and min.
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/cuda/nccl/nccl_types.h"

namespace sherd::cuda::nccl::fake {

/// False of types that are moved only.
bool is_reduced(DataType type);

/// out[i] = op over the parts of part[i], for i < count, which stand at first + i of all that is reduced: the order
/// that `seed` draws depends on the place, not on who computes it.
void reduce_parts(DataType type, std::uint32_t op, std::span<const std::byte* const> parts, std::byte* out,
                  std::size_t count, std::size_t first, std::uint64_t seed);
/// x[i] *= *factor, a value of the same type.
void multiply(DataType type, std::byte* x, std::size_t count, const std::byte* factor);

}  // namespace sherd::cuda::nccl::fake
