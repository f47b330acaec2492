// Cross entropy. The forward rows keep one number per row (the log of the sum of exponentials) and the count of
// targets that are not ignored; backward rebuilds the probabilities from them.
//
// Where ranks hold columns of the logits, each computes three numbers per row of its own columns
// (cross_entropy_parts), and no logits travel. With m, s, t the largest logit, the sum of exp(x - m) and the target's
// logit of a rank's columns:
//
//   M = max over ranks of m           S = sum over ranks of s * exp(m - M)      T = sum over ranks of t
//   lse = M + log S                   loss = (M - T) + log S, averaged over the targets that count
//
// A rank without columns has m = -inf, s = t = 0. An ignored target has m = t = 0 and s = 1, so its combined loss is
// finite and has to be left out. Backward is local to each rank: exp(x - lse), less one at the target if the rank
// holds its column.
#include "runtime/op/rows/loss.h"

#include "runtime/op/core/infer.h"
#include "runtime/op/core/tape_modes.h"
#include "runtime/op/core/vjp_call.h"
#include "runtime/op/rows/id_shard.h"
#include "runtime/op/rows/loss_attrs.h"
#include "runtime/op/rows/loss_gradient.h"
#include "runtime/op/rows/ops.h"

namespace sherd {

namespace {

DType loss_dtype(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

Shape without_last(const Shape& shape) { return Shape(std::span(shape.begin(), shape.end() - 1)); }

void check_targets(const TensorMeta& x, const TensorMeta& targets) {
  check(targets.dtype == DType::i64 || targets.dtype == DType::i32, "targets are i32 or i64, got {}",
        name(targets.dtype));
  check(targets.shape == without_last(x.shape), "targets are {} for an input of {}, got {}", without_last(x.shape),
        x.shape, targets.shape);
}

// The outputs: loss, log-sum-exp per row, count, of several leaves [leaves].
Metas loss_metas(const TensorMeta& targets, DType dtype, std::int64_t leaves = 1) {
  Metas metas = one_output({}, loss_dtype(dtype));
  metas.push_back({targets.shape, loss_dtype(dtype)});
  metas.push_back({leaves == 1 ? Shape{} : Shape{leaves}, loss_dtype(dtype)});
  return metas;
}

// The outputs: largest logit, sum of exponentials, target's logit.
Metas part_metas(const TensorMeta& targets, DType dtype) {
  Metas metas;
  for (int i = 0; i < 3; ++i) metas.push_back({targets.shape, loss_dtype(dtype)});
  return metas;
}

void check_whole(const InferCall& c) {
  check(c.attrs.as<CrossEntropyAttrs>().part.total == 0, "{} takes the whole vocabulary; {}_parts takes a part of it",
        c.op.name, c.op.name);
}

void check_logits(const InferCall& c) {
  const TensorMeta &logits = required(c, 0), &targets = required(c, 1);
  check(is_floating(logits.dtype), "logits are floating-point, got {}", name(logits.dtype));
  check(logits.ndim() >= 1, "logits are [..., V], got a 0-d tensor");
  check_targets(logits, targets);
}

Metas infer_cross_entropy(const InferCall& c) {
  check_logits(c);
  check_whole(c);
  return loss_metas(c.in[1], c.in[0].dtype);
}

Metas infer_cross_entropy_parts(const InferCall& c) {
  check_logits(c);
  check_part(c.attrs.as<CrossEntropyAttrs>().part, c.in[0].shape.back());
  return part_metas(c.in[1], c.in[0].dtype);
}

void cross_entropy_vjp(VjpCall& c) {
  c.give(0, op::cross_entropy_backward, c.attrs, c.grad(), c.in(0), c.in(1), c.out(1), c.out(2));
}

Metas infer_cross_entropy_backward(const InferCall& c) {
  const TensorMeta& logits = required(c, 1);
  check_part(c.attrs.as<CrossEntropyAttrs>().part, logits.shape.back());
  return one_output(logits.shape, logits.dtype);
}

void check_factors(const InferCall& c) {
  const TensorMeta &x = required(c, 0), &weight = required(c, 1), &targets = required(c, 2);
  check(is_floating(x.dtype), "x is floating-point, got {}", name(x.dtype));
  check(x.dtype == weight.dtype, "dtypes differ: {} and {}; cast one of them", name(x.dtype), name(weight.dtype));
  check(x.ndim() >= 2 && weight.ndim() == 2, "x is [..., K] and weight [V, K], got {} and {}", x.shape, weight.shape);
  check(x.shape.back() == weight.shape[1], "inner dimensions differ: {} and {} (weight is [V, K])", x.shape.back(),
        weight.shape[1]);
  check_targets(x, targets);
}

Metas infer_linear_cross_entropy(const InferCall& c) {
  check_factors(c);
  check_whole(c);
  const TensorMeta &x = c.in[0], &targets = c.in[2];
  const std::int64_t leaves = c.attrs.as<CrossEntropyAttrs>().leaves;
  check(leaves == 1 || (leaves > 0 && targets.ndim() > 0 && targets.shape[0] % leaves == 0),
        "targets {} do not divide into {} leaves of rows", targets, leaves);
  check(leaves == 1 || !x.device.has_backend(),
        "the losses of {} leaves are of tensors of the host, and x is {}; train leaves one after the other", leaves, x);
  return loss_metas(targets, x.dtype, leaves);
}

Metas infer_linear_cross_entropy_parts(const InferCall& c) {
  check_factors(c);
  check_part(c.attrs.as<CrossEntropyAttrs>().part, c.in[1].shape[0]);
  return part_metas(c.in[2], c.in[0].dtype);
}

// The logits' product.
double linear_loss_flops(const InferCall& c) {
  return 2 * static_cast<double>(c.in[0].numel()) * static_cast<double>(c.in[1].size(0));
}

// The gradient of a loss on plain tensors; each chunk's weight gradient is added straight to its destination.
Tensor give_weight(VjpCall& c, std::int64_t leaf, const CrossEntropyAttrs& attrs, LossInputs in) {
  const LossChunks chunks{in.targets.numel(), loss_chunk_rows(in.weight.shape()[0], in.weight.device().kind)};
  std::function<void(Tensor, Tensor)> to_weight;
  if (c.wants(1))
    to_weight = [&](Tensor d, Tensor x) {
      Tensor factors[] = {std::move(d), std::move(x)};
      c.give_of_leaf(leaf, 1, op::linear_weight_grad, factors, {});
    };
  return run_loss_gradient(attrs, std::move(in), chunks, c.wants(0), to_weight);
}

void give_loss_of_leaves(VjpCall& c, CrossEntropyAttrs attrs) {
  check(c.leaves() == attrs.leaves, "the loss is of {} leaves, and backward of {}: open one LeavesScope around both",
        attrs.leaves, c.leaves());
  const std::int64_t leaves = std::exchange(attrs.leaves, 1);
  std::vector<Tensor> slopes;
  for (std::int64_t leaf = 0; leaf < leaves; ++leaf)
    slopes.push_back(give_weight(c, leaf, attrs,
                                 {c.grad(), c.rows_of_leaf(leaf, c.in(0)), c.in(1), c.rows_of_leaf(leaf, c.in(2)),
                                  c.rows_of_leaf(leaf, c.out(1)), reshape(c.rows_of_leaf(leaf, c.out(2)), {})}));
  if (c.wants(0)) c.give(0, cat(std::move(slopes), 0));
}

// If rows are sharded over ranks, they stay where they are.
void linear_cross_entropy_vjp(VjpCall& c) {
  const auto& attrs = c.attrs.as<CrossEntropyAttrs>();
  if (attrs.leaves > 1) return give_loss_of_leaves(c, attrs);
  LossInputs in{c.grad(), c.in(0), c.in(1), c.in(2), c.out(1), c.out(2)};
  if (in.lse.is_distributed() && !in.lse.layout()->is_replicated()) {
    Tensor inputs[] = {in.grad, in.x, in.weight, in.targets, in.lse, in.count};
    Tensors gradients =
        call_op(op::linear_cross_entropy_backward, inputs, LossGradientAttrs{attrs, c.wants(0), c.wants(1)});
    if (c.wants(1)) c.give(1, std::move(gradients[c.wants(0) ? 1 : 0]));
    if (c.wants(0)) c.give(0, std::move(gradients[0]));
    return;
  }
  Tensor x_grad = give_weight(c, 0, attrs, std::move(in));
  if (c.wants(0)) c.give(0, std::move(x_grad));
}

constexpr std::string_view kStep = "a step of cross_entropy, which has the vjp";

}  // namespace

constinit const Op op::cross_entropy{
    .name = "cross_entropy",
    .doc =
        "logits [..., V], targets [...] -> 0-d mean negative log likelihood; also the log of the sum of "
        "exponentials [...] and the number of targets that count.",
    .attrs = &attr_kind<CrossEntropyAttrs>,
    .infer = infer_cross_entropy,
    .needs = {.inputs = 0b11, .outputs = 0b110},
    .vjp = cross_entropy_vjp,
};

constinit const Op op::cross_entropy_backward{
    .name = "cross_entropy_backward",
    .doc =
        "grad, logits, targets, log-sum-exp, count -> (softmax - one hot) * grad / count; of the columns of "
        "a part, where the others make up the log-sum-exp.",
    .attrs = &attr_kind<CrossEntropyAttrs>,
    .infer = infer_cross_entropy_backward,
    .dims = ",...v,...,...,->...v",
    .algebra = Algebra::linear,
    .no_gradient = "first derivatives only",
};

constinit const Op op::linear_cross_entropy{
    .name = "linear_cross_entropy",
    .doc =
        "x [..., K], weight [V, K], targets [...] -> cross_entropy of x weight^T, in chunks of rows; outputs "
        "as cross_entropy. Of several leaves the sum of their losses, and their counts [leaves].",
    .attrs = &attr_kind<CrossEntropyAttrs>,
    .infer = infer_linear_cross_entropy,
    .needs = {.inputs = 0b111, .outputs = 0b110},
    .vjp = linear_cross_entropy_vjp,
    .flops = linear_loss_flops,
};

constinit const Op op::cross_entropy_parts{
    .name = "cross_entropy_parts",
    .doc =
        "logits [..., V here], targets [...] -> of these columns the largest logit [...], the sum of "
        "exp(logit - largest) [...] and the target's logit [...], 0 if it is not here.",
    .attrs = &attr_kind<CrossEntropyAttrs>,
    .infer = infer_cross_entropy_parts,
    .no_gradient = kStep,
};

constinit const Op op::linear_cross_entropy_parts{
    .name = "linear_cross_entropy_parts",
    .doc =
        "x [..., K], weight [V here, K], targets [...] -> cross_entropy_parts of x weight^T, in chunks of "
        "rows.",
    .attrs = &attr_kind<CrossEntropyAttrs>,
    .infer = infer_linear_cross_entropy_parts,
    .no_gradient = kStep,
    .flops = linear_loss_flops,
};

void register_loss(OpTable& table) {
  table.add({&op::cross_entropy, &op::cross_entropy_backward, &op::linear_cross_entropy, &op::cross_entropy_parts,
             &op::linear_cross_entropy_parts, &op::linear_cross_entropy_backward});
}

Tensor cross_entropy(Tensor logits, Tensor targets, std::int64_t ignore_index) {
  return call(op::cross_entropy, CrossEntropyAttrs{ignore_index}, std::move(logits), std::move(targets));
}

Tensor linear_cross_entropy(Tensor x, Tensor weight, Tensor targets, std::int64_t ignore_index) {
  TapeModes& modes = tape_modes();
  const CrossEntropyAttrs attrs{.ignore_index = ignore_index, .leaves = modes.leaves};
  Tensor loss = call(op::linear_cross_entropy, attrs, std::move(x), std::move(weight), std::move(targets));
  if (modes.leaves > 1) modes.loss_of_leaves = loss;
  return loss;
}

}  // namespace sherd
