#pragma once
// Rows called below the dist layer, on local tensors: transitions and the local programs of rules consist of these.
#include "runtime/op/core/dispatch.h"

namespace sherd {

class Spec;

Tensors below(const Op& op, AttrsView attrs, std::span<Tensor> in);
template <class... In>
Tensor below(const Op& op, AttrsView attrs, In&&... in) {
  Tensor inputs[] = {std::forward<In>(in)...};
  return std::move(below(op, attrs, std::span<Tensor>(inputs))[0]);
}

/// The local tensor of an input: moved out of `t` if `t` is its only handle, so that its memory may be reused.
Tensor take_local(Tensor& t);

/// x, copied unless its strides equal contiguous_strides(). All ranks must decide alike, because they capture one
/// program: a shard of one row is contiguous whatever its row stride, larger shards of other ranks are not. So strides
/// are compared even where they do not matter. A dense x that is moved in stays the only handle.
Tensor dense_below(Tensor x);

/// x where `is_mine`, else zeros: a Partial(sum) value to which one rank contributes. Right for infinities too, which a
/// product with 0 would turn into NaN. All ranks run one program: narrow to all of x or to nothing, then pad with
/// zeros.
Tensor mine_or_zeros(Tensor x, bool is_mine);

/// For catch handlers of errors that one rank may raise alone (an id out of range, out of memory): aborts the groups of
/// the layout's mesh with the current exception's text, so that peers that wait for this rank raise CommError with that
/// reason, until all call reset().
void abort_peers(const Spec& layout) noexcept;

}  // namespace sherd
