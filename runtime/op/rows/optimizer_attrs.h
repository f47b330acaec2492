#pragma once
// Attributes of the optimizers' rows.
#include <cstdint>

#include "runtime/op/attrs/attr_kind.h"

namespace sherd {

/// adamw over lists: inputs are n parameters, n first moments, n second moments, n gradients, then the 0-d f32
/// tensors lr, step (f32, counted from 1) and scale (gradients are multiplied by it; clipping).
struct AdamWAttrs {
  int count = 0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  static constexpr AttrField fields[] = {attr<&AdamWAttrs::count>("count"), attr<&AdamWAttrs::beta1>("beta1"),
                                         attr<&AdamWAttrs::beta2>("beta2"), attr<&AdamWAttrs::eps>("eps"),
                                         attr<&AdamWAttrs::weight_decay>("weight_decay")};
};
/// sgd over lists: n parameters, n momentum buffers (0 when momentum == 0), n gradients, lr, scale.
struct SgdAttrs {
  int count = 0;
  double momentum = 0, weight_decay = 0;
  bool nesterov = false;
  static constexpr AttrField fields[] = {attr<&SgdAttrs::count>("count"), attr<&SgdAttrs::momentum>("momentum"),
                                         attr<&SgdAttrs::weight_decay>("weight_decay"),
                                         attr<&SgdAttrs::nesterov>("nesterov")};
};
/// count_step over a list: n 0-d counts, each with bytes of its own, then the 0-d gradient scale.
struct CountStepAttrs {
  int count = 0;
  static constexpr AttrField fields[] = {attr<&CountStepAttrs::count>("count")};
};
/// Elements of one partial sum of power_sum; partials combine in index order.
inline constexpr std::int64_t kPowerSumBlock = 8192;
/// Words of exact_power_sum: digits of 32 bits that hold any double, then counts of infinities and of NaNs.
inline constexpr std::int64_t kExactWords = 69;
struct PowerSumAttrs {  ///< sum of |x|^p over a list; p = infinity takes the maximum
  double p = 2;
  static constexpr AttrField fields[] = {attr<&PowerSumAttrs::p>("p")};
};

}  // namespace sherd
