#pragma once
// In which types a wrapped module computes and communicates. Its shards, their gradients and the optimizer's state keep
// the type that the parameters were made with.
#include <optional>

#include "runtime/tensor/dtype.h"

namespace sherd::nn {

/// Casts happen at the module's boundary and in the collectives, not per op; an inner module's own policy holds inside
/// it. Integers are never cast. What is unset stays as it is.
struct MixedPrecision {
  /// Of gathered parameters, hence of what moves in a gather, of gradients before they are reduced, and of the inputs.
  std::optional<DType> param_dtype{};
  /// Gradients are rounded to it before they are added up, and the result once more; sums are kept in f32. Unset: that
  /// of the gradients. f32 for bf16 gradients moves bf16 and loses nothing.
  std::optional<DType> reduce_dtype{};
  /// Of what the module returns.
  std::optional<DType> output_dtype{};
  /// Cast floating-point inputs to param_dtype.
  bool cast_forward_inputs = true;
};

/// Throws Error unless all types are floating-point.
void check_policy(const MixedPrecision& policy);

}  // namespace sherd::nn
