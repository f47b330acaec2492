#pragma once
// A power sum over lists that are not in memory together.
#include <span>

#include "runtime/op/core/tensor.h"

namespace sherd {

/// power_sum() of what came `before`, 0-d f64 or undefined for nothing, and of `tensors`, this rank's elements. On the
/// host it has the bits of one call for all, where tensors are cut at multiples of kPowerSumBlock elements; on a device
/// the order of additions is another one.
Tensor power_sum_from(const Tensor& before, std::span<const Tensor> tensors, double p);

}  // namespace sherd
