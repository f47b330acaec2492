// Reductions. A dim that is kept keeps its sharding. Along a dim that is reduced every rank reduces its shard, and the
// result is Partial.
//
//   x [5,6] over dim 0      sum, mean    max, any    min, all    prod    argmax
//   S1  ->                  S0           S0          S0          S0      S0        (S1 with keep_dims)
//   S0  ->                  P            Pmax        Pmin        Pprod   R         two small all-reduces
//   P   ->                  P            Pmax        Pmin        Pprod             of the row's own kind
//
//   var: dims that stay only, for variance and mean
//
// An empty shard must contribute a value that changes no result. Rows whose result over no elements is not such a
// value get one more element from `with_neutral`: on all ranks if one of them needs it, because all ranks run one
// program.
#include <algorithm>
#include <bit>
#include <limits>

#include "dtensor/rule.h"
#include "runtime/op/rows/create_attrs.h"
#include "runtime/op/rows/pointwise_attrs.h"
#include "runtime/op/rows/reduce_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

using Kind = ReduceKind;

bool is_reduced(std::uint64_t mask, int dim) { return (mask >> dim) & 1u; }

// ---- signatures ----

void add_one(Placement in, Placement out, Signatures& signatures) { signatures.push_back({{in}, {out}, 0}); }

// A signature for each dim; `of_reduced` is the result's placement where a reduced dim is sharded.
void add_dims(const RuleCall& call, Placement of_reduced, Signatures& signatures) {
  const auto& attrs = call.attrs.as<ReduceAttrs>();
  int kept = 0;
  for (const int d : up_to(call.ndim(0))) {
    if (is_reduced(attrs.dims, d)) {
      add_one(Shard(d), of_reduced, signatures);
      kept += attrs.keep_dims;
    } else {
      add_one(Shard(d), Shard(kept++), signatures);
    }
  }
}

// If the result's type is wider, partial values would be added up in the narrower type, where the sum may not fit.
void add_linear(const RuleCall& call, Signatures& signatures) {
  if (call.in[0].dtype == call.out[0].dtype) add_linear_signatures(call, 0, signatures);
}

void sum_signatures(const RuleCall& call, Signatures& signatures) {
  add_dims(call, Partial(), signatures);
  add_linear(call, signatures);
}

template <Kind kind>
void own_kind_signatures(const RuleCall& call, Signatures& signatures) {
  add_dims(call, Partial(kind), signatures);
  if (call.in[0].dtype == call.out[0].dtype) add_one(Partial(kind), Partial(kind), signatures);
}

void argmax_signatures(const RuleCall& call, Signatures& signatures) { add_dims(call, Replicate(), signatures); }

// Shapes are aligned at the right. Dims in front of the result's, and those of which the result has one element, are
// summed.
void sum_to_signatures(const RuleCall& call, Signatures& signatures) {
  const Shape &from = call.shape(0), &to = call.out[0].shape;
  const int lead = from.size() - to.size();
  for (const int d : indices(from))
    add_one(Shard(d), d >= lead && from[d] == to[d - lead] ? Shard(d - lead) : Partial(), signatures);
  add_linear(call, signatures);
}

// Both results, variance and mean, keep the dims that are not reduced.
void var_signatures(const RuleCall& call, Signatures& signatures) {
  const ReduceAttrs& attrs = call.attrs.as<VarAttrs>().reduce;
  int kept = 0;
  for (const int d : up_to(call.ndim(0))) {
    const bool goes = is_reduced(attrs.dims, d);
    if (!goes) signatures.push_back({{Shard(d)}, all<2>(2, Shard(kept)), 0});
    kept += !goes || attrs.keep_dims;
  }
}

Attrs sum_to_attrs(const LocalCall& local) { return SumToAttrs{local.out_shape()}; }

// ---- empty shards ----

// Whether sharding n elements over these axes, one after the other, leaves some rank without elements.
bool leaves_empty_part(const Spec& spec, std::span<const int> axes, std::int64_t n) {
  if (axes.empty() || n == 0) return n == 0;
  const int parts = spec.axis_size(axes[0]);
  const std::int64_t first = chunk_range(n, parts, 0).size(), last = chunk_range(n, parts, parts - 1).size();
  const std::int64_t between = n % first;  // size of the one chunk that is neither full nor empty
  return last == 0 || leaves_empty_part(spec, axes.subspan(1), first) ||
         (between > 0 && leaves_empty_part(spec, axes.subspan(1), between));
}

Tensor full(const Shape& shape, double value, const Tensor& like) {
  return std::move(below(op::full, FullAttrs{shape, value, like.dtype(), like.device()}, std::span<Tensor>{})[0]);
}

// The smallest value of x's type, so that it changes no maximum; below, the largest.
Tensor lowest(const Shape& shape, const Tensor& x) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (is_floating(x.dtype())) return full(shape, -kInfinity, x);
  if (x.dtype() == DType::i64) return full(shape, -0x1p63, x);
  return full(shape, x.dtype() == DType::i32 ? -0x1p31 : 0, x);
}
Tensor highest(const Shape& shape, const Tensor& x) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (is_floating(x.dtype())) return full(shape, kInfinity, x);
  if (x.dtype() == DType::i64)
    return below(op::sub, {}, full(shape, -1, x), lowest(shape, x));  // 2^63 - 1 is no double
  return full(shape, x.dtype() == DType::i32 ? 0x1p31 - 1 : x.dtype() == DType::u8 ? 255 : 1, x);
}
Tensor zero(const Shape& shape, const Tensor& x) { return full(shape, 0, x); }

