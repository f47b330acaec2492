// Softmax and the two norms, fused: a row of the input is read once and its statistics are kept for backward, as extra
// outputs that the user functions do not show. The normalised dim is both kept and reduced, so it must not be sharded:
// "[d]" in the norms' dims; for softmax, the dim that its attributes name (column `along`).
#include "runtime/op/core/infer.h"
#include "runtime/op/core/vjp_call.h"
#include "runtime/op/rows/norm_attrs.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/view_attrs.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

constexpr std::string_view kFirstOnly = "first derivatives only";

const TensorMeta& required_floating(const InferCall& c, std::size_t i) {
  const TensorMeta& x = required(c, i);
  check(is_floating(x.dtype), "needs a floating-point input, got {}; cast it", name(x.dtype));
  return x;
}

Metas infer_softmax(const InferCall& c) {
  const TensorMeta& x = required_floating(c, 0);
  return one_output(x.shape, x.dtype);
}

Metas infer_softmax_backward(const InferCall& c) {
  const TensorMeta &grad = required_floating(c, 0), &y = required(c, 1);
  check(grad.shape == y.shape && grad.dtype == y.dtype, "the gradient is {}, the result was {}", grad, y);
  return one_output(y.shape, y.dtype);
}

void softmax_vjp(VjpCall& c) { c.give(0, op::softmax_backward, c.attrs, c.grad(), c.out()); }

void log_softmax_vjp(VjpCall& c) { c.give(0, op::log_softmax_backward, c.attrs, c.grad(), c.out()); }

int softmax_dim(AttrsView attrs) { return attrs.as<DimAttrs>().dim; }

// ---- norms ----

DType statistics_dtype(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

void check_affine(const TensorMeta& x, const TensorMeta& p, std::string_view what) {
  if (!p.defined()) return;
  check(p.ndim() == 1 && p.shape[0] == x.shape.back(), "{} is [{}] for x {}, got {}", what, x.shape.back(), x.shape,
        p.shape);
  check(p.dtype == x.dtype, "dtypes differ: x {} and {} {}; cast one of them", name(x.dtype), what, name(p.dtype));
}

Metas infer_norm(const InferCall& c, int num_statistics) {
  const TensorMeta& x = required_floating(c, 0);
  check(x.ndim() >= 1, "normalises over the last dim, x has none");
  check_affine(x, c.in[1], "weight");
  check_affine(x, c.in[2], "bias");
  Metas metas = one_output(x.shape, x.dtype);
  const Shape rows(std::span(x.shape.begin(), x.shape.end() - 1));
  for (int i = 0; i < num_statistics; ++i) metas.push_back({rows, statistics_dtype(x.dtype)});
  return metas;
}
Metas infer_layer_norm(const InferCall& c) { return infer_norm(c, 2); }
Metas infer_rms_norm(const InferCall& c) { return infer_norm(c, 1); }

// Inputs: gradient, x, weight, statistics. Outputs: dx and one vector for each affine parameter that the norm can
// have.
Metas infer_norm_backward(const InferCall& c, int num_affine) {
  const TensorMeta &grad = required_floating(c, 0), &x = required(c, 1);
  check(grad.shape == x.shape && grad.dtype == x.dtype, "the gradient is {}, the input was {}", grad, x);
  Metas metas = one_output(x.shape, x.dtype);
  for (int i = 0; i < num_affine; ++i) metas.push_back({{x.shape.back()}, x.dtype});
  return metas;
}
Metas infer_layer_norm_backward(const InferCall& c) { return infer_norm_backward(c, 2); }
Metas infer_rms_norm_backward(const InferCall& c) { return infer_norm_backward(c, 1); }

// An affine parameter that was left out is recorded with an empty shape.
Tensor weight_or_none(const VjpCall& c) { return c.in_shape(1).empty() ? Tensor() : c.in(1); }

// The gradients of weight and bias are sums over rows, so each leaf has a call of its own.
void give_norm(VjpCall& c, const Op& op, std::span<Tensor> in) {
  if (c.leaves() == 1) {
    Tensors gradients = call_op(op, in, {});
    for (std::size_t i = 0; i < gradients.size(); ++i) c.give(i, std::move(gradients[i]));
    return;
  }
  constexpr std::size_t kWeight = 2;  // of the inputs; it has no rows
  std::vector<Tensor> slopes;
  for (std::int64_t leaf = 0; leaf < c.leaves(); ++leaf) {
    std::vector<Tensor> part;
    for (std::size_t i = 0; i < in.size(); ++i) part.push_back(i == kWeight ? in[i] : c.rows_of_leaf(leaf, in[i]));
    Tensors gradients = call_op(op, part, {});
    slopes.push_back(std::move(gradients[0]));
    for (std::size_t i = 1; i < gradients.size(); ++i) c.give_of_leaf(leaf, i, std::move(gradients[i]));
  }
  c.give(0, cat(std::move(slopes), 0));
}

void layer_norm_vjp(VjpCall& c) {
  Tensor in[] = {c.grad(), c.in(0), weight_or_none(c), c.out(1), c.out(2)};
  give_norm(c, op::layer_norm_backward, in);
}

void rms_norm_vjp(VjpCall& c) {
  Tensor in[] = {c.grad(), c.in(0), weight_or_none(c), c.out(1)};
  give_norm(c, op::rms_norm_backward, in);
}

// Operations per element, counted from the kernels' formulas; one more for a weight and one for a bias.
double norm_flops(const InferCall& c, std::size_t x, std::size_t first_affine, int per_element) {
  int operations = per_element;
  for (std::size_t i = first_affine; i < 3 && i < c.in.size(); ++i) operations += c.in[i].defined();
  return operations * static_cast<double>(c.in[x].numel());
}
// Sums of x and of (x - mean)^2, then (x - mean) * rstd.
double layer_norm_flops(const InferCall& c) { return norm_flops(c, 0, 1, 6); }
// The sum of x^2, then x * rstd.
double rms_norm_flops(const InferCall& c) { return norm_flops(c, 0, 1, 3); }
// With h normalised: h, the sums of g, of g * h, of grad * h and of grad, then rstd * (g - mean - h * mean).
double layer_norm_backward_flops(const InferCall& c) { return norm_flops(c, 1, 2, 12); }
double rms_norm_backward_flops(const InferCall& c) { return norm_flops(c, 1, 2, 8); }

}  // namespace

