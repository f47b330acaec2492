// Rows that gather and join: cat, pad_to, index_select, embedding, and their derivatives.
#include "runtime/op/core/infer.h"
#include "runtime/op/rows/gather.h"
#include "runtime/op/rows/id_shard.h"
#include "runtime/op/rows/index_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "runtime/op/rows/vjp.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

void check_index(const Op& op, const TensorMeta& index) {
  check(index.dtype == DType::i64 || index.dtype == DType::i32, "{} needs i32 or i64 indices, got {}", op.name, index);
}

// ---- infer ----

Metas infer_cat(const InferCall& call) {
  check(!call.in.empty(), "cat of no tensors");
  const TensorMeta& first = required(call, 0);
  const int dim = call.attrs.as<DimAttrs>().dim;
  check(first.ndim() > 0, "cat of 0-d tensors; use stack()");
  Shape shape = first.shape;
  for (const std::size_t i : Numbers<std::size_t>(1, call.in.size())) {
    const TensorMeta& t = required(call, i);
    check(t.dtype == first.dtype, "cat of {} and {}: dtypes differ", first, t);
    bool fits = t.ndim() == first.ndim();
    for (int d = 0; fits && d < t.ndim(); ++d) fits = d == dim || t.shape[d] == shape[d];
    check(fits, "cat of {} and {} along dim {}: only that dim may differ", first, t, dim);
    shape[dim] += t.shape[dim];
  }
  return one_output(shape, first.dtype);
}

Metas infer_pad_to(const InferCall& call) {
  const TensorMeta& x = required(call, 0);
  const auto& attrs = call.attrs.as<PadToAttrs>();
  check(attrs.dim >= 0 && attrs.dim < x.ndim() && attrs.start >= 0 && attrs.start + x.shape[attrs.dim] <= attrs.size,
        "pad_to: {} does not lie in a dim {} of {} elements from {} on", x, attrs.dim, attrs.size, attrs.start);
  Shape shape = x.shape;
  shape[attrs.dim] = attrs.size;
  return one_output(shape, x.dtype);
}

Metas infer_embedding(const InferCall& call) {
  const TensorMeta& table = required(call, 0);
  const TensorMeta& ids = required(call, 1);
  check(table.ndim() == 2, "embedding needs a table [V, D], got {}", table);
  check_part(call.attrs.as<EmbeddingAttrs>().part, table.shape[0]);
  check_index(call.op, ids);
  Shape shape = ids.shape;
  shape.push_back(table.shape[1]);
  return one_output(shape, table.dtype);
}

Metas infer_embedding_backward(const InferCall& call) {
  const TensorMeta& grad = required(call, 0);
  const TensorMeta& ids = required(call, 1);
  check_index(call.op, ids);
  bool fits = grad.ndim() == ids.ndim() + 1;
  for (int d = 0; fits && d < ids.ndim(); ++d) fits = grad.shape[d] == ids.shape[d];
  check(fits, "embedding_backward: grad {} is not ids {} with one more dim", grad, ids);
  const auto& attrs = call.attrs.as<EmbeddingAttrs>();
  check(attrs.rows >= 0, "embedding_backward: a table has no {} rows", attrs.rows);
  check_part(attrs.part, attrs.rows);
  return one_output({attrs.rows, grad.shape.back()}, grad.dtype);
}

Metas infer_index_select(const InferCall& call) {
  const TensorMeta& x = required(call, 0);
  const TensorMeta& index = required(call, 1);
  const int dim = call.attrs.as<DimAttrs>().dim;
  check_index(call.op, index);
  check(index.ndim() == 1, "index_select needs a 1-d index, got {}", index);
  check(dim >= 0 && dim < x.ndim(), "index_select: dim {} of {}", dim, x);
  Shape shape = x.shape;
  shape[dim] = index.shape[0];
  return one_output(shape, x.dtype);
}

Metas infer_index_select_backward(const InferCall& call) {
  const TensorMeta& grad = required(call, 0);
  const TensorMeta& index = required(call, 1);
  const auto& attrs = call.attrs.as<PadToAttrs>();
  check_index(call.op, index);
  check(index.ndim() == 1 && attrs.dim >= 0 && attrs.dim < grad.ndim() && grad.shape[attrs.dim] == index.shape[0],
        "index_select_backward: grad {} does not have one entry per index {} along dim {}", grad, index, attrs.dim);
  Shape shape = grad.shape;
  shape[attrs.dim] = attrs.size;
  return one_output(shape, grad.dtype);
}

// Positions sorted by row: a count per row, then the positions.
std::int64_t sort_scratch(std::int64_t rows, std::int64_t positions) {
  return (rows + 1 + positions) * static_cast<std::int64_t>(sizeof(std::int64_t));
}
std::int64_t embedding_scratch(const InferCall& call) {
  return sort_scratch(call.attrs.as<EmbeddingAttrs>().rows, call.in[1].numel());
}
std::int64_t index_select_scratch(const InferCall& call) {
  return sort_scratch(call.attrs.as<PadToAttrs>().size, call.in[1].numel());
}

// ---- vjp ----

