// Pointwise rows of one tensor. Activations have a fused derivative row: one pass over grad and what the tape kept.
#include <numbers>

#include "runtime/op/pointwise_rows.h"
#include "runtime/op/vjp.h"

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

const Op& mul_row() {
  static const Op& op = find_op("mul");
  return op;
}

void neg_vjp(VjpCall& c) {
  static const Op& op = find_op("neg");
  c.give(0, op, {}, c.grad());
}
void abs_vjp(VjpCall& c) {
  static const Op& sign = find_op("sign");
  c.give(0, mul_row(), {}, c.grad(), call(sign, {}, c.in(0)));
}
void square_vjp(VjpCall& c) { c.give(0, mul_row(), {}, mul(c.grad(), 2), c.in(0)); }
void exp_vjp(VjpCall& c) { c.give(0, mul_row(), {}, c.grad(), c.out()); }
void log_vjp(VjpCall& c) {
  static const Op& op = find_op("div");
  c.give(0, op, {}, c.grad(), c.in(0));
}
void sqrt_vjp(VjpCall& c) {
  static const Op& op = find_op("div");
  c.give(0, op, {}, mul(c.grad(), 0.5), c.out());
}
void rsqrt_vjp(VjpCall& c) { c.give(0, mul_row(), {}, mul(c.grad(), -0.5), mul(c.out(), square(c.out()))); }
void reciprocal_vjp(VjpCall& c) { c.give(0, mul_row(), {}, neg(c.grad()), square(c.out())); }
void sin_vjp(VjpCall& c) { c.give(0, mul_row(), {}, c.grad(), cos(c.in(0))); }
void cos_vjp(VjpCall& c) { c.give(0, mul_row(), {}, neg(c.grad()), sin(c.in(0))); }
void erf_vjp(VjpCall& c) {
  c.give(0, mul_row(), {}, mul(c.grad(), 2 * std::numbers::inv_sqrtpi), exp(neg(square(c.in(0)))));
}
void relu_vjp(VjpCall& c) {
  static const Op& op = find_op("relu_backward");
  c.give(0, op, {}, c.take_grad(), c.out());
}
void sigmoid_vjp(VjpCall& c) {
  static const Op& op = find_op("sigmoid_backward");
  c.give(0, op, {}, c.take_grad(), c.out());
}
void tanh_vjp(VjpCall& c) {
  static const Op& op = find_op("tanh_backward");
  c.give(0, op, {}, c.take_grad(), c.out());
}
void silu_vjp(VjpCall& c) {
  static const Op& op = find_op("silu_backward");
  c.give(0, op, {}, c.take_grad(), c.in(0));
}
void gelu_vjp(VjpCall& c) {
  static const Op& op = find_op("gelu_backward");
  c.give(0, op, {}, c.take_grad(), c.in(0));
}
void gelu_tanh_vjp(VjpCall& c) {
  static const Op& op = find_op("gelu_tanh_backward");
  c.give(0, op, {}, c.take_grad(), c.in(0));
}

struct Row {
  std::string_view name, doc;
  Infer infer;
  Needs needs;
  Vjp vjp;
  Recompute recompute = nullptr;
};
constexpr Needs kInput{.inputs = 0b1};
constexpr Needs kResult{.outputs = 0b1};

// Integers become f32 where the function is not closed over them.
constexpr Row kRows[] = {
    {"neg", "x -> -x.", infer_number, {}, neg_vjp},
    {"abs", "x -> |x|.", infer_number, kInput, abs_vjp},
    {"square", "x -> x^2.", infer_like_first, kInput, square_vjp},
    {"exp", "x -> e^x.", infer_float, kResult, exp_vjp},
    {"log", "x -> natural logarithm.", infer_float, kInput, log_vjp},
    {"sqrt", "x -> square root.", infer_float, kResult, sqrt_vjp},
    {"rsqrt", "x -> 1 / sqrt(x).", infer_float, kResult, rsqrt_vjp},
    {"reciprocal", "x -> 1 / x.", infer_float, kResult, reciprocal_vjp},
    {"sin", "x -> sine.", infer_float, kInput, sin_vjp},
    {"cos", "x -> cosine.", infer_float, kInput, cos_vjp},
    {"tanh", "x -> hyperbolic tangent.", infer_float, kResult, tanh_vjp},
    {"erf", "x -> error function.", infer_float, kInput, erf_vjp},
    {"sigmoid", "x -> 1 / (1 + e^-x).", infer_float, kResult, sigmoid_vjp},
    {"relu", "x -> max(x, 0).", infer_number, kResult, relu_vjp},
    {"silu", "x -> x sigmoid(x).", infer_float, kInput, silu_vjp, run_again},
    {"gelu", "x -> x Phi(x), with erf.", infer_float, kInput, gelu_vjp, run_again},
    {"gelu_tanh", "x -> x Phi(x), Phi by its tanh approximation.", infer_float, kInput, gelu_tanh_vjp, run_again},
};

