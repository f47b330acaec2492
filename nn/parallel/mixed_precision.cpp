#include "nn/parallel/mixed_precision.h"

#include <utility>

namespace sherd::nn {

void check_policy(const MixedPrecision& policy) {
  for (const auto& [what, dtype] :
       {std::pair("param_dtype", policy.param_dtype), std::pair("reduce_dtype", policy.reduce_dtype),
        std::pair("output_dtype", policy.output_dtype)})
    if (dtype && !is_floating(*dtype))
      fail("mp_policy: {} is {}; it must be f64, f32, bf16 or f16", what, name(*dtype));
}

}  // namespace sherd::nn