// x with one more element along each reduced dim of which some rank's shard is empty.
template <Tensor (*neutral)(const Shape&, const Tensor&)>
Tensor with_neutral(const LocalCall& local, Tensor x) {
  const std::uint64_t mask = local.call.attrs.as<ReduceAttrs>().dims;
  const Spec& spec = *local.in[0];
  for (int d = 0; d < x.ndim(); ++d) {
    if (!is_reduced(mask, d) || spec.axes_of(d).empty()) continue;
    if (!leaves_empty_part(spec, spec.axes_of(d), local.call.shape(0)[d])) continue;
    Shape slice = x.shape();
    slice[d] = 1;
    Tensor more = neutral(slice, x);
    x = below(op::cat, DimAttrs{d}, std::move(x), std::move(more));
  }
  return x;
}

// ---- programs ----

template <Tensor (*neutral)(const Shape&, const Tensor&)>
Tensors run_extremum(const LocalCall& local, AttrsView attrs, std::span<Tensor> in) {
  in[0] = with_neutral<neutral>(local, std::move(in[0]));
  return below(local.call.op, attrs, in);
}

std::int64_t reduced_count(const Shape& shape, std::uint64_t mask) {
  std::int64_t count = 1;
  for (const int d : indices(shape))
    if (is_reduced(mask, d)) count *= shape[d];
  return count;
}

// The means of the shards, each weighted by its fraction of the elements. Sums would leave the range of f16.
Tensors run_mean(const LocalCall& local, AttrsView attrs, std::span<Tensor> in) {
  const std::uint64_t mask = attrs.as<ReduceAttrs>().dims;
  bool is_cut = false;
  for (const int d : up_to(in[0].ndim())) is_cut |= is_reduced(mask, d) && !local.in[0]->axes_of(d).empty();
  if (!is_cut) return below(local.call.op, attrs, in);
  in[0] = with_neutral<zero>(local, std::move(in[0]));
  const auto share = static_cast<double>(reduced_count(in[0].shape(), mask)) /
                     static_cast<double>(reduced_count(local.call.shape(0), mask));
  Tensors means = below(local.call.op, attrs, in);
  return below(op::mul_scalar, ScalarAttrs{share}, std::span<Tensor>(means));
}

// The first position of the largest value. Each rank finds its largest value and where that is; among the ranks whose
// value is the largest of all, the smallest position is taken. A NaN is larger than any value.
Tensors run_argmax(const LocalCall& local, AttrsView attrs, std::span<Tensor> in) {
  const std::uint64_t mask = attrs.as<ReduceAttrs>().dims;
  const Spec& spec = *local.in[0];
  const int dim = mask ? std::countr_zero(mask) : 0;
  const std::span<const int> axes = spec.axes_of(dim);
  if (mask == 0 || axes.empty()) return below(local.call.op, attrs, in);
  const std::int64_t size = local.call.shape(0)[dim];
  const Tensor x = with_neutral<lowest>(local, std::move(in[0]));
  const Tensor best = below(op::max, attrs, x);
  Tensor at = below(local.call.op, attrs, x);
  // Ranks without elements give `size` or more, which is no valid position and so never the smallest.
  at = below(op::add_scalar, ScalarAttrs{static_cast<double>(spec.local_range(dim, size).begin)}, std::move(at));
  const DeviceMesh mesh = spec.mesh();
  const Tensor top = reduce_over(best, mesh, axes, Kind::max);
  const Tensor is_top =
      below(op::logical_or, {}, below(op::equal, {}, best, top), below(op::not_equal, {}, best, best));
  const Tensor none = full({}, static_cast<double>(size), at);
  Tensors result;
  result.push_back(reduce_over(below(op::where, {}, is_top, at, none), mesh, axes, Kind::min));
  return result;
}

}  // namespace

void register_reduce_rules(AddRule add) {
  add(op::sum, {.signatures = sum_signatures});
  add(op::sum_to, {.signatures = sum_to_signatures, .attrs = sum_to_attrs});
  add(op::mean, {.signatures = sum_signatures, .run = run_mean});
  add(op::max, {.signatures = own_kind_signatures<Kind::max>, .run = run_extremum<lowest>});
  add(op::min, {.signatures = own_kind_signatures<Kind::min>, .run = run_extremum<highest>});
  add(op::prod, {.signatures = own_kind_signatures<Kind::product>});
  add(op::any, {.signatures = own_kind_signatures<Kind::max>});
  add(op::all, {.signatures = own_kind_signatures<Kind::min>});
  add(op::var, {.signatures = var_signatures});
  add(op::argmax, {.signatures = argmax_signatures, .run = run_argmax});
}

}  // namespace sherd
