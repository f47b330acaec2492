#include "runtime/op/rows/loss_gradient.h"

#include <algorithm>

#include "runtime/op/core/infer.h"
#include "runtime/op/rows/ops.h"

namespace sherd {

namespace {

Metas infer_loss_gradient(const InferCall& c) {
  const auto& a = c.attrs.as<LossGradientAttrs>();
  const TensorMeta &x = required(c, 1), &weight = required(c, 2);
  Metas metas;
  if (a.of_x) metas.push_back({.shape = x.shape, .dtype = x.dtype});
  if (a.of_weight) metas.push_back({.shape = weight.shape, .dtype = weight.dtype});
  return metas;
}

}  // namespace

Tensor run_loss_gradient(const CrossEntropyAttrs& attrs, LossInputs in, LossChunks chunks, bool of_x,
                         const std::function<void(Tensor d, Tensor x)>& to_weight) {
  const Shape shape = in.x.shape();
  const std::int64_t rows = in.targets.numel();
  const Tensor x = reshape(std::move(in.x), {rows, shape.back()});
  const Tensor targets = reshape(std::move(in.targets), {rows}), lse = reshape(std::move(in.lse), {rows});
  std::vector<Tensor> parts;
  for (std::int64_t first = 0; first == 0 || first < chunks.rows; first += chunks.chunk) {
    const std::int64_t begin = std::min(first, rows), length = std::min(chunks.chunk, rows - begin);
    const Tensor x_part = narrow(x, 0, begin, length);
    const Tensor d = call(op::cross_entropy_backward, attrs, in.grad, call(op::linear, {}, x_part, in.weight, Tensor()),
                          narrow(targets, 0, begin, length), narrow(lse, 0, begin, length), in.count);
    if (of_x) parts.push_back(call(op::matmul, {}, d, in.weight));
    if (to_weight) to_weight(d, x_part);
  }
  if (!of_x) return {};
  return reshape(parts.size() == 1 ? parts[0] : cat(std::move(parts), 0), shape);
}

constinit const Op op::linear_cross_entropy_backward{
    .name = "linear_cross_entropy_backward",
    .doc = "grad, x, weight, targets, log-sum-exp, count -> the gradients of x and of the weight.",
    .attrs = &attr_kind<LossGradientAttrs>,
    .infer = infer_loss_gradient,
    .no_gradient = "first derivatives only",
};

}  // namespace sherd
