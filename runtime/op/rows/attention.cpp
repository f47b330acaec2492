// Scaled dot-product attention and rotary positions. Letters: B batch, H query heads, G heads of keys and values (G
// divides H: grouped queries), Tq and Tk positions, K elements per head.
#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/op/core/infer.h"
#include "runtime/op/core/vjp_call.h"
#include "runtime/op/rows/attention_attrs.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

void check_attention_inputs(const TensorMeta& q, const TensorMeta& k, const TensorMeta& v) {
  check(q.ndim() == 4 && k.ndim() == 4 && v.ndim() == 4, "q, k and v are [B, H, T, K], got {}, {} and {}", q.shape,
        k.shape, v.shape);
  check(q.dtype == k.dtype && k.dtype == v.dtype, "dtypes of q, k and v differ: {}, {} and {}; cast them",
        name(q.dtype), name(k.dtype), name(v.dtype));
  check(is_floating(q.dtype), "q, k and v are floating-point, got {}", name(q.dtype));
  check(k.shape == v.shape, "k and v have one shape, got {} and {}", k.shape, v.shape);
  check(q.size(0) == k.size(0), "batch sizes of q and k differ: {} and {}", q.size(0), k.size(0));
  check(q.size(3) == k.size(3), "q has {} elements per head, k has {}", q.size(3), k.size(3));
  check(k.size(1) > 0 ? q.size(1) % k.size(1) == 0 : q.size(1) == 0, "{} query heads are no multiple of {} key heads",
        q.size(1), k.size(1));
}

// The result has the dim order of `x` in memory, rows of K dense: if x is a projection [B, T, H, K] viewed as
// [B, H, T, K], so is the result, and heads are merged and split without a copy, forward and backward. Ranks with
// different numbers of heads must choose the same order: strides count also along dims of one element, and of two dims
// with equal strides the longer is the outer.
TensorMeta lies_like(const TensorMeta& x) {
  TensorMeta meta;
  meta.shape = x.shape;
  meta.dtype = x.dtype;
  const Strides dense = contiguous_strides(x.shape);
  if (x.strides.empty() || x.strides == dense) return meta;
  std::array<int, 3> order{0, 1, 2};  // outermost first
  std::ranges::stable_sort(
      order, [&x](int a, int b) { return std::pair(x.strides[a], x.size(a)) > std::pair(x.strides[b], x.size(b)); });
  meta.strides = dense;
  std::int64_t stride = x.size(3);
  for (int i = 2; i >= 0; --i) {
    const int d = order[static_cast<std::size_t>(i)];
    meta.strides[d] = stride;
    stride *= std::max<std::int64_t>(x.size(d), 1);
  }
  return meta;
}

Metas infer_attention(const InferCall& c) {
  const TensorMeta& q = required(c, 0);
  check_attention_inputs(q, required(c, 1), required(c, 2));
  Metas metas{lies_like(q)};
  metas.push_back({{q.size(0), q.size(1), q.size(2)}, q.dtype == DType::f64 ? DType::f64 : DType::f32});
  return metas;
}

void attention_vjp(VjpCall& c) {
  Tensor in[] = {c.grad(), c.in(0), c.in(1), c.in(2), c.out(0), c.out(1)};
  Tensors gradients = call_op(op::scaled_dot_product_attention_backward, in, c.attrs);
  for (const std::size_t i : up_to(3)) c.give(i, std::move(gradients[i]));
}

Metas infer_attention_backward(const InferCall& c) {
  const TensorMeta &grad = required(c, 0), &q = required(c, 1), &k = required(c, 2), &v = required(c, 3);
  check_attention_inputs(q, k, v);
  const TensorMeta &result = required(c, 4), &lse = required(c, 5);
  for (const TensorMeta* like_q : {&grad, &result})
    check(like_q->shape == q.shape && like_q->dtype == q.dtype, "the gradient and the result lie like q, {}: got {}", q,
          *like_q);
  check(lse.shape == Shape{q.size(0), q.size(1), q.size(2)}, "log-sum-exp is [B, H, Tq] of q, {}: got {}", q, lse);
  Metas metas{lies_like(q)};
  metas.push_back(lies_like(k));
  metas.push_back(lies_like(v));
  return metas;
}

