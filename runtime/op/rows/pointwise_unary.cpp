// Pointwise rows of one tensor. Activations have a fused derivative row: one pass over grad and what the tape kept.
#include <numbers>

#include "runtime/op/rows/pointwise_rows.h"
#include "runtime/op/rows/vjp.h"

namespace sherd {

namespace {

// ---- infer ----

Metas infer_number(const InferCall& call) {
  const TensorMeta& x = required(call, 0);
  check(x.dtype != DType::boolean, "{} is not defined for bool; cast to a number first", call.op.name);
  return one_output(x.shape, x.dtype);
}

Metas infer_float(const InferCall& call) {
  const TensorMeta& x = required(call, 0);
  return one_output(x.shape, is_floating(x.dtype) ? x.dtype : DType::f32);
}

Metas infer_logical_not(const InferCall& call) { return one_output(required(call, 0).shape, DType::boolean); }

// ---- vjp: gradient of a scalar function of one tensor, from its input or its result ----

void neg_vjp(VjpCall& c) { c.give(0, op::neg, {}, c.grad()); }
void abs_vjp(VjpCall& c) { c.give(0, op::mul, {}, c.grad(), call(op::sign, {}, c.in(0))); }
void square_vjp(VjpCall& c) { c.give(0, op::mul, {}, mul(c.grad(), 2), c.in(0)); }
void exp_vjp(VjpCall& c) { c.give(0, op::mul, {}, c.grad(), c.out()); }
void log_vjp(VjpCall& c) { c.give(0, op::div, {}, c.grad(), c.in(0)); }
void sqrt_vjp(VjpCall& c) { c.give(0, op::div, {}, mul(c.grad(), 0.5), c.out()); }
void rsqrt_vjp(VjpCall& c) { c.give(0, op::mul, {}, mul(c.grad(), -0.5), mul(c.out(), square(c.out()))); }
void reciprocal_vjp(VjpCall& c) { c.give(0, op::mul, {}, neg(c.grad()), square(c.out())); }
void sin_vjp(VjpCall& c) { c.give(0, op::mul, {}, c.grad(), cos(c.in(0))); }
void cos_vjp(VjpCall& c) { c.give(0, op::mul, {}, neg(c.grad()), sin(c.in(0))); }
void erf_vjp(VjpCall& c) {
  c.give(0, op::mul, {}, mul(c.grad(), 2 * std::numbers::inv_sqrtpi), exp(neg(square(c.in(0)))));
}
void relu_vjp(VjpCall& c) { c.give(0, op::relu_backward, {}, c.take_grad(), c.out()); }
void sigmoid_vjp(VjpCall& c) { c.give(0, op::sigmoid_backward, {}, c.take_grad(), c.out()); }
void tanh_vjp(VjpCall& c) { c.give(0, op::tanh_backward, {}, c.take_grad(), c.out()); }
void silu_vjp(VjpCall& c) { c.give(0, op::silu_backward, {}, c.take_grad(), c.in(0)); }
void gelu_vjp(VjpCall& c) { c.give(0, op::gelu_backward, {}, c.take_grad(), c.in(0)); }
void gelu_tanh_vjp(VjpCall& c) { c.give(0, op::gelu_tanh_backward, {}, c.take_grad(), c.in(0)); }

constexpr Needs kResult{.outputs = 0b1};

constexpr Op unary(std::string_view name, std::string_view doc, Infer infer, Needs needs, Vjp vjp,
                   Algebra algebra = Algebra::none, Traits traits = kPointwise) {
  return {.name = name,
          .doc = doc,
          .infer = infer,
          .dims = "...->...",
          .traits = traits,
          .algebra = algebra,
          .needs = needs,
          .vjp = vjp};
}

// Rows that are cheap to recompute in backward.
constexpr Op activation(std::string_view name, std::string_view doc, Vjp vjp) {
  return {.name = name,
          .doc = doc,
          .infer = infer_float,
          .dims = "...->...",
          .traits = kPointwise,
          .needs = kInput,
          .vjp = vjp,
          .recompute = true};
}

// Linear in the gradient, which comes first.
constexpr Op derivative(std::string_view name, std::string_view doc) {
  return {.name = name,
          .doc = doc,
          .infer = infer_backward,
          .dims = "...,...->...",
          .traits = kPointwise,
          .algebra = Algebra::linear,
          .no_gradient = "derivative row; there is no double backward"};
}

constexpr Op without_gradient(std::string_view name, std::string_view doc, Infer infer, Algebra algebra,
                              std::string_view why) {
  return {.name = name,
          .doc = doc,
          .infer = infer,
          .dims = "...->...",
          .traits = kPointwise,
          .algebra = algebra,
          .no_gradient = why};
}

}  // namespace

// Integers become f32 where the function is not closed over them.
constinit const Op op::neg =
    unary("neg", "x -> -x.", infer_number, {}, neg_vjp, Algebra::linear | Algebra::decreasing, kLinear);
constinit const Op op::abs = unary("abs", "x -> |x|.", infer_number, kInput, abs_vjp);
constinit const Op op::square = unary("square", "x -> x^2.", infer_like_first, kInput, square_vjp);
constinit const Op op::exp = unary("exp", "x -> e^x.", infer_float, kResult, exp_vjp, Algebra::increasing);
constinit const Op op::log = unary("log", "x -> natural logarithm.", infer_float, kInput, log_vjp);
constinit const Op op::sqrt = unary("sqrt", "x -> square root.", infer_float, kResult, sqrt_vjp);
constinit const Op op::rsqrt = unary("rsqrt", "x -> 1 / sqrt(x).", infer_float, kResult, rsqrt_vjp);
constinit const Op op::reciprocal = unary("reciprocal", "x -> 1 / x.", infer_float, kResult, reciprocal_vjp);
constinit const Op op::sin = unary("sin", "x -> sine.", infer_float, kInput, sin_vjp);
constinit const Op op::cos = unary("cos", "x -> cosine.", infer_float, kInput, cos_vjp);
constinit const Op op::tanh =
    unary("tanh", "x -> hyperbolic tangent.", infer_float, kResult, tanh_vjp, Algebra::increasing);
constinit const Op op::erf = unary("erf", "x -> error function.", infer_float, kInput, erf_vjp, Algebra::increasing);
constinit const Op op::sigmoid =
    unary("sigmoid", "x -> 1 / (1 + e^-x).", infer_float, kResult, sigmoid_vjp, Algebra::increasing);
constinit const Op op::relu = unary("relu", "x -> max(x, 0).", infer_number, kResult, relu_vjp, Algebra::increasing);
constinit const Op op::silu = activation("silu", "x -> x sigmoid(x).", silu_vjp);
constinit const Op op::gelu = activation("gelu", "x -> x Phi(x), with erf.", gelu_vjp);
constinit const Op op::gelu_tanh =
    activation("gelu_tanh", "x -> x Phi(x), Phi by its tanh approximation.", gelu_tanh_vjp);

constinit const Op op::relu_backward = derivative("relu_backward", "grad, relu(x) -> gradient of x.");
constinit const Op op::sigmoid_backward = derivative("sigmoid_backward", "grad, sigmoid(x) -> gradient of x.");
constinit const Op op::tanh_backward = derivative("tanh_backward", "grad, tanh(x) -> gradient of x.");
constinit const Op op::silu_backward = derivative("silu_backward", "grad, x -> gradient of x.");
constinit const Op op::gelu_backward = derivative("gelu_backward", "grad, x -> gradient of x.");
constinit const Op op::gelu_tanh_backward = derivative("gelu_tanh_backward", "grad, x -> gradient of x.");

constinit const Op op::sign = without_gradient("sign", "x -> -1, 0 or 1; NaN stays.", infer_number, Algebra::increasing,
                                               "zero wherever it exists");
constinit const Op op::logical_not =
    without_gradient("logical_not", "x -> bool: x is zero.", infer_logical_not, Algebra::decreasing, "bool result");

void register_pointwise_unary(OpTable& table) {
  table.add({&op::neg, &op::abs, &op::square, &op::exp, &op::log, &op::sqrt, &op::rsqrt, &op::reciprocal, &op::sin,
             &op::cos, &op::tanh, &op::erf, &op::sigmoid, &op::relu, &op::silu, &op::gelu, &op::gelu_tanh});
  table.add({&op::relu_backward, &op::sigmoid_backward, &op::tanh_backward, &op::silu_backward, &op::gelu_backward,
             &op::gelu_tanh_backward});
  table.add({&op::sign, &op::logical_not});
}

Tensor neg(Tensor x) { return call(op::neg, {}, std::move(x)); }
Tensor abs(Tensor x) { return call(op::abs, {}, std::move(x)); }
Tensor square(Tensor x) { return call(op::square, {}, std::move(x)); }
Tensor exp(Tensor x) { return call(op::exp, {}, std::move(x)); }
Tensor log(Tensor x) { return call(op::log, {}, std::move(x)); }
Tensor sqrt(Tensor x) { return call(op::sqrt, {}, std::move(x)); }
Tensor rsqrt(Tensor x) { return call(op::rsqrt, {}, std::move(x)); }
Tensor reciprocal(Tensor x) { return call(op::reciprocal, {}, std::move(x)); }
Tensor sin(Tensor x) { return call(op::sin, {}, std::move(x)); }
Tensor cos(Tensor x) { return call(op::cos, {}, std::move(x)); }
Tensor tanh(Tensor x) { return call(op::tanh, {}, std::move(x)); }
Tensor erf(Tensor x) { return call(op::erf, {}, std::move(x)); }
Tensor sigmoid(Tensor x) { return call(op::sigmoid, {}, std::move(x)); }
Tensor relu(Tensor x) { return call(op::relu, {}, std::move(x)); }
Tensor silu(Tensor x) { return call(op::silu, {}, std::move(x)); }
Tensor logical_not(Tensor x) { return call(op::logical_not, {}, std::move(x)); }

Tensor gelu(Tensor x) { return call(op::gelu, {}, std::move(x)); }
Tensor gelu_tanh(Tensor x) { return call(op::gelu_tanh, {}, std::move(x)); }

}  // namespace sherd
