#pragma once
// Reverse-mode differentiation on a tape. No double backward: gradients are computed with recording off.
#include <functional>

#include "runtime/autograd/node.h"
#include "runtime/op/dispatch.h"

namespace sherd {

/// Turns recording off (or on) for a scope on this thread.
class GradMode {
 public:
  explicit GradMode(bool enabled);
  ~GradMode();
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool outer_;
};

struct BackwardOptions {
  Tensor grad{};              ///< cotangent of the root; default 1, for one-element roots only
  bool retain_graph = false;  ///< keep what the tape saved, for another backward through the same nodes
};

/// Sends gradients from `root` to the sinks of all slots it was computed from. Nodes run in strictly descending
/// creation order; several uses of a value are summed in that order. Errors carry the module of the forward call.
void backward(const Tensor& root, const BackwardOptions& options = {});

/// Runs `hook` when the gradient of `tensor` (not a slot's) is complete, before it is used; a defined result
/// replaces it.
void register_grad_hook(const Tensor& tensor, GradHook hook, HookOptions options = {});

/// Runs `callback` once when the running backward pass has delivered everything. Error outside of a pass.
void at_end_of_backward(std::function<void()> callback);

/// True inside backward() on this thread.
bool in_backward();

/// One node's derivative, as a row's vjp sees it.
class VjpCall {
 public:
  VjpCall(OpNode& node, class BackwardPass& pass) : attrs(node.attrs), node_(node), pass_(pass) {}
  const Attrs& attrs;
  std::size_t num_inputs() const { return node_.next.size(); }
  std::size_t num_outputs() const { return node_.output_metas.size(); }
  /// A saved input or output; only those named by the row's `needs`.
  const Tensor& in(std::size_t i) const {
    return i < 32 && (node_.recomputed_inputs >> i & 1u) ? recomputed_in(i) : node_.saved_inputs[i].unpack();
  }
  /// The same for the last time in this vjp: the tape's handle goes, and with the result its bytes.
  Tensor take_in(std::size_t i);
  const Tensor& out(std::size_t i = 0) const { return node_.saved_outputs[i].unpack(); }
  const Shape& in_shape(std::size_t i) const { return node_.input_metas[i].shape; }
  DType in_dtype(std::size_t i) const { return node_.input_metas[i].dtype; }
  Device in_device(std::size_t i) const { return node_.input_metas[i].device; }
  const TensorMeta& out_meta(std::size_t i = 0) const { return node_.output_metas[i]; }
  /// Cotangent of output i; zeros if nothing downstream used it.
  Tensor grad(std::size_t i = 0) const;
  /// The same, given away: the op it is passed to may write over it. Not to be asked for again.
  Tensor take_grad(std::size_t i = 0);
  bool has_grad(std::size_t i) const { return i < node_.pending.size() && node_.pending[i].defined(); }
  bool wants(std::size_t i) const { return static_cast<bool>(node_.next[i].node); }

  /// The node's own call once more: its first output. All inputs must be in the row's `needs`.
  Tensor run_again() const;

  /// Gradient of input i, finished. Shape and dtype must be the input's. No-op unless wanted.
  void give(std::size_t i, Tensor gradient);
  /// Gradient of input i as the result of one more op: written straight to its destination when there is one.
  template <class... In>
  void give(std::size_t i, const Op& op, const Attrs& op_attrs, In&&... in) {
    if (!wants(i)) return;
    Tensor inputs[] = {std::forward<In>(in)...};
    give_call(i, op, inputs, op_attrs);
  }
  /// As give(), after summing over the dims along which input i was broadcast.
  void give_summed(std::size_t i, Tensor gradient);

 private:
  const Tensor& recomputed_in(std::size_t i) const;
  void give_call(std::size_t i, const Op& op, std::span<Tensor> in, const Attrs& op_attrs);
  OpNode& node_;
  BackwardPass& pass_;
};

}  // namespace sherd
