#pragma once
// What the cores could do at most, together.
#include "runtime/tensor/dtype.h"

namespace sherd::bench {

/// Seconds for 1e9 floating-point operations, as train::flops_per_second() counts them, on so many threads together.
/// Error for a CPU without AVX2 and FMA. Runs about 20 ms.
double seconds_per_gigaflop(DType dtype, int threads);

}  // namespace sherd::bench
