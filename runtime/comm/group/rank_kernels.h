#pragma once
// The two kernels that collectives need of an instruction-set level: cpu/ implements them once per level.
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/tensor/dtype.h"

namespace sherd::comm {

struct Reduction;

struct RankKernels {
  /// comm::reduce (board/elements.h), at least one element.
  void (*reduce_ranks)(std::span<const std::byte* const> inputs, std::byte* out, std::int64_t count,
                       const Reduction& reduction, bool streams);
  /// to[i] = cast(from[i]) between floats, dense and apart.
  void (*cast_floats)(DType to_dtype, void* to, DType from_dtype, const void* from, std::int64_t count);
};

/// Kernels of this process's instruction-set level. Throws Error, each time, if it has none.
const RankKernels& rank_kernels();

}  // namespace sherd::comm