constexpr std::pair<std::string_view, std::string_view> kBackwardRows[] = {
    {"relu_backward", "grad, relu(x) -> gradient of x."}, {"sigmoid_backward", "grad, sigmoid(x) -> gradient of x."},
    {"tanh_backward", "grad, tanh(x) -> gradient of x."}, {"silu_backward", "grad, x -> gradient of x."},
    {"gelu_backward", "grad, x -> gradient of x."},       {"gelu_tanh_backward", "grad, x -> gradient of x."},
};

}  // namespace

void register_pointwise_unary(OpTable& table) {
  for (const Row& row : kRows)
    table.add({.name = row.name,
               .doc = row.doc,
               .infer = row.infer,
               .dims = "...->...",
               .traits = {.pointwise = true, .linear = row.name == "neg"},
               .needs = row.needs,
               .vjp = row.vjp,
               .recompute = row.recompute});
  for (const auto& [name, doc] : kBackwardRows)
    table.add({.name = name,
               .doc = doc,
               .infer = infer_backward,
               .dims = "...,...->...",
               .traits = {.pointwise = true},
               .no_gradient = "derivative row; there is no double backward"});
  table.add({.name = "sign",
             .doc = "x -> -1, 0 or 1; NaN stays.",
             .infer = infer_number,
             .dims = "...->...",
             .traits = {.pointwise = true},
             .no_gradient = "zero wherever it exists"});
  table.add({.name = "logical_not",
             .doc = "x -> bool: x is zero.",
             .infer = infer_logical_not,
             .dims = "...->...",
             .traits = {.pointwise = true},
             .no_gradient = "bool result"});
}

Tensor neg(Tensor x) {
  static const Op& op = find_op("neg");
  return call(op, {}, std::move(x));
}
Tensor abs(Tensor x) {
  static const Op& op = find_op("abs");
  return call(op, {}, std::move(x));
}
Tensor square(Tensor x) {
  static const Op& op = find_op("square");
  return call(op, {}, std::move(x));
}
Tensor exp(Tensor x) {
  static const Op& op = find_op("exp");
  return call(op, {}, std::move(x));
}
Tensor log(Tensor x) {
  static const Op& op = find_op("log");
  return call(op, {}, std::move(x));
}
Tensor sqrt(Tensor x) {
  static const Op& op = find_op("sqrt");
  return call(op, {}, std::move(x));
}
Tensor rsqrt(Tensor x) {
  static const Op& op = find_op("rsqrt");
  return call(op, {}, std::move(x));
}
Tensor reciprocal(Tensor x) {
  static const Op& op = find_op("reciprocal");
  return call(op, {}, std::move(x));
}
Tensor sin(Tensor x) {
  static const Op& op = find_op("sin");
  return call(op, {}, std::move(x));
}
Tensor cos(Tensor x) {
  static const Op& op = find_op("cos");
  return call(op, {}, std::move(x));
}
Tensor tanh(Tensor x) {
  static const Op& op = find_op("tanh");
  return call(op, {}, std::move(x));
}
Tensor erf(Tensor x) {
  static const Op& op = find_op("erf");
  return call(op, {}, std::move(x));
}
Tensor sigmoid(Tensor x) {
  static const Op& op = find_op("sigmoid");
  return call(op, {}, std::move(x));
}
Tensor relu(Tensor x) {
  static const Op& op = find_op("relu");
  return call(op, {}, std::move(x));
}
Tensor silu(Tensor x) {
  static const Op& op = find_op("silu");
  return call(op, {}, std::move(x));
}
Tensor logical_not(Tensor x) {
  static const Op& op = find_op("logical_not");
  return call(op, {}, std::move(x));
}

Tensor gelu(Tensor x, GeluKind kind) {
  static const Op& exact = find_op("gelu");
  static const Op& approximate = find_op("gelu_tanh");
  return call(kind == GeluKind::erf ? exact : approximate, {}, std::move(x));
}

}  // namespace sherd
