// Matrix products. `linear` is a row of its own because its weight gradient sums over all leading dims in one product,
// which is written straight to where the reduction of gradients reads it.
#include "runtime/op/core/infer.h"
#include "runtime/op/core/tape_modes.h"
#include "runtime/op/core/vjp_call.h"
#include "runtime/op/rows/matmul_attrs.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/reduce_attrs.h"

namespace sherd {

namespace {

void check_dtypes(const TensorMeta& a, const TensorMeta& b) {
  check(a.dtype == b.dtype, "dtypes differ: {} and {}; cast one of them", name(a.dtype), name(b.dtype));
  check(is_floating(a.dtype), "a product needs floating-point inputs, got {}; cast them", name(a.dtype));
}

Metas infer_matmul(const InferCall& c) {
  const TensorMeta &a = required(c, 0), &b = required(c, 1);
  check_dtypes(a, b);
  check(a.ndim() >= 2 && b.ndim() >= 2, "operands have at least 2 dims, got {} and {}", a.shape, b.shape);
  check(a.size(-1) == b.size(-2), "inner dimensions differ: {} and {}", a.size(-1), b.size(-2));
  const auto batch = [](const TensorMeta& t) { return Shape(std::span(t.shape.begin(), t.shape.end() - 2)); };
  Shape shape = broadcast(batch(a), batch(b));
  shape.push_back(a.size(-2));
  shape.push_back(b.size(-1));
  return one_output(shape, a.dtype);
}

// C = A B:  dA = G B^T,  dB = A^T G, with transposes as views, which the kernels read as they are.
void matmul_vjp(VjpCall& c) {
  const Tensor grad = c.grad();
  check(c.leaves() == 1 || byte_size(grad.dtype()) != 2 || c.in_shape(1).size() > 2,
        "products of {} by a matrix of matmul() are not made leaf by leaf; take linear(), or train leaves one after "
        "the other",
        name(grad.dtype()));
  const Shape& out = c.out_meta().shape;
  // An operand that was broadcast along the batch gets the sum over it.
  const auto give = [&](std::size_t i, Tensor a, Tensor b) {
    bool same_batch = c.in_shape(i).size() == out.size();
    for (int d = 0; same_batch && d + 2 < out.size(); ++d) same_batch = c.in_shape(i)[d] == out[d];
    if (same_batch) c.give(i, op::matmul, {}, std::move(a), std::move(b));
    else c.give_summed(i, call(op::matmul, {}, std::move(a), std::move(b)));
  };
  if (c.wants(0)) give(0, grad, transpose(c.in(1), -1, -2));
  if (!c.wants(1)) return;
  // One B for the whole batch: its gradient sums over all rows in one product.
  if (c.in_shape(1).size() == 2 && out.size() == c.in_shape(0).size()) c.give_products(1, c.in(0), grad);
  else give(1, transpose(c.in(0), -1, -2), grad);
}

Metas infer_linear(const InferCall& c) {
  const TensorMeta &x = required(c, 0), &weight = required(c, 1), &bias = c.in[2];
  check_dtypes(x, weight);
  check(weight.ndim() == 2, "weight is [out, in], got {}", weight.shape);
  check(x.ndim() >= 2, "x has at least 2 dims, got {}", x.shape);
  check(x.shape.back() == weight.shape[1], "inner dimensions differ: {} and {} (weight is [out, in])", x.shape.back(),
        weight.shape[1]);
  if (bias.defined()) {
    check(bias.ndim() == 1 && bias.shape[0] == weight.shape[0], "bias is [{}], got {}", weight.shape[0], bias.shape);
    check(bias.dtype == x.dtype, "dtypes differ: {} and bias {}; cast one of them", name(x.dtype), name(bias.dtype));
  }
  Shape shape = x.shape;
  shape[shape.size() - 1] = weight.shape[0];
  return one_output(shape, x.dtype);
}

// Engines for 16-bit floats may sum rows in an order that depends on how many there are.
bool has_leaves(std::int64_t leaves, const Tensor& rows) {
  return leaves > 1 && byte_size(rows.dtype()) == 2 && rows.size(0) % leaves == 0;
}

void linear_vjp(VjpCall& c) {
  const Tensor grad = c.grad();
  // The weight's gradient comes first: x, which may be recomputed, is freed before a gradient of its size is
  // allocated.
  if (c.wants(1)) c.give_products(1, grad, c.take_in(0));
  if (c.wants(0) && has_leaves(c.leaves(), grad)) c.give(0, op::leaf_matmul, LeafAttrs{c.leaves()}, grad, c.in(1));
  else if (c.wants(0)) c.give(0, op::matmul, {}, grad, c.in(1));
  c.give_rows(2, op::sum_to, SumToAttrs{c.in_shape(2)}, grad);
}

Metas infer_linear_weight_grad(const InferCall& c) {
  const TensorMeta &a = required(c, 0), &b = required(c, 1);
  check_dtypes(a, b);
  const auto leading = [](const TensorMeta& t) { return Shape(std::span(t.shape.begin(), t.shape.end() - 1)); };
  check(a.ndim() >= 2 && b.ndim() >= 2 && leading(a) == leading(b), "leading dims differ: {} and {}", a.shape, b.shape);
  return one_output({a.shape.back(), b.shape.back()}, a.dtype);
}

void check_leaves(const InferCall& c) {
  const std::int64_t leaves = c.attrs.as<LeafAttrs>().leaves;
  check(leaves > 0 && c.in[0].shape[0] % leaves == 0, "{} does not divide into {} leaves of rows", c.in[0], leaves);
}

int dim_of_leaves(AttrsView) { return 0; }

Metas infer_leaf_linear(const InferCall& c) {
  Metas metas = infer_linear(c);
  check_leaves(c);
  return metas;
}

Metas infer_leaf_matmul(const InferCall& c) {
  Metas metas = infer_matmul(c);
  check(c.in[1].ndim() == 2, "one matrix serves all rows, got {}", c.in[1].shape);
  check_leaves(c);
  return metas;
}

Metas infer_leaf_weight_grad(const InferCall& c) {
  Metas metas = infer_linear_weight_grad(c);
  check_leaves(c);
  if (byte_size(metas[0].dtype) == 2) metas[0].dtype = DType::f32;
  return metas;
}

double leaf_weight_grad_flops(const InferCall& c) {
  return 2 * static_cast<double>(c.in[0].numel()) * static_cast<double>(c.in[1].shape.back());
}

}  // namespace

constinit const Op op::matmul{
    .name = "matmul",
    .doc = "a [..., M, K], b [..., K, N] -> [..., M, N]; leading dims broadcast.",
    .infer = infer_matmul,
    .dims = "...mk,...kn->...mn",
    .traits = {.linear = true, .accumulates = true},
    .needs = {.inputs = 0b11},
    .vjp = matmul_vjp,
};

constinit const Op op::linear{
    .name = "linear",
    .doc = "x [..., K], weight [N, K], bias [N] or undefined -> [..., N].",
    .infer = infer_linear,
    .dims = "...k,nk,n->...n",
    .traits = {.linear = true},
    .needs = {.inputs = 0b011},
    .vjp = linear_vjp,
    .optional = 0b100,
};

constinit const Op op::linear_weight_grad{
    .name = "linear_weight_grad",
    .doc = "a [..., N], b [..., K] -> [N, K]: products of rows summed over all leading dims.",
    .infer = infer_linear_weight_grad,
    .dims = "...n,...k->nk",
    .traits = {.linear = true, .accumulates = true},
    .no_gradient = "first derivatives only",
};

constinit const Op op::leaf_linear{
    .name = "leaf_linear",
    .doc =
        "x [rows, ..., K], weight [N, K], bias [N] or undefined -> [rows, ..., N]: linear of each of `leaves` equal "
        "parts of the rows, with the bits that each has alone.",
    .attrs = &attr_kind<LeafAttrs>,
    .infer = infer_leaf_linear,
    .dims = "...k,nk,n->...n",
    .along = dim_of_leaves,
    .traits = {.linear = true},
    .needs = {.inputs = 0b011},
    .vjp = linear_vjp,
    .optional = 0b100,
};

constinit const Op op::leaf_matmul{
    .name = "leaf_matmul",
    .doc =
        "a [rows, ..., K], b [K, N] -> [rows, ..., N]: matmul of each of `leaves` equal parts of the rows, likewise.",
    .attrs = &attr_kind<LeafAttrs>,
    .infer = infer_leaf_matmul,
    .dims = "...k,kn->...n",
    .along = dim_of_leaves,
    .traits = {.linear = true, .accumulates = true},
    .no_gradient = "first derivatives only",
};

constinit const Op op::leaf_weight_grad{
    .name = "leaf_weight_grad",
    .doc =
        "a [rows, ..., N], b [rows, ..., K] -> [N, K]: linear_weight_grad of each of `leaves` equal parts of the rows, "
        "rounded to the inputs' dtype, summed as a balanced tree; f32 of 16-bit inputs. A device adds without a "
        "rounding.",
    .attrs = &attr_kind<LeafAttrs>,
    .infer = infer_leaf_weight_grad,
    .dims = "...n,...k->nk",
    .along = dim_of_leaves,
    .traits = {.accumulates = true},
    .no_gradient = "first derivatives only",
    .flops = leaf_weight_grad_flops,
};

void register_matmul(OpTable& table) {
  table.add(
      {&op::matmul, &op::linear, &op::linear_weight_grad, &op::leaf_linear, &op::leaf_matmul, &op::leaf_weight_grad});
}

Tensor matmul(Tensor a, Tensor b) {
  const bool vector_a = a.ndim() == 1, vector_b = b.ndim() == 1;
  if (vector_a) a = unsqueeze(std::move(a), 0);
  if (vector_b) b = unsqueeze(std::move(b), 1);
  Tensor result = call(op::matmul, {}, std::move(a), std::move(b));
  if (vector_b) result = squeeze(std::move(result), -1);
  if (vector_a) result = squeeze(std::move(result), vector_b ? -1 : -2);
  return result;
}

Tensor linear(Tensor x, Tensor weight, Tensor bias) {
  if (x.ndim() == 1) return squeeze(linear(unsqueeze(std::move(x), 0), std::move(weight), std::move(bias)), 0);
  const std::int64_t leaves = tape_modes().leaves;
  if (has_leaves(leaves, x))
    return call(op::leaf_linear, LeafAttrs{leaves}, std::move(x), std::move(weight), std::move(bias));
  return call(op::linear, {}, std::move(x), std::move(weight), std::move(bias));
}

}  // namespace sherd
