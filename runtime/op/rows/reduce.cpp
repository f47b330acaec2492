// Reduction rows. A bit mask says which dims are reduced; the result keeps them as size 1 or drops them. The gradient
// of a reduction first gets the dropped dims back (keep_shape), then broadcasts.
#include <limits>

#include "runtime/op/core/infer.h"
#include "runtime/op/rows/reduce_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "runtime/op/rows/vjp.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

bool has(std::uint64_t mask, int dim) { return (mask >> dim) & 1u; }

Shape reduced_shape(const Shape& shape, std::uint64_t mask, bool keep_dims) {
  Shape result;
  for (const int d : indices(shape))
    if (!has(mask, d)) result.push_back(shape[d]);
    else if (keep_dims) result.push_back(1);
  return result;
}

std::int64_t reduced_count(const Shape& shape, std::uint64_t mask) {
  std::int64_t count = 1;
  for (const int d : indices(shape))
    if (has(mask, d)) count *= shape[d];
  return count;
}

// ---- infer ----

Metas infer_reduced(const InferCall& call, DType dtype) {
  const auto& attrs = call.attrs.as<ReduceAttrs>();
  return one_output(reduced_shape(required(call, 0).shape, attrs.dims, attrs.keep_dims), dtype);
}

DType sum_dtype(DType dtype) { return is_floating(dtype) ? dtype : DType::i64; }

Metas infer_sum(const InferCall& call) { return infer_reduced(call, sum_dtype(required(call, 0).dtype)); }

Metas infer_mean(const InferCall& call) {
  const DType dtype = required(call, 0).dtype;
  check(is_floating(dtype), "mean of {}: integers have no mean of their dtype; cast to a float first", call.in[0]);
  return infer_reduced(call, dtype);
}

// The outputs: variance, and mean in the dtype of statistics.
Metas infer_var(const InferCall& call) {
  const TensorMeta& x = required(call, 0);
  check(is_floating(x.dtype), "var of {}: integers have no variance of their dtype; cast to a float first", x);
  check(call.attrs.as<VarAttrs>().correction >= 0, "var with correction {}; it is not negative",
        call.attrs.as<VarAttrs>().correction);
  Metas metas = infer_reduced(call, x.dtype);
  metas.push_back({metas[0].shape, x.dtype == DType::f64 ? DType::f64 : DType::f32});
  return metas;
}

Metas infer_bool(const InferCall& call) { return infer_reduced(call, DType::boolean); }

Metas infer_extremum(const InferCall& call) {
  const TensorMeta& x = required(call, 0);
  const std::uint64_t mask = call.attrs.as<ReduceAttrs>().dims;
  check(reduced_count(x.shape, mask) > 0 || numel(reduced_shape(x.shape, mask, false)) == 0,
        "{} over no elements of {} has no value", call.op.name, x);
  return infer_reduced(call, x.dtype);
}

Metas infer_argmax(const InferCall& call) {
  Metas metas = infer_extremum(call);
  metas[0].dtype = DType::i64;
  return metas;
}

Metas infer_sum_to(const InferCall& call) {
  const TensorMeta& x = required(call, 0);
  const Shape& to = call.attrs.as<SumToAttrs>().shape;
  check(to.size() <= x.ndim() && broadcast(to, x.shape) == x.shape, "sum_to: {} does not broadcast to {}", to, x.shape);
  return one_output(to, sum_dtype(x.dtype));
}

// ---- vjp ----

// `t`, which has the reduced shape, with the reduced dims put back as size 1.
Tensor keep_shape(const VjpCall& c, Tensor t) {
  return reshape(std::move(t), reduced_shape(c.in_shape(0), c.attrs.as<ReduceAttrs>().dims, true));
}

void sum_vjp(VjpCall& c) { c.give(0, op::expand, ShapeAttrs{c.in_shape(0)}, keep_shape(c, c.grad())); }

