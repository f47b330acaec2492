// View rows: infer gives shape, strides and offset of an alias; no kernel. All other ways to look at a tensor
// (transpose, select, split, ...) are compositions of the four rows. `copy` is here because it makes a view dense.
#include "runtime/op/rows/view.h"

#include <numeric>

#include "runtime/op/core/infer.h"
#include "runtime/op/rows/create_attrs.h"
#include "runtime/op/rows/pointwise_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "runtime/op/rows/vjp.h"
#include "runtime/tensor/indices.h"

namespace sherd {

// Both shapes are walked from the back; a run of old dims without gaps between them is divided into new ones.
bool view_strides(const Shape& shape, const Strides& strides, const Shape& to, Strides& result) {
  result = Dims::filled(to.size(), 1);
  if (numel(shape) == 0 || shape.empty()) {
    result = contiguous_strides(to);
    return true;
  }
  int d = to.size() - 1;
  std::int64_t base = strides.back(), old_run = 1, new_run = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    old_run *= shape[i];
    const bool run_ends = i == 0 || (shape[i - 1] != 1 && strides[i - 1] != old_run * base);
    if (!run_ends) continue;
    while (d >= 0 && (new_run < old_run || to[d] == 1)) {
      result[d] = new_run * base;
      new_run *= to[d--];
    }
    if (new_run != old_run) return false;
    if (i > 0) {
      base = strides[i - 1];
      old_run = new_run = 1;
    }
  }
  return d == -1;
}

namespace {

Metas alias(const TensorMeta& x, const Shape& shape, const Strides& strides, std::int64_t offset) {
  Metas metas = one_output(shape, x.dtype);
  metas[0].strides = strides;
  metas[0].offset = offset;
  return metas;
}

Shape resolve(const Tensor& x, Shape shape) {
  int unknown = -1;
  std::int64_t known = 1;
  for (const int i : indices(shape)) {
    if (shape[i] == -1) {
      check(unknown < 0, "shape {}: only one dim may be -1", shape);
      unknown = i;
    } else {
      check(!__builtin_mul_overflow(known, shape[i], &known), "shape {} has more elements than can be counted", shape);
    }
  }
  if (unknown < 0) return shape;
  check(known > 0 && x.numel() % known == 0, "{} does not divide into shape {}", x, shape);
  shape[unknown] = x.numel() / known;
  return shape;
}

// ---- infer ----

Metas infer_view(const InferCall& call) {
  const TensorMeta& x = required(call, 0);
  const Shape& to = call.attrs.as<ShapeAttrs>().shape;
  for (std::int64_t size : to) check(size >= 0, "a shape has no negative dims, got {}", to);
  check(numel(to) == x.numel(), "view of {} as {}: {} elements, not {}", x, to, x.numel(), numel(to));
  Strides strides;
  check(view_strides(x.shape, x.steps(), to, strides),
        "view of {} with strides {} as {} would have to move elements; use reshape() or contiguous()", x, x.steps(),
        to);
  return alias(x, to, strides, x.offset);
}

Metas infer_permute(const InferCall& call) {
  const TensorMeta& x = required(call, 0);
  const Dims& order = call.attrs.as<PermuteAttrs>().order;
  unsigned seen = 0;
  Shape shape;
  Strides strides;
  for (std::int64_t d : order) {
    check(d >= 0 && d < x.ndim() && ((seen >> d) & 1u) == 0 && order.size() == x.ndim(),
          "permute of {} by {}: every dim must be named once", x, order);
    seen |= 1u << d;
    shape.push_back(x.shape[static_cast<int>(d)]);
    strides.push_back(x.step(static_cast<int>(d)));
  }
  check(order.size() == x.ndim(), "permute of {} by {}: every dim must be named once", x, order);
  return alias(x, shape, strides, x.offset);
}

Metas infer_expand(const InferCall& call) {
  const TensorMeta& x = required(call, 0);
  const Shape& to = call.attrs.as<ShapeAttrs>().shape;
  const int lead = to.size() - x.ndim();
  bool fits = lead >= 0;
  for (int d = 0; fits && d < x.ndim(); ++d) fits = x.shape[d] == to[lead + d] || x.shape[d] == 1;
  check(fits, "{} does not expand to {}", x, to);
  return alias(x, to, broadcast_strides(x.shape, x.steps(), to), x.offset);
}

Metas infer_narrow(const InferCall& call) {
  const TensorMeta& x = required(call, 0);
  const auto& attrs = call.attrs.as<NarrowAttrs>();
  check(attrs.dim >= 0 && attrs.dim < x.ndim(), "narrow: dim {} of {}", attrs.dim, x);
  const std::int64_t size = x.shape[attrs.dim];
  check(attrs.start >= 0 && attrs.length >= 0 && attrs.start + attrs.length <= size,
        "narrow: {} elements from {} on do not lie in dim {} of {}", attrs.length, attrs.start, attrs.dim, x);
  Shape shape = x.shape;
  shape[attrs.dim] = attrs.length;
  return alias(x, shape, x.steps(), x.offset + attrs.start * x.step(attrs.dim));
}

// ---- vjp ----

void view_vjp(VjpCall& c) { c.give(0, reshape(c.grad(), c.in_shape(0))); }

void permute_vjp(VjpCall& c) {
  const Dims& order = c.attrs.as<PermuteAttrs>().order;
  Dims inverse = Dims::filled(order.size(), 0);
  for (const int i : indices(order)) inverse[static_cast<int>(order[i])] = i;
  c.give(0, op::permute, PermuteAttrs{inverse}, c.grad());
}

void expand_vjp(VjpCall& c) { c.give_summed(0, c.grad()); }

void narrow_vjp(VjpCall& c) {
  const auto& attrs = c.attrs.as<NarrowAttrs>();
  c.give(0, op::pad_to, PadToAttrs{attrs.dim, attrs.start, c.in_shape(0)[attrs.dim]}, c.grad());
}

void copy_vjp(VjpCall& c) { c.give(0, c.grad()); }

constexpr Traits kView{.view = true, .linear = true};

}  // namespace

