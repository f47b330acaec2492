// Products. matmul and linear_weight_grad say all in their dims; linear has a bias, which must be added once.
//
//   linear  x [..., K]  weight [N, K]  bias [N]         ...:  S(i)  R   R  -> S(i)      rows
//                                                       n:    R     S0  S0 -> S(-1)     colwise
//                                                       k:    S(-1) S1  R  -> P         rowwise: one rank adds the bias
#include "dtensor/rule.h"
#include "runtime/op/rows/matmul_attrs.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

void linear_signatures(const RuleCall& call, Signatures& signatures) {
  add_dims_signatures(call, call.op.dims, signatures);
  if (!call.has(2))
    for (std::size_t i = 0; i < 2; ++i) add_linear_signatures(call, i, signatures);
  // x or weight Partial, and the bias replicated: run_linear adds the bias on the first rank only.
  else
    for (const std::size_t i : up_to(2)) {
      SmallVec<Placement, 4> in = all(3, Replicate());
      in[i] = Partial();
      signatures.push_back({in, {Partial()}, 0});
    }
}

Tensors run_linear(const LocalCall& local, AttrsView attrs, std::span<Tensor> in) {
  bool has_terms = false, is_first = true;
  const Spec& out = *local.out[0];
  for (const int axis : up_to(out.num_axes())) {
    if (!out.placement(axis).is_partial()) continue;
    has_terms = true;
    is_first &= out.coordinate(axis) == 0;
  }
  if (has_terms && in[2].defined()) in[2] = mine_or_zeros(std::move(in[2]), is_first);
  return below(local.call.op, attrs, in);
}

}  // namespace

void register_matmul_rules(AddRule add) {
  add(op::linear, {.signatures = linear_signatures, .run = run_linear});
  add(op::leaf_linear, {.signatures = linear_signatures, .run = run_linear});
}

}  // namespace sherd
