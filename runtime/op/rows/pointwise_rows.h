#pragma once
// What the two files of pointwise rows share.
#include "runtime/op/core/infer.h"

namespace sherd {

/// Functions of one tensor, and their fused derivatives; part of register_pointwise().
void register_pointwise_unary(OpTable& table);

/// What these rows are, and what their derivatives need.
inline constexpr Traits kPointwise{.pointwise = true};
inline constexpr Traits kLinear{.pointwise = true, .linear = true};
inline constexpr Needs kInput{.inputs = 0b1};

/// Broadcasts all inputs; dtypes promote. Input 0 of three is a condition and does not count for the dtype.
inline Metas infer_broadcast(const InferCall& call) {
  const std::size_t first = call.in.size() == 3 ? 1 : 0;
  const TensorMeta& a = required(call, first);
  const TensorMeta& b = required(call, first + 1);
  const DType dtype = a.dtype == b.dtype ? a.dtype : promote(a.dtype, b.dtype);
  if (first == 0 && a.shape == b.shape) return one_output(a.shape, dtype);
  Shape shape = broadcast(a.shape, b.shape);
  if (first == 1) shape = broadcast(required(call, 0).shape, shape);
  return one_output(shape, dtype);
}

/// infer of derivatives: the gradient and the tensor it belongs to have equal shapes and dtypes; the result is like
/// input 0.
inline Metas infer_backward(const InferCall& call) {
  const TensorMeta& grad = required(call, 0);
  for (std::size_t i = 1; i < call.in.size(); ++i) {
    const TensorMeta& t = required(call, i);
    check(t.shape == grad.shape && t.dtype == grad.dtype, "{}: grad is {}, input {} is {}", call.op.name, grad, i, t);
  }
  return one_output(grad.shape, grad.dtype);
}

}  // namespace sherd
