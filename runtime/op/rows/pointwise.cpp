// Pointwise rows of several tensors, with constants, and cast. Binary rows broadcast and promote; their vjps sum over
// broadcast dims and cast back (give_back).
#include <cmath>

#include "runtime/op/rows/pointwise_attrs.h"
#include "runtime/op/rows/pointwise_rows.h"
#include "runtime/op/rows/vjp.h"

namespace sherd {

namespace {

// ---- infer ----

Metas infer_quotient(const InferCall& call) {
  Metas metas = infer_broadcast(call);
  if (!is_floating(metas[0].dtype)) metas[0].dtype = DType::f32;
  return metas;
}

Metas infer_difference(const InferCall& call) {
  Metas metas = infer_broadcast(call);
  check(metas[0].dtype != DType::boolean, "sub is not defined for bool; use not_equal, or cast to a number");
  return metas;
}

Metas infer_comparison(const InferCall& call) {
  Metas metas = infer_broadcast(call);
  metas[0].dtype = DType::boolean;
  return metas;
}

Metas infer_where(const InferCall& call) {
  check(required(call, 0).dtype == DType::boolean, "where needs a bool condition, got {}; use not_equal(x, 0)",
        call.in[0]);
  return infer_broadcast(call);
}

Metas infer_constant(const InferCall& call) {
  const TensorMeta& x = required(call, 0);
  const double value = call.attrs.as<ScalarAttrs>().value;
  check(is_floating(x.dtype) || (x.dtype != DType::boolean && value == std::floor(value)),
        "{} of {} and {}: an integer tensor needs an integral constant, and bool none; cast the tensor first",
        call.op.name, x, value);
  return one_output(x.shape, x.dtype);
}

Metas infer_pow(const InferCall& call) {
  const double exponent = call.attrs.as<ScalarAttrs>().value;
  check(is_floating(required(call, 0).dtype) || exponent >= 0,
        "pow of {} and {}: integers have no negative powers; cast the tensor to a float first", call.in[0], exponent);
  return infer_constant(call);
}

Metas infer_clamp(const InferCall& call) {
  const auto& attrs = call.attrs.as<ClampAttrs>();
  const TensorMeta& x = required(call, 0);
  check(attrs.low <= attrs.high, "clamp between {} and {}: the low end is above the high end", attrs.low, attrs.high);
  check(x.dtype != DType::boolean, "clamp is not defined for bool");
  return one_output(x.shape, x.dtype);
}

Metas infer_cast(const InferCall& call) {
  return one_output(required(call, 0).shape, call.attrs.as<CastAttrs>().dtype);
}

// ---- vjp ----

void add_vjp(VjpCall& c) {
  give_back(c, 0, c.grad());
  give_back(c, 1, c.grad());
}

void sub_vjp(VjpCall& c) {
  give_back(c, 0, c.grad());
  give_pointwise(c, 1, op::neg, {}, c.grad());
}

void mul_vjp(VjpCall& c) {
  if (c.wants(0)) give_pointwise(c, 0, op::mul, {}, c.grad(), c.in(1));
  if (c.wants(1)) give_pointwise(c, 1, op::mul, {}, c.grad(), c.in(0));
}

void div_vjp(VjpCall& c) {
  if (c.wants(0)) give_pointwise(c, 0, op::div, {}, c.grad(), c.in(1));
  if (c.wants(1)) give_pointwise(c, 1, op::div, {}, neg(mul(c.grad(), c.out())), c.in(1));
}

// The gradient goes to the larger (smaller) input; equal inputs share it.
void extremum_vjp(VjpCall& c, Tensor first_wins) {
  const Tensor tie = equal(c.in(0), c.in(1));
  const Tensor half = mul(c.grad(), 0.5);
  const Tensor zero = full({}, 0, half.dtype());
  if (c.wants(0)) give_pointwise(c, 0, op::where, {}, tie, half, where(first_wins, c.grad(), zero));
  if (c.wants(1)) give_pointwise(c, 1, op::where, {}, tie, half, where(first_wins, zero, c.grad()));
}
void maximum_vjp(VjpCall& c) { extremum_vjp(c, greater(c.in(0), c.in(1))); }
void minimum_vjp(VjpCall& c) { extremum_vjp(c, less(c.in(0), c.in(1))); }

void where_vjp(VjpCall& c) {
  const Tensor zero = full({}, 0, c.out_meta().dtype);
  if (c.wants(1)) give_pointwise(c, 1, op::where, {}, c.in(0), c.grad(), zero);
  if (c.wants(2)) give_pointwise(c, 2, op::where, {}, c.in(0), zero, c.grad());
}

void swiglu_vjp(VjpCall& c) {
  Tensor inputs[] = {c.grad(), c.in(0), c.in(1)};
  for (Tensor& t : inputs) t = expand(cast(std::move(t), c.out_meta().dtype), c.out_meta().shape);
  Tensors gradients = call_op(op::swiglu_backward, inputs, {});
  give_back(c, 0, std::move(gradients[0]));
  give_back(c, 1, std::move(gradients[1]));
}

Metas infer_swiglu_backward(const InferCall& call) {
  Metas metas = infer_backward(call);
  metas.push_back(metas[0]);
  return metas;
}

void add_scalar_vjp(VjpCall& c) { c.give(0, c.grad()); }

void mul_scalar_vjp(VjpCall& c) { c.give(0, op::mul_scalar, c.attrs, c.grad()); }

void pow_scalar_vjp(VjpCall& c) {
  const double n = c.attrs.as<ScalarAttrs>().value;
  if (n == 0) {  // zeros laid out like the gradient; also at x = 0, where x^-1 is infinite
    const Tensor grad = c.grad();
    return c.give(0, where(less(grad, grad), grad, full({}, 0, grad.dtype(), grad.device())));
  }
  c.give(0, op::mul, {}, mul(c.grad(), n), pow(c.in(0), n - 1));
}

void clamp_vjp(VjpCall& c) { c.give(0, op::clamp_backward, c.attrs, c.grad(), c.in(0)); }

void cast_vjp(VjpCall& c) { c.give(0, op::cast, CastAttrs{c.in_dtype(0)}, c.grad()); }

constexpr std::string_view kBackward = "derivative row; there is no double backward";
constexpr std::string_view kBinary = "...,...->...";
constexpr std::string_view kTernary = "...,...,...->...";
constexpr std::string_view kUnary = "...->...";

constexpr Needs kBoth{.inputs = 0b11};

// The doc lines of rows that broadcast and promote do not say so each time.
constexpr Op binary(std::string_view name, std::string_view doc, Infer infer, Algebra algebra, Needs needs, Vjp vjp,
                    Traits traits = kPointwise) {
  return {.name = name,
          .doc = doc,
          .infer = infer,
          .dims = kBinary,
          .traits = traits,
          .algebra = algebra,
          .needs = needs,
          .vjp = vjp};
}

constexpr Op comparison(std::string_view name, std::string_view doc, Algebra algebra = Algebra::none) {
  return {.name = name,
          .doc = doc,
          .infer = infer_comparison,
          .dims = kBinary,
          .traits = kPointwise,
          .algebra = algebra,
          .no_gradient = "bool result"};
}

constexpr Op with_constant(std::string_view name, std::string_view doc, const AttrKind& attrs, Infer infer,
                           Algebra algebra, Needs needs, Vjp vjp, Traits traits = kPointwise) {
  return {.name = name,
          .doc = doc,
          .attrs = &attrs,
          .infer = infer,
          .dims = kUnary,
          .traits = traits,
          .algebra = algebra,
          .needs = needs,
          .vjp = vjp};
}

}  // namespace

// ---- arithmetic ----

constinit const Op op::add = binary("add", "a, b -> a + b.", infer_broadcast, Algebra::joint, {}, add_vjp);
constinit const Op op::sub = binary("sub", "a, b -> a - b.", infer_difference, Algebra::joint_minus, {}, sub_vjp);
constinit const Op op::mul =
    binary("mul", "a, b -> a * b.", infer_broadcast, Algebra::product, kBoth, mul_vjp, kLinear);
constinit const Op op::div = binary("div", "a, b -> a / b; integers divide to f32.", infer_quotient, Algebra::linear,
                                    {.inputs = 0b10, .outputs = 0b1}, div_vjp);
constinit const Op op::maximum =
    binary("maximum", "a, b -> the larger one; NaN wins.", infer_broadcast, Algebra::larger, kBoth, maximum_vjp);
constinit const Op op::minimum =
    binary("minimum", "a, b -> the smaller one; NaN wins.", infer_broadcast, Algebra::smaller, kBoth, minimum_vjp);

constinit const Op op::swiglu{
    .name = "swiglu",
    .doc = "gate, up -> silu(gate) * up.",
    .infer = infer_quotient,
    .dims = kBinary,
    .traits = kPointwise,
    .algebra = Algebra::last,
    .needs = kBoth,
    .vjp = swiglu_vjp,
    .recompute = true,
};

constinit const Op op::swiglu_backward{
    .name = "swiglu_backward",
    .doc = "grad, gate, up -> gradients of gate and up.",
    .infer = infer_swiglu_backward,
    .dims = "...,...,...->...,...",
    .traits = kPointwise,
    .algebra = Algebra::linear,
    .no_gradient = kBackward,
};

constinit const Op op::where{
    .name = "where",
    .doc = "condition (bool), a, b -> a where it holds, else b.",
    .infer = infer_where,
    .dims = kTernary,
    .traits = kPointwise,
    .algebra = Algebra::branches,
    .needs = kInput,
    .vjp = where_vjp,
};

// ---- comparisons and logic ----

constinit const Op op::equal = comparison("equal", "a, b -> bool: a == b.");
constinit const Op op::not_equal = comparison("not_equal", "a, b -> bool: a != b.");
constinit const Op op::less = comparison("less", "a, b -> bool: a < b.");
constinit const Op op::less_equal = comparison("less_equal", "a, b -> bool: a <= b.");
constinit const Op op::logical_and = comparison("logical_and", "a, b -> bool: neither is zero.", Algebra::smaller);
constinit const Op op::logical_or =
    comparison("logical_or", "a, b -> bool: at least one is not zero.", Algebra::larger);

// ---- with constants ----

constinit const Op op::add_scalar = with_constant("add_scalar", "x -> x + value, in x's dtype.", attr_kind<ScalarAttrs>,
                                                  infer_constant, Algebra::shift, {}, add_scalar_vjp);
constinit const Op op::mul_scalar = with_constant("mul_scalar", "x -> x * value, in x's dtype.", attr_kind<ScalarAttrs>,
                                                  infer_constant, Algebra::linear, {}, mul_scalar_vjp, kLinear);
constinit const Op op::pow_scalar = with_constant("pow_scalar", "x -> x ^ value, in x's dtype.", attr_kind<ScalarAttrs>,
                                                  infer_pow, Algebra::none, kInput, pow_scalar_vjp);
constinit const Op op::clamp =
    with_constant("clamp", "x -> x, raised to low and lowered to high; NaN stays.", attr_kind<ClampAttrs>, infer_clamp,
                  Algebra::increasing, kInput, clamp_vjp);
constinit const Op op::cast =
    with_constant("cast", "x -> x in another dtype; floats to integers truncate, to bool is != 0.",
                  attr_kind<CastAttrs>, infer_cast, Algebra::linear | Algebra::increasing | Algebra::between_floats, {},
                  cast_vjp, {.pointwise = true, .linear = true, .accumulates = true});

constinit const Op op::clamp_backward{
    .name = "clamp_backward",
    .doc = "grad, x -> grad where low <= x <= high, else 0.",
    .attrs = &attr_kind<ClampAttrs>,
    .infer = infer_backward,
    .dims = kBinary,
    .traits = kPointwise,
    .algebra = Algebra::linear,
    .no_gradient = kBackward,
};

void register_pointwise(OpTable& table) {
  table.add({&op::add, &op::sub, &op::mul, &op::div, &op::maximum, &op::minimum, &op::swiglu, &op::swiglu_backward,
             &op::where});
  table.add({&op::equal, &op::not_equal, &op::less, &op::less_equal, &op::logical_and, &op::logical_or});
  table.add({&op::add_scalar, &op::mul_scalar, &op::pow_scalar, &op::clamp, &op::cast, &op::clamp_backward});
  register_pointwise_unary(table);
}

Tensor add(Tensor a, Tensor b) { return call(op::add, {}, std::move(a), std::move(b)); }
Tensor sub(Tensor a, Tensor b) { return call(op::sub, {}, std::move(a), std::move(b)); }
Tensor mul(Tensor a, Tensor b) { return call(op::mul, {}, std::move(a), std::move(b)); }
Tensor div(Tensor a, Tensor b) { return call(op::div, {}, std::move(a), std::move(b)); }
Tensor maximum(Tensor a, Tensor b) { return call(op::maximum, {}, std::move(a), std::move(b)); }
Tensor minimum(Tensor a, Tensor b) { return call(op::minimum, {}, std::move(a), std::move(b)); }
Tensor equal(Tensor a, Tensor b) { return call(op::equal, {}, std::move(a), std::move(b)); }
Tensor not_equal(Tensor a, Tensor b) { return call(op::not_equal, {}, std::move(a), std::move(b)); }
Tensor less(Tensor a, Tensor b) { return call(op::less, {}, std::move(a), std::move(b)); }
Tensor less_equal(Tensor a, Tensor b) { return call(op::less_equal, {}, std::move(a), std::move(b)); }
Tensor greater(Tensor a, Tensor b) { return call(op::less, {}, std::move(b), std::move(a)); }
Tensor greater_equal(Tensor a, Tensor b) { return call(op::less_equal, {}, std::move(b), std::move(a)); }
Tensor logical_and(Tensor a, Tensor b) { return call(op::logical_and, {}, std::move(a), std::move(b)); }
Tensor logical_or(Tensor a, Tensor b) { return call(op::logical_or, {}, std::move(a), std::move(b)); }
Tensor isfinite(Tensor x) {
  const Tensor zero = mul(std::move(x), 0);  // or NaN, which equals nothing
  return equal(zero, zero);
}

Tensor swiglu(Tensor gate, Tensor up) { return call(op::swiglu, {}, std::move(gate), std::move(up)); }

Tensor where(Tensor condition, Tensor a, Tensor b) {
  return call(op::where, {}, std::move(condition), std::move(a), std::move(b));
}

Tensor add(Tensor a, double b) { return call(op::add_scalar, ScalarAttrs{b}, std::move(a)); }
Tensor mul(Tensor a, double b) { return call(op::mul_scalar, ScalarAttrs{b}, std::move(a)); }
Tensor pow(Tensor a, double exponent) { return call(op::pow_scalar, ScalarAttrs{exponent}, std::move(a)); }
Tensor clamp(Tensor x, double low, double high) { return call(op::clamp, ClampAttrs{low, high}, std::move(x)); }
Tensor cast(Tensor x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return call(op::cast, CastAttrs{dtype}, std::move(x));
}

}  // namespace sherd
