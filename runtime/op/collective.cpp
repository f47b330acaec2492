// Collectives as rows, so that the tape, capture and the planner see them like any other op. They are functional and
// speak of plain tensors. Every rank of the group must make the same calls in the same order, in backward too.
//
// Convention for gradients: what is differentiated is the *sum over the ranks* of what each rank calls backward() on.
//   y = all_gather(x)       every rank reads my rows       dx = reduce_scatter(sum) of dy
//   y = reduce_scatter(x)   I hold a sum of all x          dx = all_gather of dy
//   y = all_reduce(x)       every rank reads my summand    dx = all_reduce(sum) of dy
// (If every rank computes the same loss from y, count it once: divide it by the size of the group.)
#include "runtime/autograd/autograd.h"
#include "runtime/op/ops.h"

namespace sherd {

namespace {

const CollectiveAttrs& attrs_of(const InferCall& call) {
  const auto& a = call.attrs.as<CollectiveAttrs>();
  check(a.group != nullptr, "{} needs a process group", call.op.name);
  return a;
}

/// Rows of rank r when n rows are cut into chunks of ceil(n / W).
std::int64_t chunk_rows(std::int64_t n, const ProcessGroup& group) {
  const std::int64_t W = group.size(), c = (n + W - 1) / W, r = group.rank();
  return std::max<std::int64_t>(0, std::min(n, (r + 1) * c) - r * c);
}

Shape with_rows(Shape shape, std::int64_t rows) {
  shape[0] = rows;
  return shape;
}

Metas infer_same(const InferCall& call) {
  attrs_of(call);
  return {{.shape = call.in[0].shape(), .dtype = call.in[0].dtype()}};
}

Metas infer_broadcast(const InferCall& call) {
  const auto& a = attrs_of(call);
  check(a.root >= 0 && a.root < a.group->size(), "root {} is not a rank of a group of {}", a.root, a.group->size());
  return infer_same(call);
}

Metas infer_all_gather(const InferCall& call) {
  const auto& a = attrs_of(call);
  const Tensor& x = call.in[0];
  check(x.ndim() > 0, "all_gather joins along dim 0; {} has no dims", x);
  const std::int64_t own = chunk_rows(a.rows, *a.group);
  check(x.size(0) == own, "all_gather of {} rows over {} ranks takes {} rows from rank {}, got {}", a.rows,
        a.group->size(), own, a.group->rank(), x);
  return {{.shape = with_rows(x.shape(), a.rows), .dtype = x.dtype()}};
}

Metas infer_reduce_scatter(const InferCall& call) {
  const auto& a = attrs_of(call);
  const Tensor& x = call.in[0];
  check(x.ndim() > 0, "reduce_scatter cuts dim 0; {} has no dims", x);
  return {{.shape = with_rows(x.shape(), chunk_rows(x.size(0), *a.group)), .dtype = x.dtype()}};
}

// Only sums and averages have a derivative here: a maximum belongs to one rank, which no rank knows.
CollectiveAttrs linear_attrs(const VjpCall& call) {
  const auto a = call.attrs.as<CollectiveAttrs>();
  const auto kind = static_cast<ReduceKind>(a.kind);
  check(kind == ReduceKind::sum || kind == ReduceKind::avg,
        "a collective that reduces by {} has no derivative; detach() its input", name(kind));
  return a;
}

void vjp_all_reduce(VjpCall& call) {
  static const Op& op = find_op("all_reduce");
  call.give(0, op, linear_attrs(call), contiguous(call.grad()));
}

void vjp_all_gather(VjpCall& call) {
  static const Op& op = find_op("reduce_scatter");
  call.give(0, op, CollectiveAttrs{.group = call.attrs.as<CollectiveAttrs>().group}, contiguous(call.grad()));
}

void vjp_reduce_scatter(VjpCall& call) {
  static const Op& op = find_op("all_gather");
  CollectiveAttrs a = linear_attrs(call);
  Tensor grad = contiguous(call.grad());
  if (static_cast<ReduceKind>(a.kind) == ReduceKind::avg) grad = mul(std::move(grad), 1.0 / a.group->size());
  call.give(0, op, CollectiveAttrs{.group = a.group, .rows = call.in_shape(0)[0]}, std::move(grad));
}

}  // namespace

void register_collective(OpTable& table) {
  constexpr Traits traits{.collective = true};
  table.add({.name = "all_reduce",
             .doc = "Reduces x over the ranks of a group; every rank gets the same bits.",
             .infer = infer_same,
             .traits = traits,
             .vjp = vjp_all_reduce});
  table.add({.name = "all_gather",
             .doc = "Concatenates the ranks' x [own rows, ...] along dim 0 -> [rows, ...], cut by the chunk rule.",
             .infer = infer_all_gather,
             .traits = traits,
             .vjp = vjp_all_gather});
  table.add({.name = "reduce_scatter",
             .doc = "Reduces x [rows, ...] over the ranks and keeps this rank's chunk of rows.",
             .infer = infer_reduce_scatter,
             .traits = traits,
             .vjp = vjp_reduce_scatter});
  table.add({.name = "broadcast",
             .doc = "The root's x on every rank.",
             .infer = infer_broadcast,
             .traits = traits,
             .no_gradient = "distributes values before training"});
}

Tensor all_reduce(Tensor x, ProcessGroup& group, ReduceKind kind) {
  static const Op& op = find_op("all_reduce");
  return call(op, CollectiveAttrs{.group = &group, .kind = static_cast<int>(kind)}, contiguous(std::move(x)));
}

Tensor all_gather(Tensor x, ProcessGroup& group, std::int64_t rows, int dim) {
  check(dim == 0, "all_gather joins along dim 0, not {}", dim);
  static const Op& op = find_op("all_gather");
  return call(op, CollectiveAttrs{.group = &group, .rows = rows}, contiguous(std::move(x)));
}

Tensor reduce_scatter(Tensor x, ProcessGroup& group, ReduceKind kind, int dim) {
  check(dim == 0, "reduce_scatter cuts dim 0, not {}", dim);
  static const Op& op = find_op("reduce_scatter");
  return call(op, CollectiveAttrs{.group = &group, .kind = static_cast<int>(kind)}, contiguous(std::move(x)));
}

Tensor broadcast_from(Tensor x, ProcessGroup& group, int root) {
  static const Op& op = find_op("broadcast");
  return call(op, CollectiveAttrs{.group = &group, .root = root}, contiguous(std::move(x)));
}

}  // namespace sherd
