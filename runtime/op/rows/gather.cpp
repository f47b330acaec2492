// Rows with an index per element, and topk, whose gradient is one of them.
//
//   gather    out[i, j] = x[i, index[i, j]]          along dim 1; the derivative sums over all reads of one element
//   scatter   out[i, index[i, j]] = source[i, j]     where several write one place, the last j wins
//
// Along the other dims the index may be smaller than x: the rest is not read, or stays as it is.
#include "runtime/op/rows/gather.h"

#include "runtime/op/core/infer.h"
#include "runtime/op/rows/view_attrs.h"
#include "runtime/op/rows/vjp.h"

namespace sherd {

namespace {

// ---- infer ----

void check_index(const Op& op, const Shape& shape, int dim, const TensorMeta& index) {
  check(index.dtype == DType::i64 || index.dtype == DType::i32, "{} needs i32 or i64 indices, got {}", op.name, index);
  check(dim >= 0 && dim < shape.size(), "{}: dim {} of a tensor {}", op.name, dim, shape);
  bool fits = index.ndim() == shape.size();
  for (int d = 0; fits && d < shape.size(); ++d) fits = d == dim || index.shape[d] <= shape[d];
  check(fits, "{} along dim {}: the index {} has other dims than {}, or exceeds it along another dim", op.name, dim,
        index, shape);
}

Metas infer_gather(const InferCall& call) {
  const TensorMeta &x = required(call, 0), &index = required(call, 1);
  check_index(call.op, x.shape, call.attrs.as<DimAttrs>().dim, index);
  return one_output(index.shape, x.dtype);
}

Metas infer_gather_backward(const InferCall& call) {
  const TensorMeta &grad = required(call, 0), &index = required(call, 1);
  const auto& attrs = call.attrs.as<GatherBackwardAttrs>();
  check_index(call.op, attrs.shape, attrs.dim, index);
  check(grad.shape == index.shape, "{}: a gradient {} for an index {}", call.op.name, grad, index);
  return one_output(attrs.shape, grad.dtype);
}

Metas infer_scatter(const InferCall& call) {
  const TensorMeta &x = required(call, 0), &index = required(call, 1), &source = required(call, 2);
  check_index(call.op, x.shape, call.attrs.as<DimAttrs>().dim, index);
  check(source.shape == index.shape, "{}: the source {} and the index {} differ in shape", call.op.name, source, index);
  check(source.dtype == x.dtype, "{} of {} into {}: dtypes differ; cast one of them", call.op.name, source, x);
  return one_output(x.shape, x.dtype);
}

Metas infer_scatter_backward(const InferCall& call) {
  const TensorMeta &grad = required(call, 0), &index = required(call, 1);
  check_index(call.op, grad.shape, call.attrs.as<DimAttrs>().dim, index);
  Metas metas = one_output(grad.shape, grad.dtype);
  metas.push_back({index.shape, grad.dtype});
  return metas;
}

Metas infer_topk(const InferCall& call) {
  const TensorMeta& x = required(call, 0);
  const auto& attrs = call.attrs.as<TopKAttrs>();
  check(attrs.dim >= 0 && attrs.dim < x.ndim(), "topk: dim {} of {}", attrs.dim, x);
  check(attrs.k >= 0 && attrs.k <= x.shape[attrs.dim], "topk: the {} largest of {} elements along dim {} of {}",
        attrs.k, x.shape[attrs.dim], attrs.dim, x);
  Shape shape = x.shape;
  shape[attrs.dim] = attrs.k;
  Metas metas = one_output(shape, x.dtype);
  metas.push_back({shape, DType::i64});
  return metas;
}

// ---- vjp ----

void gather_vjp(VjpCall& c) {
  c.give(0, op::gather_backward, GatherBackwardAttrs{c.attrs.as<DimAttrs>().dim, c.in_shape(0)}, c.grad(), c.in(1));
}

void gather_backward_vjp(VjpCall& c) {
  c.give(0, op::gather, DimAttrs{c.attrs.as<GatherBackwardAttrs>().dim}, c.grad(), c.in(1));
}

void scatter_vjp(VjpCall& c) {
  Tensor in[] = {c.grad(), c.in(1)};
  Tensors slopes = call_op(op::scatter_backward, in, c.attrs);
  c.give(0, std::move(slopes[0]));
  c.give(2, std::move(slopes[1]));
}

void scatter_add_vjp(VjpCall& c) {
  c.give(2, op::gather, c.attrs, c.grad(), c.in(1));
  c.give(0, c.take_grad());
}

void topk_vjp(VjpCall& c) {
  c.give(0, op::gather_backward, GatherBackwardAttrs{c.attrs.as<TopKAttrs>().dim, c.in_shape(0)}, c.grad(), c.out(1));
}

}  // namespace

constinit const Op op::gather{
    .name = "gather",
    .doc = "x [..., N, ...], index [..., M, ...] -> elements of x along dim [..., M, ...].",
    .attrs = &attr_kind<DimAttrs>,
    .infer = infer_gather,
    .traits = {.linear = true},
    .needs = {.inputs = 0b10},
    .vjp = gather_vjp,
};

constinit const Op op::gather_backward{
    .name = "gather_backward",
    .doc = "grad [..., M, ...], index [..., M, ...] -> `shape`: summed in the order of index, zero elsewhere.",
    .attrs = &attr_kind<GatherBackwardAttrs>,
    .infer = infer_gather_backward,
    .traits = {.linear = true},
    .needs = {.inputs = 0b10},
    .vjp = gather_backward_vjp,
};

constinit const Op op::scatter{
    .name = "scatter",
    .doc =
        "x [..., N, ...], index and source [..., M, ...] -> x with the source's elements where the index "
        "says; of several for one place the last.",
    .attrs = &attr_kind<DimAttrs>,
    .infer = infer_scatter,
    .needs = {.inputs = 0b10},
    .vjp = scatter_vjp,
};

constinit const Op op::scatter_backward{
    .name = "scatter_backward",
    .doc =
        "grad [..., N, ...], index [..., M, ...] -> grad with zeros where scatter wrote; grad at the source's "
        "elements that stayed, zero for the others.",
    .attrs = &attr_kind<DimAttrs>,
    .infer = infer_scatter_backward,
    .traits = {.linear = true},
    .no_gradient = "derivative row; there is no double backward",
};

constinit const Op op::scatter_add{
    .name = "scatter_add",
    .doc =
        "x [..., N, ...], index and source [..., M, ...] -> x with the source's elements added where the "
        "index says, in its order.",
    .attrs = &attr_kind<DimAttrs>,
    .infer = infer_scatter,
    .needs = {.inputs = 0b10},
    .vjp = scatter_add_vjp,
};

constinit const Op op::topk{
    .name = "topk",
    .doc =
        "x [..., N, ...] -> the k largest along dim, largest first, NaN above all, equal ones in order; and "
        "their i64 indices.",
    .attrs = &attr_kind<TopKAttrs>,
    .infer = infer_topk,
    .needs = {.outputs = 0b10},
    .vjp = topk_vjp,
};

void register_gather(OpTable& table) {
  table.add({&op::gather, &op::gather_backward, &op::scatter, &op::scatter_backward, &op::scatter_add, &op::topk});
}

Tensor gather(Tensor x, int dim, Tensor index) {
  const DimAttrs attrs{normalize_dim(dim, x.ndim())};
  return call(op::gather, attrs, std::move(x), std::move(index));
}

Tensor scatter(Tensor x, int dim, Tensor index, Tensor source) {
  const DimAttrs attrs{normalize_dim(dim, x.ndim())};
  return call(op::scatter, attrs, std::move(x), std::move(index), std::move(source));
}

Tensor scatter_add(Tensor x, int dim, Tensor index, Tensor source) {
  const DimAttrs attrs{normalize_dim(dim, x.ndim())};
  return call(op::scatter_add, attrs, std::move(x), std::move(index), std::move(source));
}

std::pair<Tensor, Tensor> topk(Tensor x, std::int64_t k, int dim) {
  Tensor in[] = {x};
  Tensors out = call_op(op::topk, in, TopKAttrs{k, normalize_dim(dim, x.ndim())});
  return {std::move(out[0]), std::move(out[1])};
}

}  // namespace sherd