void mean_vjp(VjpCall& c) {
  const auto count = static_cast<double>(reduced_count(c.in_shape(0), c.attrs.as<ReduceAttrs>().dims));
  c.give(0, op::expand, ShapeAttrs{c.in_shape(0)}, mul(keep_shape(c, c.grad()), 1 / count));
}

// d var / d x_i = 2 (x_i - mean) / (n - correction)
void var_vjp(VjpCall& c) {
  const auto& attrs = c.attrs.as<VarAttrs>();
  const auto left = static_cast<double>(reduced_count(c.in_shape(0), attrs.reduce.dims) - attrs.correction);
  const Tensor mean = keep_shape(c, c.out(1));
  const double factor = left > 0 ? 2 / left : std::numeric_limits<double>::quiet_NaN();
  const Tensor slope = mul(cast(keep_shape(c, c.grad()), mean.dtype()), factor);
  give_back(c, 0, mul(sub(c.in(0), mean), slope));
}

void sum_to_vjp(VjpCall& c) { c.give(0, op::expand, ShapeAttrs{c.in_shape(0)}, c.grad()); }

// Equal extremes share the gradient.
void extremum_vjp(VjpCall& c) {
  const Tensor best = cast(equal(c.in(0), keep_shape(c, c.out())), c.in_dtype(0));
  const ReduceAttrs attrs{c.attrs.as<ReduceAttrs>().dims, true};
  c.give(0, op::mul, {}, best, div(keep_shape(c, c.grad()), call(op::sum, attrs, best)));
}

// d prod / d x_i is the product of the others: with one zero only its element has a gradient, with two none has.
void prod_vjp(VjpCall& c) {
  const ReduceAttrs attrs{c.attrs.as<ReduceAttrs>().dims, true};
  const DType dtype = c.in_dtype(0);
  const Tensor zero = full({}, 0, dtype);
  const Tensor is_zero = equal(c.in(0), zero);
  const Tensor zeros_before = call(op::sum, attrs, is_zero);  // i64
  const Tensor factors = where(is_zero, full({}, 1, dtype), c.in(0));
  const Tensor others = div(call(op::prod, attrs, factors), factors);
  const Tensor left = sub(zeros_before, cast(is_zero, DType::i64));  // zeros among the others
  const Tensor slope = where(equal(left, full({}, 0, DType::i64)), others, zero);
  c.give(0, op::mul, {}, slope, keep_shape(c, c.grad()));
}

std::uint64_t mask_of(const std::vector<int>& dims, int ndim) {
  if (dims.empty()) return (std::uint64_t{1} << ndim) - 1;
  std::uint64_t mask = 0;
  for (int d : dims) {
    if (ndim == 0) {
      normalize_dim(d, ndim);
      continue;
    }
    const std::uint64_t bit = std::uint64_t{1} << normalize_dim(d, ndim);
    check((mask & bit) == 0, "dim {} is named twice in a reduction", d);
    mask |= bit;
  }
  return mask;
}

Tensor reduce(const Op& op, Tensor x, const std::vector<int>& dims, bool keep_dims) {
  if (!x.defined()) fail_empty(fmt::format("input 0 of {}", op.name));
  const std::uint64_t mask = mask_of(dims, x.ndim());
  return call(op, ReduceAttrs{mask, keep_dims}, std::move(x));
}

constexpr Needs kOfInput{.inputs = 0b1};
constexpr Needs kOfBoth{.inputs = 0b1, .outputs = 0b1};
constexpr std::string_view kNoSlope = "integer or bool result";

constexpr Op reduction(std::string_view name, std::string_view doc, Infer infer, Needs needs, Vjp vjp) {
  return {.name = name,
          .doc = doc,
          .attrs = &attr_kind<ReduceAttrs>,
          .infer = infer,
          .needs = needs,
          .vjp = vjp,
          .no_gradient = vjp ? "" : kNoSlope};
}