// The product of q, or of the result, with keys or values takes two operations per element of a head and pair of a
// query and a key that it sees. Under a causal mask the last query sees all keys, and each query before it sees one
// key less.
double product_flops(const InferCall& c, const TensorMeta& q, const TensorMeta& k) {
  const std::int64_t Tq = q.size(2), Tk = k.size(2), seeing = std::min(Tq, Tk);
  const std::int64_t pairs =
      c.attrs.as<AttentionAttrs>().causal ? seeing * (Tk - seeing) + seeing * (seeing + 1) / 2 : Tq * Tk;
  return 2.0 * static_cast<double>(q.size(0) * q.size(1) * q.size(3)) * static_cast<double>(pairs);
}
// q k^T and p v.
double attention_flops(const InferCall& c) { return 2 * product_flops(c, c.in[0], c.in[1]); }
// q k^T again, grad v^T, and a product for each gradient.
double attention_backward_flops(const InferCall& c) { return 5 * product_flops(c, c.in[1], c.in[2]); }

Metas infer_rope(const InferCall& c) {
  const TensorMeta& x = required(c, 0);
  const auto& a = c.attrs.as<RopeAttrs>();
  check(is_floating(x.dtype), "x is floating-point, got {}", name(x.dtype));
  check(x.ndim() == 4, "x is [B, H, T, K], got {}", x.shape);
  check(x.size(3) % 2 == 0, "elements turn in pairs: K is even, got {}", x.size(3));
  check(a.theta > 0 && a.first_position >= 0, "theta is positive and first_position not negative, got {} and {}",
        a.theta, a.first_position);
  return {lies_like(x)};
}

void rope_vjp(VjpCall& c) {
  RopeAttrs attrs = c.attrs.as<RopeAttrs>();
  attrs.inverse = !attrs.inverse;
  c.give(0, op::rope, attrs, c.grad());
}

}  // namespace

constinit const Op op::scaled_dot_product_attention{
    .name = "scaled_dot_product_attention",
    .doc =
        "q [B, H, Tq, K], k and v [B, G, Tk, K] -> softmax(scale q k^T) v [B, H, Tq, K]; also the log of the "
        "sum of exponentials [B, H, Tq].",
    .attrs = &attr_kind<AttentionAttrs>,
    .infer = infer_attention,
    .needs = {.inputs = 0b111, .outputs = 0b11},
    .vjp = attention_vjp,
    .flops = attention_flops,
};

constinit const Op op::scaled_dot_product_attention_backward{
    .name = "scaled_dot_product_attention_backward",
    .doc = "grad, q, k, v, result, log-sum-exp -> gradients of q, k and v.",
    .attrs = &attr_kind<AttentionAttrs>,
    .infer = infer_attention_backward,
    .no_gradient = "first derivatives only",
    .flops = attention_backward_flops,
};

constinit const Op op::rope{
    .name = "rope",
    .doc = "x [B, H, T, K]: pairs (i, i + K/2) of position p turn by p / theta^(2i/K), backwards if inverse.",
    .attrs = &attr_kind<RopeAttrs>,
    .infer = infer_rope,
    .dims = "bht[k]->bht[k]",
    .traits = {.linear = true},
    .vjp = rope_vjp,
};

void register_attention(OpTable& table) {
  table.add({&op::scaled_dot_product_attention, &op::scaled_dot_product_attention_backward, &op::rope});
}

Tensor scaled_dot_product_attention(Tensor q, Tensor k, Tensor v, bool causal, double scale) {
  if (scale == 0 && q.ndim() == 4) scale = 1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(q.size(3), 1)));
  return call(op::scaled_dot_product_attention, AttentionAttrs{scale, causal}, std::move(q), std::move(k),
              std::move(v));
}

Tensor rope(Tensor x, double theta, std::int64_t first_position) {
  return call(op::rope, RopeAttrs{theta, first_position}, std::move(x));
}

}  // namespace sherd
