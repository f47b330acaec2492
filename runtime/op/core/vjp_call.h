#pragma once
// What a row's vjp is given. autograd/ keeps the tape behind it and implements it.
#include <cstddef>
#include <span>
#include <utility>

#include "runtime/op/core/dispatch.h"

namespace sherd {

class OpNode;
class BackwardPass;

/// One node's derivative.
class VjpCall {
 public:
  VjpCall(OpNode& node, BackwardPass& pass);
  const Attrs& attrs;
  std::size_t num_inputs() const;
  std::size_t num_outputs() const;
  /// A saved input or output; only those named by the row's `needs`.
  const Tensor& in(std::size_t i) const;
  /// The same for the last time in this vjp: the tape's handle is dropped, and its bytes are freed with the result.
  Tensor take_in(std::size_t i);
  const Tensor& out(std::size_t i = 0) const;
  const Shape& in_shape(std::size_t i) const;
  DType in_dtype(std::size_t i) const;
  Device in_device(std::size_t i) const;
  const TensorMeta& out_meta(std::size_t i = 0) const;
  /// Cotangent of output i; zeros if no gradient reached it.
  Tensor grad(std::size_t i = 0) const;
  /// The same, moved out: the op it is passed to may write over it. Not to be asked for again.
  Tensor take_grad(std::size_t i = 0);
  bool has_grad(std::size_t i) const;
  bool wants(std::size_t i) const;

  /// Gradient of input i, finished. Shape and dtype must be the input's. No-op unless wanted.
  void give(std::size_t i, Tensor gradient);
  /// Gradient of input i as the result of one more op: written straight to its destination when there is one.
  template <class... In>
  void give(std::size_t i, const Op& op, AttrsView op_attrs, In&&... in) {
    if (!wants(i)) return;
    Tensor inputs[] = {std::forward<In>(in)...};
    give_call(i, op, inputs, op_attrs);
  }
  /// As give(), after summing over the dims along which input i was broadcast.
  void give_summed(std::size_t i, Tensor gradient);

  /// How many leaves the rows of this call are, which are to be summed apart (autograd/leaves.h); 1 in most passes.
  std::int64_t leaves() const;
  /// Rows of one leaf. Error unless dim 0 divides into leaves.
  Tensor rows_of_leaf(std::int64_t leaf, const Tensor& rows) const;
  /// As give() of an op that sums over dim 0 of all its inputs: each leaf's rows alone.
  template <class... In>
  void give_rows(std::size_t i, const Op& op, AttrsView op_attrs, In&&... in) {
    if (!wants(i)) return;
    Tensor inputs[] = {std::forward<In>(in)...};
    give_rows_call(i, op, inputs, op_attrs);
  }
  /// give_rows() of op::linear_weight_grad; where no other vjp gives the input a gradient, in one call.
  void give_products(std::size_t i, Tensor a, Tensor b);
  /// As give(), of one leaf's rows; leaf after leaf.
  void give_of_leaf(std::int64_t leaf, std::size_t i, Tensor gradient);
  void give_of_leaf(std::int64_t leaf, std::size_t i, const Op& op, std::span<Tensor> in, AttrsView op_attrs);

 private:
  friend class BackwardPass;
  void give_call(std::size_t i, const Op& op, std::span<Tensor> in, AttrsView op_attrs);
  void give_rows_call(std::size_t i, const Op& op, std::span<Tensor> in, AttrsView op_attrs);
  bool give_product_of_leaves(std::size_t i, std::span<Tensor> in);
  OpNode& node_;
  BackwardPass& pass_;
  std::uint32_t taken_ = 0;  // bit mask: inputs that take_in() gave
};

}  // namespace sherd