// A reduction whose kernel can also add to what the output holds.
constexpr Op linear_reduction(std::string_view name, std::string_view doc, Infer infer, Vjp vjp,
                              const AttrKind& attrs = attr_kind<ReduceAttrs>) {
  return {.name = name,
          .doc = doc,
          .attrs = &attrs,
          .infer = infer,
          .traits = {.linear = true, .accumulates = true},
          .vjp = vjp};
}

}  // namespace

constinit const Op op::sum =
    linear_reduction("sum", "x -> sum over dims; bool and integers sum to i64.", infer_sum, sum_vjp);
constinit const Op op::sum_to =
    linear_reduction("sum_to", "x -> sum over the dims along which `shape` broadcasts to x.", infer_sum_to, sum_to_vjp,
                     attr_kind<SumToAttrs>);
constinit const Op op::mean = linear_reduction("mean", "x -> mean over dims.", infer_mean, mean_vjp);

constinit const Op op::var{
    .name = "var",
    .doc =
        "x -> sum over dims of squared distances from the mean, divided by n - correction; and the mean, f32 "
        "(f64 of f64).",
    .attrs = &attr_kind<VarAttrs>,
    .infer = infer_var,
    .needs = {.inputs = 0b1, .outputs = 0b10},
    .vjp = var_vjp,
};

constinit const Op op::max =
    reduction("max", "x -> largest value over dims; NaN wins.", infer_extremum, kOfBoth, extremum_vjp);
constinit const Op op::min =
    reduction("min", "x -> smallest value over dims; NaN wins.", infer_extremum, kOfBoth, extremum_vjp);
constinit const Op op::prod =
    reduction("prod", "x -> product over dims; bool and integers multiply to i64.", infer_sum, kOfInput, prod_vjp);
constinit const Op op::any = reduction("any", "x -> bool: some element is not zero.", infer_bool, {}, nullptr);
constinit const Op op::all = reduction("all", "x -> bool: no element is zero.", infer_bool, {}, nullptr);
constinit const Op op::argmax = reduction(
    "argmax", "x -> i64 position of the first largest value along one dim; NaN wins.", infer_argmax, {}, nullptr);

void register_reduce(OpTable& table) {
  table.add(
      {&op::sum, &op::sum_to, &op::mean, &op::var, &op::max, &op::min, &op::prod, &op::any, &op::all, &op::argmax});
}

Tensor sum(Tensor x, std::vector<int> dims, bool keep_dims) { return reduce(op::sum, std::move(x), dims, keep_dims); }
Tensor mean(Tensor x, std::vector<int> dims, bool keep_dims) { return reduce(op::mean, std::move(x), dims, keep_dims); }
Tensor max(Tensor x, std::vector<int> dims, bool keep_dims) { return reduce(op::max, std::move(x), dims, keep_dims); }
Tensor min(Tensor x, std::vector<int> dims, bool keep_dims) { return reduce(op::min, std::move(x), dims, keep_dims); }
Tensor prod(Tensor x, std::vector<int> dims, bool keep_dims) { return reduce(op::prod, std::move(x), dims, keep_dims); }
Tensor any(Tensor x, std::vector<int> dims, bool keep_dims) { return reduce(op::any, std::move(x), dims, keep_dims); }
Tensor all(Tensor x, std::vector<int> dims, bool keep_dims) { return reduce(op::all, std::move(x), dims, keep_dims); }

Tensor argmax(Tensor x, int dim, bool keep_dims) { return reduce(op::argmax, std::move(x), {dim}, keep_dims); }

Tensor var(Tensor x, std::vector<int> dims, int correction, bool keep_dims) {
  if (!x.defined()) fail_empty("input 0 of var");
  return call(op::var, VarAttrs{{mask_of(dims, x.ndim()), keep_dims}, correction}, std::move(x));
}

Tensor sum_to(Tensor x, const Shape& shape) {
  if (x.shape() == shape) return x;
  return call(op::sum_to, SumToAttrs{shape}, std::move(x));
}

}  // namespace sherd
