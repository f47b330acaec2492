#pragma once
// The dtypes in which a wrapped module computes and communicates. Its shards, their gradients and the optimizer's state
// keep the dtype that the parameters were made with.
#include <optional>

#include "runtime/tensor/dtype.h"

namespace sherd::nn {

/// Casts happen at the module's boundary and in the collectives, not per op; an inner module's own policy holds inside
/// it. Integers are never cast. Unset: no cast.
struct MixedPrecision {
  /// Of gathered parameters, hence of the all-gather; of gradients before they are reduced; and of the inputs.
  std::optional<DType> param_dtype{};
  /// Gradients are rounded to it before they are summed, and the result once more; sums are accumulated in f32. Unset:
  /// the dtype that the parameter was made with, whatever param_dtype is, as in PyTorch 2.15. Gradients travel in the
  /// narrower of it and their own dtype: f32 for bf16 gradients sends bf16 and loses nothing, bf16 also rounds the sum.
  std::optional<DType> reduce_dtype{};
  /// Of the module's outputs.
  std::optional<DType> output_dtype{};
  /// Cast floating-point inputs to param_dtype.
  bool cast_forward_inputs = true;
};

/// Throws Error unless all dtypes are floating-point.
void check_policy(const MixedPrecision& policy);

}  // namespace sherd::nn
