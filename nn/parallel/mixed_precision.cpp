#include "nn/parallel/mixed_precision.h"

#include <string>
#include <utility>

#include "nn/module.h"

namespace sherd::nn {

namespace {

void check_floating(const std::string& of_what, std::string_view what, std::optional<DType> dtype) {
  if (dtype && !is_floating(*dtype))
    fail("mp_policy: {} is {}{}; it must be f64, f32, bf16 or f16", what, name(*dtype), of_what);
}

}  // namespace

void check_policy(const MixedPrecision& policy) {
  for (const auto& [what, dtype] :
       {std::pair("param_dtype", policy.param_dtype), std::pair("reduce_dtype", policy.reduce_dtype),
        std::pair("output_dtype", policy.output_dtype), std::pair("grad_dtype", policy.grad_dtype)})
    check_floating("", what, dtype);
}

ParameterTypes types_for(const MixedPrecision& policy, const Parameter& parameter) {
  ParameterTypes types{policy.param_dtype, policy.reduce_dtype, policy.grad_dtype};
  if (!policy.types_of) return types;
  const ParameterTypes own = policy.types_of(parameter);
  const std::string of_what = fmt::format(" for parameter \"{}\"", parameter.name());
  for (const auto& [what, field] : {std::pair("param_dtype", &ParameterTypes::param_dtype),
                                    std::pair("reduce_dtype", &ParameterTypes::reduce_dtype),
                                    std::pair("grad_dtype", &ParameterTypes::grad_dtype)}) {
    check_floating(of_what, what, own.*field);
    if (own.*field) types.*field = own.*field;
  }
  return types;
}

}  // namespace sherd::nn
