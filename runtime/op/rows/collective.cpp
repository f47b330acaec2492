// Collectives as rows, so that the tape, capture and the planner see them like any other op. They are functional and
// speak of plain tensors. Every rank of the group must make the same calls in the same order, in backward too.
//
//   all_gather         | r0 | r1 | r2 |  ->  full         along any dim; shards by the chunk rule (comm/group/chunks.h)
//   reduce_scatter     full + full + full  ->  | r |
//   all_to_all         sharded along one dim  ->  sharded along another
//
// Convention for gradients: what is differentiated is the *sum over the ranks* of what each rank calls backward() on.
//   y = all_gather(x)       every rank reads my shard      dx = reduce_scatter(sum) of dy
//   y = reduce_scatter(x)   I hold a sum of all x          dx = all_gather of dy
//   y = all_reduce(x)       every rank reads my operand    dx = all_reduce(sum) of dy
//   y = all_to_all(x)       every element moves once       dx = all_to_all of dy, the other way
// (If every rank computes the same loss from y, count it once: divide it by the size of the group.)
#include "runtime/comm/group/chunks.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/op/core/infer.h"
#include "runtime/op/core/vjp_call.h"
#include "runtime/op/rows/collective_attrs.h"
#include "runtime/op/rows/collective_cut.h"
#include "runtime/op/rows/ops.h"

