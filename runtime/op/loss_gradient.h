#pragma once
// The gradient of linear_cross_entropy as a program of rows, chunk by chunk: its vjp runs it on plain tensors, ranks
// that share out the rows run it on their own. Nothing of V columns outlives its chunk in a captured step either.
#include <functional>

#include "runtime/op/loss_attrs.h"
#include "runtime/op/op.h"

namespace sherd {

/// linear_cross_entropy_backward, whose outputs are the gradients that are wanted: of x, then of the weight.
struct LossGradientAttrs {
  CrossEntropyAttrs loss{};
  bool of_x = true, of_weight = true;
  static constexpr AttrField fields[] = {attr<&LossGradientAttrs::loss>(), attr<&LossGradientAttrs::of_x>("of_x"),
                                         attr<&LossGradientAttrs::of_weight>("of_weight")};
};

/// What the call and its result left: grad [], x [..., K], weight [V, K], targets [...], log-sum-exp [...], count [].
struct LossInputs {
  Tensor grad, x, weight, targets, lse, count;
};

/// How rows are cut: `chunk` of them at a time until `rows` are done. Of ranks that hold different numbers of rows all
/// count as the one that holds most, so they make the same calls.
struct LossChunks {
  std::int64_t rows = 0, chunk = 1;
};

/// Returns the gradient of x, undefined unless `of_x`. The gradient of the weight is the sum over what `to_weight` is
/// called with, of the products d^T x for d [chunk, V] and x [chunk, K]; it may be null. All tensors are plain.
Tensor run_loss_gradient(const CrossEntropyAttrs& attrs, LossInputs in, LossChunks chunks, bool of_x,
                         const std::function<void(Tensor d, Tensor x)>& to_weight);

}  // namespace sherd
