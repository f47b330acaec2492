#pragma once
// What the cores could do at most: independent fused multiply-adds on registers, with the widest vectors the CPU has.

#include "runtime/tensor/dtype.h"

namespace sherd::bench {

/// Seconds for 1e9 floating-point operations (a multiply-add is two) on so many threads together: in f32, or in bf16 by
/// dot products of pairs into f32 where the CPU has them. Runs about 20 ms.
double seconds_per_gigaflop(DType dtype, int threads);

}  // namespace sherd::bench
