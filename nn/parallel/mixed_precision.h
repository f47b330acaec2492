#pragma once
// The dtypes in which a wrapped module computes and communicates. Its shards and the optimizer's state keep the dtype
// that the parameters were made with; so do gradients, unless they are given another.
#include <functional>
#include <optional>

#include "runtime/tensor/dtype.h"

namespace sherd::nn {

class Parameter;

/// What MixedPrecision says, for one parameter; unset: what the policy says for all.
struct ParameterTypes {
  std::optional<DType> param_dtype{}, reduce_dtype{}, grad_dtype{};
};

/// Casts happen at the module's boundary and in the collectives, not per op; an inner module's own policy holds inside
/// it. Integers are never cast. Unset: no cast.
struct MixedPrecision {
  /// Dtype of gathered parameters, hence of the all-gather; of gradients before they are reduced; and of the inputs.
  std::optional<DType> param_dtype{};
  /// Gradients are rounded to it before they are summed, and the result once more; sums are accumulated in f32. Unset:
  /// grad_dtype, whatever param_dtype is, as in PyTorch 2.15. Gradients travel in the narrower of it and their own
  /// dtype: f32 for bf16 gradients sends bf16 and loses nothing, bf16 also rounds the sum.
  std::optional<DType> reduce_dtype{};
  /// Dtype of the module's outputs.
  std::optional<DType> output_dtype{};
  /// Cast floating-point inputs to param_dtype.
  bool cast_forward_inputs = true;
  /// Dtype of grad(): of the reduced gradient and of its sum over backward passes. Unset: the dtype that the parameter
  /// was made with. Optimizers and clipping take gradients of any floating dtype; state and updates are of the
  /// parameter's.
  std::optional<DType> grad_dtype{};
  /// Other dtypes for some parameters of a unit, such as norms in f32: they are gathered and reduced in the same
  /// launches. Called when the unit is made; the same on all ranks. Inputs are cast to the
  /// policy's param_dtype all the same. Empty: the same for all.
  std::function<ParameterTypes(const Parameter&)> types_of{};
};

/// Throws Error unless all dtypes are floating-point.
void check_policy(const MixedPrecision& policy);
/// What the policy says for that parameter: unset are the dtypes that are the parameter's own. Error naming it, if
/// types_of() gives a dtype that is not floating-point.
ParameterTypes types_for(const MixedPrecision& policy, const Parameter& parameter);

}  // namespace sherd::nn