constinit const Op op::view{
    .name = "view",
    .doc = "x -> the same elements in row-major order as another shape.",
    .attrs = &attr_kind<ShapeAttrs>,
    .infer = infer_view,
    .traits = kView,
    .vjp = view_vjp,
};

constinit const Op op::permute{
    .name = "permute",
    .doc = "x -> dims in another order.",
    .attrs = &attr_kind<PermuteAttrs>,
    .infer = infer_permute,
    .traits = kView,
    .vjp = permute_vjp,
};

constinit const Op op::expand{
    .name = "expand",
    .doc = "x -> repeated along dims of size 1 and new leading dims.",
    .attrs = &attr_kind<ShapeAttrs>,
    .infer = infer_expand,
    .traits = kView,
    .vjp = expand_vjp,
};

constinit const Op op::narrow{
    .name = "narrow",
    .doc = "x -> elements start ... start + length - 1 of one dim.",
    .attrs = &attr_kind<NarrowAttrs>,
    .infer = infer_narrow,
    .traits = kView,
    .vjp = narrow_vjp,
};

constinit const Op op::copy{
    .name = "copy",
    .doc = "x -> a dense copy.",
    .infer = infer_like_first,
    .dims = "...->...",
    .traits = {.linear = true, .accumulates = true, .any_strides = true},
    .algebra = Algebra::moves,
    .vjp = copy_vjp,
};

void register_view(OpTable& table) { table.add({&op::view, &op::permute, &op::expand, &op::narrow, &op::copy}); }

Tensor view(Tensor x, Shape shape) {
  shape = resolve(x, shape);
  return call(op::view, ShapeAttrs{shape}, std::move(x));
}

Tensor reshape(Tensor x, Shape shape) {
  shape = resolve(x, shape);
  if (shape == x.shape()) return x;
  Strides strides;
  const bool aliases = numel(shape) != x.numel() || view_strides(x.shape(), x.strides(), shape, strides);
  return view(aliases ? std::move(x) : contiguous(std::move(x)), shape);
}

Tensor permute(Tensor x, std::vector<int> order) {
  PermuteAttrs attrs;
  for (int d : order) attrs.order.push_back(normalize_dim(d, x.ndim()));
  return call(op::permute, attrs, std::move(x));
}

Tensor transpose(Tensor x, int dim0, int dim1) {
  std::vector<int> order(static_cast<std::size_t>(x.ndim()));
  std::iota(order.begin(), order.end(), 0);
  const auto a = static_cast<std::size_t>(normalize_dim(dim0, x.ndim()));
  const auto b = static_cast<std::size_t>(normalize_dim(dim1, x.ndim()));
  if (a == b) return x;
  std::swap(order[a], order[b]);
  return permute(std::move(x), std::move(order));
}