constinit const Op op::softmax{
    .name = "softmax",
    .doc = "exp(x) divided by its sum along `dim`, without overflow.",
    .attrs = &attr_kind<DimAttrs>,
    .infer = infer_softmax,
    .dims = "...->...",
    .along = softmax_dim,
    .needs = {.outputs = 0b1},
    .vjp = softmax_vjp,
};

constinit const Op op::softmax_backward{
    .name = "softmax_backward",
    .doc = "grad, y -> y * (grad - sum of grad * y along `dim`).",
    .attrs = &attr_kind<DimAttrs>,
    .infer = infer_softmax_backward,
    .dims = "...,...->...",
    .along = softmax_dim,
    .algebra = Algebra::linear,
    .no_gradient = kFirstOnly,
};

constinit const Op op::log_softmax{
    .name = "log_softmax",
    .doc = "x minus the log of the sum of exp(x) along `dim`, without overflow.",
    .attrs = &attr_kind<DimAttrs>,
    .infer = infer_softmax,
    .dims = "...->...",
    .along = softmax_dim,
    .needs = {.outputs = 0b1},
    .vjp = log_softmax_vjp,
};

constinit const Op op::log_softmax_backward{
    .name = "log_softmax_backward",
    .doc = "grad, y -> grad - exp(y) * sum of grad along `dim`.",
    .attrs = &attr_kind<DimAttrs>,
    .infer = infer_softmax_backward,
    .dims = "...,...->...",
    .along = softmax_dim,
    .algebra = Algebra::linear,
    .no_gradient = kFirstOnly,
};

constinit const Op op::layer_norm{
    .name = "layer_norm",
    .doc =
        "x [..., D], weight [D] and bias [D] or undefined -> (x - mean) * rstd * weight + bias; also mean "
        "and rstd [...].",
    .attrs = &attr_kind<NormAttrs>,
    .infer = infer_layer_norm,
    .dims = "...[d],[d],[d]->...[d],...,...",
    .needs = {.inputs = 0b111, .outputs = 0b110},
    .vjp = layer_norm_vjp,
    .recompute = true,
    .flops = layer_norm_flops,
    .optional = 0b110,
};

constinit const Op op::layer_norm_backward{
    .name = "layer_norm_backward",
    .doc = "grad [..., D], x, weight, mean, rstd -> gradients of x, weight and bias.",
    .infer = infer_layer_norm_backward,
    .dims = "...[d],...[d],[d],...,...->...[d],[d],[d]",
    .algebra = Algebra::linear,
    .no_gradient = kFirstOnly,
    .flops = layer_norm_backward_flops,
    .optional = 0b100,
};

constinit const Op op::rms_norm{
    .name = "rms_norm",
    .doc = "x [..., D], weight [D] or undefined -> x * rstd * weight; also rstd [...].",
    .attrs = &attr_kind<NormAttrs>,
    .infer = infer_rms_norm,
    .dims = "...[d],[d]->...[d],...",
    .needs = {.inputs = 0b11, .outputs = 0b10},
    .vjp = rms_norm_vjp,
    .recompute = true,
    .flops = rms_norm_flops,
    .optional = 0b10,
};

constinit const Op op::rms_norm_backward{
    .name = "rms_norm_backward",
    .doc = "grad [..., D], x, weight, rstd -> gradients of x and weight.",
    .infer = infer_rms_norm_backward,
    .dims = "...[d],...[d],[d],...->...[d],[d]",
    .algebra = Algebra::linear,
    .no_gradient = kFirstOnly,
    .flops = rms_norm_backward_flops,
    .optional = 0b100,
};

void register_norm(OpTable& table) {
  table.add({&op::softmax, &op::softmax_backward, &op::log_softmax, &op::log_softmax_backward, &op::layer_norm,
             &op::layer_norm_backward, &op::rms_norm, &op::rms_norm_backward});
}

Tensor softmax(Tensor x, int dim) { return call(op::softmax, DimAttrs{normalize_dim(dim, x.ndim())}, std::move(x)); }
Tensor log_softmax(Tensor x, int dim) {
  return call(op::log_softmax, DimAttrs{normalize_dim(dim, x.ndim())}, std::move(x));
}
Tensor layer_norm(Tensor x, Tensor weight, Tensor bias, double eps) {
  return call(op::layer_norm, NormAttrs{eps}, std::move(x), std::move(weight), std::move(bias));
}
Tensor rms_norm(Tensor x, Tensor weight, double eps) {
  return call(op::rms_norm, NormAttrs{eps}, std::move(x), std::move(weight));
}

}  // namespace sherd
