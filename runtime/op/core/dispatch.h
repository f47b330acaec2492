#pragma once
// The only entry: every op call passes four layers in fixed order: autograd > dist > capture > device. A layer applies
// if an input needs it or a mode is on; it calls the next one below, never the top again.
#include <atomic>
#include <span>
#include <utility>

#include "runtime/op/core/op.h"

namespace sherd {

/// What the caller asks for in a distributed result; the dist layer reads it.
struct Wanted {
  /// The layout it is needed in; null: any. Among layouts of equal price this one is chosen, so the gradient of a
  /// sharded table is computed in shards instead of in full and sharded afterwards.
  const Distributed* layout = nullptr;
  /// A distributed tensor that the result is added to, if any. If their layouts are equal it may be added in place, and
  /// the result is this tensor.
  const Tensor* sum = nullptr;
};

/// Calls `op` from the top. Inputs are consumed: one that was moved in, is the only owner of its bytes and is no
/// view may have its memory reused for the result. Errors carry op, inputs, module and rank.
Tensors call_op(const Op& op, std::span<Tensor> in, AttrsView attrs, Wanted wanted = {});

/// As call_op for rows of one output, which lands in `out` (same shape and dtype; distributed rows excepted).
/// With `accumulate` it is added to what `out` holds. Never recorded on the tape: backward and optimizers use it.
void call_op_into(const Op& op, std::span<Tensor> in, AttrsView attrs, const Tensor& out, bool accumulate,
                  Wanted wanted = {});

template <class... In>
Tensor call(const Op& op, AttrsView attrs, In&&... in) {
  if constexpr (sizeof...(In) == 0) {
    return std::move(call_op(op, {}, attrs)[0]);
  } else {
    Tensor inputs[] = {std::forward<In>(in)...};
    return std::move(call_op(op, inputs, attrs)[0]);
  }
}
template <class... In>
void call_into(const Op& op, AttrsView attrs, const Tensor& out, bool accumulate, In&&... in) {
  Tensor inputs[] = {std::forward<In>(in)...};
  call_op_into(op, inputs, attrs, out, accumulate);
}

/// One op call on its way down.
struct OpCall {
  const Op& op;
  std::span<Tensor> in;
  AttrsView attrs;
  std::span<const Tensor> into{};  ///< destinations, one per output, or none
  bool accumulate = false;
  Wanted wanted{};
  /// For the kernel, as many bytes as its row's scratch column asks for; null: it is allocated.
  const Storage* scratch = nullptr;
};

/// In a handler of `error`: adds op, inputs, module and rank, once, and rethrows it.
[[noreturn]] void rethrow_with_context(const OpCall& call, Error& error);

/// Layers as functions; `dtensor` fills the dist slot when the first mesh is made.
using LayerFunction = Tensors (*)(OpCall&);
Tensors autograd_layer(OpCall& call);
Tensors capture_layer(OpCall& call);
Tensors device_layer(OpCall& call);
/// Continue below a layer.
Tensors call_below_autograd(OpCall& call);
Tensors call_below_dist(OpCall& call);
void install_dist_layer(LayerFunction layer);

}  // namespace sherd
