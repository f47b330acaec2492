#pragma once
// Optimizers and clipping call these rows over lists of tensors: one pass over all parameters.
#include <span>

#include "runtime/op/core/tensor.h"
#include "runtime/op/rows/optimizer_attrs.h"

namespace sherd {

// ---- in place on the first lists, see AdamWAttrs and SgdAttrs ----
void adamw_step(std::span<const Tensor> params, std::span<const Tensor> m, std::span<const Tensor> v,
                std::span<const Tensor> grads, const Tensor& lr, const Tensor& step, const Tensor& scale,
                const AdamWAttrs& options);
void sgd_step(std::span<const Tensor> params, std::span<const Tensor> momenta, std::span<const Tensor> grads,
              const Tensor& lr, const Tensor& scale, const SgdAttrs& options);
/// Adds 1 to each of these 0-d tensors, in place, or nothing if the 0-d `scale`, by which gradients are multiplied, is
/// not finite: then the rows above change nothing either.
void count_step(std::span<const Tensor> counts, const Tensor& scale);
/// 0-d f64: sum over all elements of all tensors of |x|^p (max |x| for p = infinity), each rank's own elements only.
Tensor power_sum(std::span<const Tensor> tensors, double p);
/// power_sum() of what came `before`, 0-d f64 or undefined for nothing, and of `tensors`, this rank's elements. On the
/// host it has the bits of one call for all, where tensors are cut at multiples of kPowerSumBlock elements; on a device
/// the order of additions is another one.
Tensor power_sum_from(const Tensor& before, std::span<const Tensor> tensors, double p);

}  // namespace sherd
