// Rows that alias or move elements and change no value. Sharding follows its dim, and Partial of any kind stays
// Partial.
//
//   permute [4,6] -> [6,4]       S0 -> S1   S1 -> S0
//   expand  [4,1] -> [3,4,6]     S0 -> S1   R -> S0   R -> S2      each rank repeats as often as its shard needs
//   narrow, pad_to               dims other than the narrowed one; that one too if nothing is left out
//   cat                          dims other than the joined one, all inputs alike
//
//   view  [4,6,5,7] -> [4,15,2,7]    both shapes are split into groups of equal product:  4 | 6 5 | 7  ->  4 | 15 2 | 7
//         S0 -> S0    S3 -> S3       a dim of unchanged size keeps any sharding
//         S1 -> S1, on 3 ranks       of others the leftmost may be sharded, if its shards are full slices on both sides
#include <algorithm>
#include <numeric>

#include "dtensor/rule.h"
#include "runtime/op/rows/view.h"
#include "runtime/op/rows/view_attrs.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

// A row that only moves values commutes with any reduction: Partial in, Partial out.
void add_terms(const RuleCall& call, Signatures& signatures) {
  for (ReduceKind kind : {ReduceKind::sum, ReduceKind::avg, ReduceKind::max, ReduceKind::min, ReduceKind::product})
    signatures.push_back({all(call.in.size(), Partial(kind)), {Partial(kind)}, 0});
}

// Shards dim `in` of every input and dim `out` of the result.
void add_cut(const RuleCall& call, int in, int out, Signatures& signatures, std::int64_t even = 0) {
  signatures.push_back({all(call.in.size(), Shard(in)), {Shard(out)}, even});
}

void add_all_dims_but(const RuleCall& call, int dim, Signatures& signatures) {
  for (const int d : up_to(call.ndim(0)))
    if (d != dim) add_cut(call, d, d, signatures);
}

// ---- view ----

std::vector<int> dims_where(const Shape& shape, bool is_one) {
  std::vector<int> dims;
  for (const int d : indices(shape))
    if ((shape[d] == 1) == is_one) dims.push_back(d);
  return dims;
}

void add_groups(const RuleCall& call, Signatures& signatures) {
  const Shape &from = call.shape(0), &to = call.out[0].shape;
  const std::vector<int> a = dims_where(from, false), b = dims_where(to, false);
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    const int in = a[i++], out = b[j++];
    std::int64_t in_size = from[in], out_size = to[out];
    const bool stays = in_size == out_size;
    while (in_size != out_size) {
      // If there are no elements, the two products may never become equal.
      if (in_size < out_size && i < a.size()) in_size *= from[a[i++]];
      else if (j < b.size()) out_size *= to[b[j++]];
      else return;
    }
    add_cut(call, in, out, signatures, stays ? 0 : std::gcd(from[in], to[out]));
  }
}

void view_signatures(const RuleCall& call, Signatures& signatures) {
  add_groups(call, signatures);
  // A sharded dim of one element is whole on one rank and empty on the others, whatever the other dims are.
  const std::vector<int> a = dims_where(call.shape(0), true), b = dims_where(call.out[0].shape, true);
  for (const std::size_t k : up_to(std::min(a.size(), b.size()))) add_cut(call, a[k], b[k], signatures);
  add_terms(call, signatures);
}

Attrs local_shape(const LocalCall& local) { return ShapeAttrs{local.out_shape()}; }

bool is_even(const LocalCall& local) {
  const Shape& whole = local.call.shape(0);
  for (const int d : indices(whole))
    if (whole[d] % local.in[0]->num_shards(d) != 0) return false;
  return true;
}

// All ranks must take the same decision, because they capture one program. If shards differ in size, the strides of
// one may happen to allow a view that the others' do not; then a tensor is viewed without a copy only if it is dense.
Tensors run_view(const LocalCall& local, AttrsView attrs, std::span<Tensor> in) {
  Strides strides;
  const Tensor& x = in[0];
  const bool shows = is_even(local) && view_strides(x.shape(), x.strides(), attrs.as<ShapeAttrs>().shape, strides);
  if (!shows) in[0] = dense_below(std::move(in[0]));
  return below(local.call.op, attrs, in);
}

// ---- the others ----

void permute_signatures(const RuleCall& call, Signatures& signatures) {
  const Dims& order = call.attrs.as<PermuteAttrs>().order;
  for (const int d : indices(order)) add_cut(call, static_cast<int>(order[d]), d, signatures);
  add_terms(call, signatures);
}

void expand_signatures(const RuleCall& call, Signatures& signatures) {
  const Shape &from = call.shape(0), &to = call.out[0].shape;
  const int lead = to.size() - from.size();
  for (const int d : indices(to)) {
    if (d >= lead && from[d - lead] == to[d]) add_cut(call, d - lead, d, signatures);
    else signatures.push_back({{Replicate()}, {Shard(d)}, 0});
  }
  add_terms(call, signatures);
}

void narrow_signatures(const RuleCall& call, Signatures& signatures) {
  const int dim = call.attrs.as<NarrowAttrs>().dim;
  add_all_dims_but(call, dim, signatures);
  if (call.shape(0)[dim] == call.out[0].shape[dim]) add_cut(call, dim, dim, signatures);
  add_terms(call, signatures);
}

Attrs narrow_attrs(const LocalCall& local) {
  auto attrs = local.call.attrs.as<NarrowAttrs>();
  attrs.length = local.out_shape()[attrs.dim];
  return attrs;
}

// Zeros are added around the values: sums and averages may come after the row.
void pad_to_signatures(const RuleCall& call, Signatures& signatures) {
  const int dim = call.attrs.as<PadToAttrs>().dim;
  add_all_dims_but(call, dim, signatures);
  if (call.shape(0)[dim] == call.out[0].shape[dim]) add_cut(call, dim, dim, signatures);
  add_linear_signatures(call, 0, signatures);
}

Attrs pad_to_attrs(const LocalCall& local) {
  auto attrs = local.call.attrs.as<PadToAttrs>();
  attrs.size = local.out_shape()[attrs.dim];
  return attrs;
}

void cat_signatures(const RuleCall& call, Signatures& signatures) {
  add_all_dims_but(call, call.attrs.as<DimAttrs>().dim, signatures);
  add_terms(call, signatures);
}

// Transfers between devices take dense tensors.
Tensors run_to_device(const LocalCall& local, AttrsView attrs, std::span<Tensor> in) {
  in[0] = dense_below(std::move(in[0]));
  return below(local.call.op, attrs, in);
}

}  // namespace

void register_view_rules(AddRule add) {
  add(op::view, {.signatures = view_signatures, .attrs = local_shape, .run = run_view});
  add(op::permute, {.signatures = permute_signatures});
  add(op::expand, {.signatures = expand_signatures, .attrs = local_shape});
  add(op::narrow, {.signatures = narrow_signatures, .attrs = narrow_attrs});
  add(op::pad_to, {.signatures = pad_to_signatures, .attrs = pad_to_attrs});
  add(op::cat, {.signatures = cat_signatures});
  add(op::to_device, {.run = run_to_device, .derived = true});
}

}  // namespace sherd
