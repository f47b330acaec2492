#pragma once
// The inner step that softmax, cross entropy and attention share, and the registration of the softmax kernels.
#include "runtime/cpu/math.h"
#include "runtime/cpu/simd.h"
#include "runtime/op/core/op.h"

namespace sherd::cpu {

/// y[j] = exp(x[j] - shift); x and y may be the same row.
template <class A>
void exp_row(const A* x, A shift, std::int64_t n, A* y) {
  for (std::int64_t j = 0; j < n; ++j) y[j] = Math::exp(x[j] - shift);
}

void register_softmax(OpTable& table);

}  // namespace sherd::cpu
