#pragma once
// The derivative of a function of tensors against central differences in f64: the oracle of every vjp.
#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <vector>

#include "runtime/op/core/tensor.h"

namespace sherd::testing {

using TensorFunction = std::function<Tensor(std::span<const Tensor>)>;

/// Gradients of sum(cotangent * fn(inputs)) for every input, undefined for those that get none.
std::vector<Tensor> gradients(const TensorFunction& fn, std::span<const Tensor> inputs, const Tensor& cotangent);

struct GradCheckOptions {
  double step = 1e-5;
  double tolerance = 1e-6;   ///< relative to 1 + |difference quotient|
  bool along_lines = false;  ///< one random direction per input instead of every element: for large inputs
};

/// Checks the gradient of fn at `inputs` for each f64 input; others are constants. The cotangent is drawn at random,
/// so errors in different outputs do not cancel.
::testing::AssertionResult grad_check(const TensorFunction& fn, std::span<const Tensor> inputs,
                                      const GradCheckOptions& options = {});

}  // namespace sherd::testing
