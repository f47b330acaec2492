#pragma once
// What a core could do at most: independent fused multiply-adds on registers, with the widest vectors the CPU has.
#include <cstdint>

#include "runtime/tensor/dtype.h"

namespace sherd::train {

/// Floating-point operations per second of the calling thread (a multiply-add is two): in f32, or in bf16 by dot
/// products of pairs into f32 where the CPU has them. 0 for a CPU without AVX2 and FMA. A million loops take some 3 ms.
double flops_per_second(DType dtype, std::int64_t loops);

}  // namespace sherd::train
