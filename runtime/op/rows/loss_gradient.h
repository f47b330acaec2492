#pragma once
// The gradient of linear_cross_entropy as a program of rows, chunk by chunk: its vjp runs it on plain tensors; if the
// rows are sharded over ranks, each rank runs it on its own rows. No tensor of V columns outlives its chunk in a
// captured step either.
#include <functional>

#include "runtime/op/core/op.h"
#include "runtime/op/rows/loss_attrs.h"

namespace sherd {

/// linear_cross_entropy_backward, whose outputs are the gradients that are wanted: of x, then of the weight.
struct LossGradientAttrs {
  CrossEntropyAttrs loss{};
  bool of_x = true, of_weight = true;
  static constexpr AttrField fields[] = {attr<&LossGradientAttrs::loss>(), attr<&LossGradientAttrs::of_x>("of_x"),
                                         attr<&LossGradientAttrs::of_weight>("of_weight")};
};

/// The call's inputs and saved results: grad [], x [..., K], weight [V, K], targets [...], log-sum-exp [...], count [].
struct LossInputs {
  Tensor grad, x, weight, targets, lse, count;
};

/// How rows are split: `chunk` of them at a time until `rows` are done. If ranks hold different numbers of rows, all
/// use the largest number, so that they make the same calls.
struct LossChunks {
  std::int64_t rows = 0, chunk = 1;
};

/// Returns the gradient of x, undefined unless `of_x`. Calls `to_weight`, which may be null, with d [chunk, V] and x
/// [chunk, K] of each chunk: the gradient of the weight is the sum of the products d^T x. All tensors are plain.
Tensor run_loss_gradient(const CrossEntropyAttrs& attrs, LossInputs in, LossChunks chunks, bool of_x,
                         const std::function<void(Tensor d, Tensor x)>& to_weight);

}  // namespace sherd