namespace sherd {

namespace {

const CollectiveAttrs& attrs_of(const InferCall& call) {
  const auto& a = call.attrs.as<CollectiveAttrs>();
  check(!a.group.empty(), "{} needs a process group", call.op.name);
  return a;
}

/// The dim's size in x; Error if x has no such dim.
std::int64_t size_along(const InferCall& call, int dim) {
  const TensorMeta& x = required(call, 0);
  check(dim >= 0 && dim < x.ndim(), "{} along dim {} of {}, which has {} dims", call.op.name, dim, x, x.ndim());
  return x.size(dim);
}

/// Error unless this rank's x is its shard of `size` elements along a dim.
void check_part(const InferCall& call, const ProcessGroup& group, int dim, std::int64_t size) {
  check(size >= 0, "{} of {} elements along dim {}", call.op.name, size, dim);
  const std::int64_t own = chunk_size(size, group.size(), group.rank());
  check(size_along(call, dim) == own,
        "{} of {} elements along dim {} over {} ranks takes {} of them from rank {}, got {}", call.op.name, size, dim,
        group.size(), own, group.rank(), call.in[0]);
}

std::int64_t own_chunk(std::int64_t size, const ProcessGroup& group) {
  return chunk_size(size, group.size(), group.rank());
}

Shape with_size(Shape shape, int dim, std::int64_t size) {
  shape[dim] = size;
  return shape;
}

Metas infer_same(const InferCall& call) {
  attrs_of(call);
  return infer_like_first(call);
}

Metas infer_from_root(const InferCall& call) {
  const auto& a = attrs_of(call);
  const int ranks = group_of(a).size();
  check(a.root >= 0 && a.root < ranks, "root {} is not a rank of a group of {}", a.root, ranks);
  return infer_same(call);
}

Metas infer_all_gather(const InferCall& call) {
  const auto& a = attrs_of(call);
  const TensorMeta& x = required(call, 0);
  check_part(call, group_of(a), a.dim, a.rows);
  return {{.shape = with_size(x.shape, a.dim, a.rows), .dtype = x.dtype}};
}

Metas infer_reduce_scatter(const InferCall& call) {
  const auto& a = attrs_of(call);
  const TensorMeta& x = required(call, 0);
  return {{.shape = with_size(x.shape, a.dim, own_chunk(size_along(call, a.dim), group_of(a))), .dtype = x.dtype}};
}

Metas infer_all_to_all(const InferCall& call) {
  const auto& a = attrs_of(call);
  const TensorMeta& x = required(call, 0);
  check_part(call, group_of(a), a.dim, a.rows);
  const std::int64_t split = size_along(call, a.split_dim);
  check(a.dim != a.split_dim, "all_to_all joins and cuts dim {}; give two dims", a.dim);
  const Shape joined = with_size(x.shape, a.dim, a.rows);
  return {{.shape = with_size(joined, a.split_dim, own_chunk(split, group_of(a))), .dtype = x.dtype}};
}

// Only sums and averages have a derivative here: the gradient of a maximum belongs to the rank that held it, which no
// rank knows.
CollectiveAttrs linear_attrs(const VjpCall& call) {
  const auto a = call.attrs.as<CollectiveAttrs>();
  const auto kind = static_cast<ReduceKind>(a.kind);
  check(kind == ReduceKind::sum || kind == ReduceKind::avg,
        "a collective that reduces by {} has no derivative; detach() its input", name(kind));
  return a;
}

void vjp_all_reduce(VjpCall& call) { call.give(0, op::all_reduce, linear_attrs(call), contiguous(call.grad())); }

void vjp_all_gather(VjpCall& call) {
  const auto& a = call.attrs.as<CollectiveAttrs>();
  call.give(0, op::reduce_scatter, CollectiveAttrs{.group = a.group, .dim = a.dim}, contiguous(call.grad()));
}

void vjp_reduce_scatter(VjpCall& call) {
  CollectiveAttrs a = linear_attrs(call);
  Tensor grad = contiguous(call.grad());
  if (static_cast<ReduceKind>(a.kind) == ReduceKind::avg) grad = mul(std::move(grad), 1.0 / group_of(a).size());
  call.give(0, op::all_gather, CollectiveAttrs{.group = a.group, .rows = call.in_shape(0)[a.dim], .dim = a.dim},
            std::move(grad));
}

void vjp_all_to_all(VjpCall& call) {
  const auto& a = call.attrs.as<CollectiveAttrs>();
  const CollectiveAttrs back{
      .group = a.group, .rows = call.in_shape(0)[a.split_dim], .dim = a.split_dim, .split_dim = a.dim};
  call.give(0, op::all_to_all, back, contiguous(call.grad()));
}

constexpr Traits kCollective{.collective = true, .issues = true};
constexpr Traits kSameShape{.collective = true, .same_shape = true, .issues = true};

// A group of one rank copies.
QueueUse queue_of_collective(AttrsView attrs) {
  const auto& a = attrs.as<CollectiveAttrs>();
  if (a.group.empty()) return {};
  const ProcessGroup* const group = find_group(a.group);  // none: a program of another rank
  if (group && group->size() == 1) return {};
  return {kCollectiveQueue, kMaxCollectivesInFlight};
}

}  // namespace

constinit const Op op::all_reduce{
    .name = "all_reduce",
    .doc = "Reduces x over the ranks of a group; every rank gets the same bits.",
    .attrs = &attr_kind<CollectiveAttrs>,
    .infer = infer_same,
    .traits = kSameShape,
    .vjp = vjp_all_reduce,
    .queue = queue_of_collective,
};

constinit const Op op::all_gather{
    .name = "all_gather",
    .doc = "Concatenates the ranks' x [..., own part, ...] along a dim -> [..., size, ...], cut by the chunk rule.",
    .attrs = &attr_kind<CollectiveAttrs>,
    .infer = infer_all_gather,
    .traits = kCollective,
    .vjp = vjp_all_gather,
    .queue = queue_of_collective,
};

constinit const Op op::reduce_scatter{
    .name = "reduce_scatter",
    .doc = "Reduces x [..., size, ...] over the ranks and keeps this rank's chunk of a dim.",
    .attrs = &attr_kind<CollectiveAttrs>,
    .infer = infer_reduce_scatter,
    .traits = kCollective,
    .vjp = vjp_reduce_scatter,
    .queue = queue_of_collective,
};

constinit const Op op::all_to_all{
    .name = "all_to_all",
    .doc =
        "From x [..., own part, ..., S, ...], sharded along one dim, to [..., size, ..., own chunk of S, ...], sharded "
        "along another.",
    .attrs = &attr_kind<CollectiveAttrs>,
    .infer = infer_all_to_all,
    .traits = kCollective,
    .vjp = vjp_all_to_all,
    .queue = queue_of_collective,
};

constinit const Op op::broadcast{
    .name = "broadcast",
    .doc = "The root's x on every rank.",
    .attrs = &attr_kind<CollectiveAttrs>,
    .infer = infer_from_root,
    .traits = kSameShape,
    .no_gradient = "distributes values before training",
    .queue = queue_of_collective,
};

void register_collective(OpTable& table) {
  const auto rows = {&op::all_reduce, &op::all_gather, &op::reduce_scatter, &op::all_to_all, &op::broadcast};
  table.add(rows);
  for (const Op* row : rows) table.kernel(*row, run_collective_on_device);  // the CPU's, in runtime/cpu, come after it
}

Tensor all_reduce(Tensor x, ProcessGroup& group, ReduceKind kind) {
  return call(op::all_reduce, CollectiveAttrs{.group = name_group(group), .kind = static_cast<int>(kind)},
              contiguous(std::move(x)));
}

Tensor all_gather(Tensor x, ProcessGroup& group, std::int64_t size, int dim) {
  const CollectiveAttrs attrs{.group = name_group(group), .rows = size, .dim = normalize_dim(dim, x.ndim())};
  return call(op::all_gather, attrs, contiguous(std::move(x)));
}

Tensor reduce_scatter(Tensor x, ProcessGroup& group, ReduceKind kind, int dim) {
  const CollectiveAttrs attrs{
      .group = name_group(group), .kind = static_cast<int>(kind), .dim = normalize_dim(dim, x.ndim())};
  return call(op::reduce_scatter, attrs, contiguous(std::move(x)));
}

Tensor all_to_all(Tensor x, ProcessGroup& group, int joined_dim, std::int64_t size, int split_dim) {
  const CollectiveAttrs attrs{.group = name_group(group),
                              .rows = size,
                              .dim = normalize_dim(joined_dim, x.ndim()),
                              .split_dim = normalize_dim(split_dim, x.ndim())};
  return call(op::all_to_all, attrs, contiguous(std::move(x)));
}

Tensor broadcast_from(Tensor x, ProcessGroup& group, int root) {
  return call(op::broadcast, CollectiveAttrs{.group = name_group(group), .root = root}, contiguous(std::move(x)));
}

}  // namespace sherd
