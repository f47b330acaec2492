#pragma once
// What vjps of broadcasting and promoting rows share.
#include "runtime/op/core/vjp_call.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/pointwise_attrs.h"

namespace sherd {

/// Gives `gradient`, which has the result's shape and dtype, to input i: summed over broadcast dims, then cast.
inline void give_back(VjpCall& c, std::size_t i, Tensor gradient) {
  if (!c.wants(i)) return;
  if (gradient.dtype() == c.in_dtype(i)) return c.give_summed(i, std::move(gradient));
  c.give(i, op::cast, CastAttrs{c.in_dtype(i)}, sum_to(std::move(gradient), c.in_shape(i)));
}

/// Gives op(in...), a pointwise row's result; straight to its destination unless it must be summed or cast.
template <class... In>
void give_pointwise(VjpCall& c, std::size_t i, const Op& op, AttrsView attrs, In&&... in) {
  if (!c.wants(i)) return;
  if (c.in_dtype(i) == c.out_meta().dtype && c.in_shape(i) == c.out_meta().shape)
    c.give(i, op, attrs, std::forward<In>(in)...);
  else give_back(c, i, call(op, attrs, std::forward<In>(in)...));
}

}  // namespace sherd
