// Rows that pick elements and put them back: one index per line (index_select) or per element (gather, scatter, topk).
//
//   index_select over dim 1   x [B, N]  index [M]  ->  [B, M]        backward   grad [B, M]  index  ->  [B, N]
//                             S0        R              S0                       S0           R          S0
//                             R         S0             S1                       S1           S0         P
//                             P         R              P                        P            R          P
//
//   gather over dim 1         x [B, N]  index [C, M]   ->  [C, M]    dims other than the indexed one are sharded in all
//                             S0        S0  if B = C       S0        operands, if they have one size: shards of a
//                             R         S1                 S1        smaller index would end at other rows
//
//   scatter_add               x  index  source  ->  out
//                             P  S1     S1          P                what each rank adds, and a Partial x
#include "runtime/op/rows/gather.h"
#include "dtensor/plain_part.h"
#include "dtensor/rule.h"
#include "runtime/op/rows/view_attrs.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

void add(SmallVec<Placement, 4> in, SmallVec<Placement, 2> out, Signatures& signatures) {
  signatures.push_back({std::move(in), std::move(out), 0});
}

// Shards all operands along each dim, other than `dim`, in which the two given shapes are equal.
void add_common_dims(const RuleCall& call, const Shape& a, const Shape& b, int dim, Signatures& signatures) {
  for (const int d : indices(a))
    if (d != dim && a[d] == b[d]) add(all(call.in.size(), Shard(d)), all<2>(call.out.size(), Shard(d)), signatures);
}

// These inputs (a bit each) Partial of any one kind, for a row that only moves their values.
void add_moved_terms(const RuleCall& call, unsigned inputs, Signatures& signatures) {
  for (ReduceKind kind : {ReduceKind::sum, ReduceKind::avg, ReduceKind::max, ReduceKind::min, ReduceKind::product}) {
    SmallVec<Placement, 4> in = all(call.in.size(), Replicate());
    for (const std::size_t i : indices(in))
      if (inputs >> i & 1u) in[i] = Partial(kind);
    add(std::move(in), all<2>(call.out.size(), Partial(kind)), signatures);
  }
}

// ---- one index per line ----

void index_select_signatures(const RuleCall& call, Signatures& signatures) {
  const int dim = call.attrs.as<DimAttrs>().dim;
  for (const int d : up_to(call.ndim(0)))
    if (d != dim) add({Shard(d), Replicate()}, {Shard(d)}, signatures);
  add({Replicate(), Shard(0)}, {Shard(dim)}, signatures);
  add_moved_terms(call, 0b01, signatures);
}

void index_select_backward_signatures(const RuleCall& call, Signatures& signatures) {
  const int dim = call.attrs.as<PadToAttrs>().dim;
  for (const int d : up_to(call.ndim(0)))
    if (d != dim) add({Shard(d), Replicate()}, {Shard(d)}, signatures);
  add({Shard(dim), Shard(0)}, {Partial()}, signatures);
  add_linear_signatures(call, 0, signatures);
}

// ---- one index per element ----

constexpr std::size_t kIndex = 1;

void gather_signatures(const RuleCall& call, Signatures& signatures) {
  const int dim = call.attrs.as<DimAttrs>().dim;
  refuse_part(call, kIndex, dim);
  add_common_dims(call, call.shape(0), call.shape(1), dim, signatures);
  if (call.ndim(0) > 0) add({Replicate(), Shard(dim)}, {Shard(dim)}, signatures);
  add_moved_terms(call, 0b01, signatures);
}

void gather_backward_signatures(const RuleCall& call, Signatures& signatures) {
  const auto& attrs = call.attrs.as<GatherBackwardAttrs>();
  add_common_dims(call, attrs.shape, call.shape(1), attrs.dim, signatures);
  add({Shard(attrs.dim), Shard(attrs.dim)}, {Partial()}, signatures);
  add_linear_signatures(call, 0, signatures);
}

Attrs gather_backward_attrs(const LocalCall& local) {
  return GatherBackwardAttrs{local.call.attrs.as<GatherBackwardAttrs>().dim, local.out_shape()};
}

void scatter_signatures(const RuleCall& call, Signatures& signatures) {
  const int dim = call.attrs.as<DimAttrs>().dim;
  refuse_part(call, kIndex, dim);
  add_common_dims(call, call.shape(0), call.shape(1), dim, signatures);
  add_moved_terms(call, 0b101, signatures);
}

void scatter_backward_signatures(const RuleCall& call, Signatures& signatures) {
  add_common_dims(call, call.shape(0), call.shape(1), call.attrs.as<DimAttrs>().dim, signatures);
  add_linear_signatures(call, 0, signatures);
}

void scatter_add_signatures(const RuleCall& call, Signatures& signatures) {
  const int dim = call.attrs.as<DimAttrs>().dim;
  refuse_part(call, kIndex, dim);
  add_common_dims(call, call.shape(0), call.shape(1), dim, signatures);
  add({Partial(), Shard(dim), Shard(dim)}, {Partial()}, signatures);
  add_jointly_linear_signatures(call, 0b101, signatures);
}

void topk_signatures(const RuleCall& call, Signatures& signatures) {
  add_common_dims(call, call.shape(0), call.out[0].shape, call.attrs.as<TopKAttrs>().dim, signatures);
}

}  // namespace

void register_gather_rules(AddRule add) {
  add(op::index_select, {.signatures = index_select_signatures});
  add(op::index_select_backward, {.signatures = index_select_backward_signatures});
  add(op::gather, {.signatures = gather_signatures});
  add(op::gather_backward, {.signatures = gather_backward_signatures, .attrs = gather_backward_attrs});
  add(op::scatter, {.signatures = scatter_signatures});
  add(op::scatter_backward, {.signatures = scatter_backward_signatures});
  add(op::scatter_add, {.signatures = scatter_add_signatures});
  add(op::topk, {.signatures = topk_signatures});
}

}  // namespace sherd