void cat_vjp(VjpCall& c) {
  const int dim = c.attrs.as<DimAttrs>().dim;
  std::int64_t start = 0;
  for (const std::size_t i : up_to(c.num_inputs())) {
    const std::int64_t size = c.in_shape(i)[dim];
    c.give(i, op::narrow, NarrowAttrs{dim, start, size}, c.grad());
    start += size;
  }
}

void pad_to_vjp(VjpCall& c) {
  const auto& attrs = c.attrs.as<PadToAttrs>();
  c.give(0, op::narrow, NarrowAttrs{attrs.dim, attrs.start, c.in_shape(0)[attrs.dim]}, c.grad());
}

void embedding_vjp(VjpCall& c) {
  c.give_rows(0, op::embedding_backward, EmbeddingAttrs{c.in_shape(0)[0], c.attrs.as<EmbeddingAttrs>().part}, c.grad(),
              c.in(1));
}

void index_select_vjp(VjpCall& c) {
  const int dim = c.attrs.as<DimAttrs>().dim;
  c.give(0, op::index_select_backward, PadToAttrs{dim, 0, c.in_shape(0)[dim]}, c.grad(), c.in(1));
}

}  // namespace

constinit const Op op::cat{
    .name = "cat",
    .doc = "tensors -> one after the other along `dim`.",
    .attrs = &attr_kind<DimAttrs>,
    .infer = infer_cat,
    .traits = {.linear = true, .any_strides = true},
    .vjp = cat_vjp,
};

constinit const Op op::pad_to{
    .name = "pad_to",
    .doc = "x -> x at `start` of a dim of `size`, zeros around: the gradient of narrow.",
    .attrs = &attr_kind<PadToAttrs>,
    .infer = infer_pad_to,
    .traits = {.linear = true, .accumulates = true},
    .vjp = pad_to_vjp,
};

constinit const Op op::embedding{
    .name = "embedding",
    .doc = "table [V, D], ids [...] -> rows of the table [..., D]; zeros for ids of another part.",
    .attrs = &attr_kind<EmbeddingAttrs>,
    .infer = infer_embedding,
    .dims = "vd,...->...d",
    .traits = {.linear = true},
    .needs = {.inputs = 0b10},
    .vjp = embedding_vjp,
};

constinit const Op op::embedding_backward{
    .name = "embedding_backward",
    .doc =
        "grad [..., D], ids [...] -> [rows, D]: each row's gradients summed in the order of ids; ids of "
        "another part are skipped.",
    .attrs = &attr_kind<EmbeddingAttrs>,
    .infer = infer_embedding_backward,
    .traits = {.linear = true, .accumulates = true},
    .no_gradient = "derivative row; there is no double backward",
};

constinit const Op op::index_select{
    .name = "index_select",
    .doc = "x [..., N, ...], index [M] -> [..., M, ...]: elements of one dim.",
    .attrs = &attr_kind<DimAttrs>,
    .infer = infer_index_select,
    .traits = {.linear = true},
    .needs = {.inputs = 0b10},
    .vjp = index_select_vjp,
};

constinit const Op op::index_select_backward{
    .name = "index_select_backward",
    .doc = "grad [..., M, ...], index [M] -> [..., size, ...]: summed in the order of index.",
    .attrs = &attr_kind<PadToAttrs>,
    .infer = infer_index_select_backward,
    .traits = {.linear = true, .accumulates = true},
    .no_gradient = "derivative row; there is no double backward",
};

void register_index(OpTable& table) {
  table.add(
      {&op::cat, &op::pad_to, &op::embedding, &op::embedding_backward, &op::index_select, &op::index_select_backward});
  table.scratch(op::embedding_backward, Device::Kind::cpu, embedding_scratch);
  table.scratch(op::index_select_backward, Device::Kind::cpu, index_select_scratch);
  register_gather(table);
}

Tensor cat(std::vector<Tensor> tensors, int dim) {
  check(!tensors.empty(), "cat of no tensors");
  DType dtype = tensors[0].dtype();
  for (const Tensor& t : tensors) dtype = promote(dtype, t.dtype());
  for (Tensor& t : tensors) t = cast(std::move(t), dtype);
  const DimAttrs attrs{normalize_dim(dim, tensors[0].ndim())};
  return std::move(call_op(op::cat, tensors, attrs)[0]);
}

Tensor stack(std::vector<Tensor> tensors, int dim) {
  check(!tensors.empty(), "stack of no tensors");
  const int d = normalize_dim(dim, tensors[0].ndim() + 1);
  const Shape shape = tensors[0].shape();
  for (Tensor& t : tensors) {
    check(t.shape() == shape, "stack of shapes {} and {}: they must be equal", shape, t.shape());
    t = unsqueeze(std::move(t), d);
  }
  return cat(std::move(tensors), d);
}

Tensor embedding(Tensor table, Tensor ids) {
  return call(op::embedding, EmbeddingAttrs{}, std::move(table), std::move(ids));
}

Tensor index_select(Tensor x, int dim, Tensor index) {
  const DimAttrs attrs{normalize_dim(dim, x.ndim())};
  return call(op::index_select, attrs, std::move(x), std::move(index));
}

}  // namespace sherd
