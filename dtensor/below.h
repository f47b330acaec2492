#pragma once
// Rows called below the dist layer, on local tensors: what transitions and programs of rows are made of.
#include "runtime/op/dispatch.h"

namespace sherd {

class Spec;

Tensors below(const Op& op, const Attrs& attrs, std::span<Tensor> in);
template <class... In>
Tensor below(const Op& op, const Attrs& attrs, In&&... in) {
  Tensor inputs[] = {std::forward<In>(in)...};
  return std::move(below(op, attrs, std::span<Tensor>(inputs))[0]);
}

/// The local part of an input, which is given up if nobody else holds the tensor, so that its memory may be reused.
Tensor take_local(Tensor& t);

/// x, copied unless its strides are those of a dense tensor. Ranks must decide alike, for they capture one program: a
/// part of one row is dense however its rows lie, where larger parts of other ranks are not. So the strides are asked,
/// not whether they matter. What is moved in and dense stays its only handle.
Tensor dense_below(Tensor x);

/// x on the rank that counts it and zeros on the others, where ranks hold terms of a sum; also of what is infinite. All
/// ranks run one program: a part of x, which is all of it or nothing, among zeros.
Tensor mine_or_zeros(Tensor x, bool is_mine);

/// In a handler of what one rank may throw alone, for an id that is none or memory that is short: the groups of the
/// layout's mesh fail, so that peers who wait for this rank raise CommError with its reason, until all call reset().
void abort_peers(const Spec& layout) noexcept;

}  // namespace sherd