Tensor expand(Tensor x, const Shape& shape) {
  if (x.shape() == shape) return x;
  return call(op::expand, ShapeAttrs{shape}, std::move(x));
}

Tensor unsqueeze(Tensor x, int dim) {
  Shape shape = x.shape();
  shape.insert(normalize_dim(dim, x.ndim() + 1), 1);
  return view(std::move(x), shape);
}

Tensor squeeze(Tensor x, int dim) {
  const int d = normalize_dim(dim, x.ndim());
  if (x.ndim() == 0 || x.shape()[d] != 1) return x;
  Shape shape = x.shape();
  shape.erase(d);
  return view(std::move(x), shape);
}

Tensor flatten(Tensor x, int first_dim, int last_dim) {
  const int first = normalize_dim(first_dim, x.ndim()), last = normalize_dim(last_dim, x.ndim());
  check(first <= last, "flatten of {}: the first dim {} lies behind the last {}", x, first_dim, last_dim);
  Shape shape;
  std::int64_t merged = 1;
  for (const int d : up_to(x.ndim())) {
    if (d < first || d > last) shape.push_back(x.shape()[d]);
    else merged *= x.shape()[d];
    if (d == last) shape.push_back(merged);
  }
  if (x.ndim() == 0) shape.push_back(1);
  return reshape(std::move(x), shape);
}

Tensor narrow(Tensor x, int dim, std::int64_t start, std::int64_t length) {
  const NarrowAttrs attrs{normalize_dim(dim, x.ndim()), start, length};
  return call(op::narrow, attrs, std::move(x));
}

Tensor select(Tensor x, int dim, std::int64_t index) {
  const int d = normalize_dim(dim, x.ndim());
  check(x.ndim() > 0 && index >= -x.shape()[d] && index < x.shape()[d], "select: index {} of dim {} of {}", index, dim,
        x);
  const std::int64_t start = index < 0 ? index + x.shape()[d] : index;
  return squeeze(narrow(std::move(x), d, start, 1), d);
}

std::vector<Tensor> split(const Tensor& x, int dim, const std::vector<std::int64_t>& sizes) {
  const int d = normalize_dim(dim, x.ndim());
  std::int64_t total = 0;
  for (std::int64_t size : sizes) total += size;
  check(x.ndim() > 0 && total == x.shape()[d], "split of {} along dim {}: the sizes sum to {}", x, dim, total);
  std::vector<Tensor> parts;
  std::int64_t start = 0;
  for (std::int64_t size : sizes) {
    parts.push_back(narrow(x, d, start, size));
    start += size;
  }
  return parts;
}

std::vector<Tensor> chunk(const Tensor& x, int dim, int count) {
  check(count >= 1 && x.ndim() > 0, "chunk of {} into {} parts", x, count);
  const std::int64_t size = x.size(dim);
  const std::int64_t each = std::max<std::int64_t>((size + count - 1) / count, 1);
  std::vector<std::int64_t> sizes;
  for (std::int64_t start = 0; start < size || sizes.empty(); start += each)
    sizes.push_back(std::min(each, size - start));
  return split(x, dim, sizes);
}

Tensor contiguous(Tensor x) {
  if (x.is_contiguous()) {
    // From here on the stride of a dim of one element is that of a dense tensor: if the tensor is distributed, shards
    // of other ranks may have more elements along it.
    const Shape shape = x.shape();
    if (x.strides() == contiguous_strides(shape)) return x;  // a move, which ?: would make a copy
    return view(std::move(x), shape);
  }
  return call(op::copy, {}, std::move(x));
}

void copy_into(const Tensor& target, Tensor value, bool accumulate) {
  if (value.device() != target.device()) {
    if (value.dtype() == target.dtype() && target.is_contiguous() && !accumulate && !value.is_meta()) {
      return call_into(op::to_device, TransferAttrs{target.device()}, target, false, contiguous(std::move(value)));
    }
    value = to(std::move(value), target.device());
  }
  if (value.dtype() == target.dtype()) return call_into(op::copy, {}, target, accumulate, std::move(value));
  const CastAttrs attrs{target.dtype()};
  if (target.is_contiguous()) return call_into(op::cast, attrs, target, accumulate, std::move(value));
  Tensor converted = call(op::cast, attrs, std::move(value));
  call_into(op::copy, {}, target, accumulate, std::move(converted));
}

}  // namespace sherd
