// Softmax and norms read a line of elements at once: any other dim may be cut.
//
//   softmax over dim 1 of x [B, V]      S0 -> S0
//
//   layer_norm  x [B, D]  weight  bias  ->  y   mean  rstd        rms_norm: no bias, no mean
//               S0        R       R         S0  S0    S0
//   backward    grad  x   weight  mean  rstd  ->  dx  dweight  dbias
//               S0    S0  R       S0    S0        S0  P        P            every rank sums its rows
//               P     R   R       R     R         P   P        P            linear in the gradient
#include "dtensor/rule.h"
#include "runtime/op/attr_types.h"

namespace sherd {

namespace {

void softmax_signatures(const RuleCall& call, Signatures& signatures) {
  const int dim = call.attrs.as<DimAttrs>().dim;
  for (int d = 0; d < call.ndim(0); ++d)
    if (d != dim) signatures.push_back({all(call.in.size(), Shard(d)), {Shard(d)}, 0});
}

void softmax_backward_signatures(const RuleCall& call, Signatures& signatures) {
  softmax_signatures(call, signatures);
  add_linear_signatures(call, 0, signatures);
}

// Operands of more than one dim follow a cut of rows; vectors [D] are whole, as inputs, and terms, as results.
void norm_signatures(const RuleCall& call, Signatures& signatures) {
  constexpr std::size_t kWeight = 1, kBias = 2;
  for (int d = 0; d + 1 < call.ndim(0); ++d) {
    Signature s{all(call.in.size(), Replicate()), all<2>(call.out.size(), Shard(d)), 0};
    for (std::size_t i = 0; i < call.in.size(); ++i)
      if (i != kWeight && i != kBias) s.in[i] = Shard(d);
    signatures.push_back(std::move(s));
  }
}

void norm_backward_signatures(const RuleCall& call, Signatures& signatures) {
  constexpr std::size_t kWeight = 2;
  for (int d = 0; d + 1 < call.ndim(0); ++d) {
    Signature s{all(call.in.size(), Shard(d)), all<2>(call.out.size(), Partial()), 0};
    s.in[kWeight] = Replicate();
    s.out[0] = Shard(d);
    signatures.push_back(std::move(s));
  }
  add_linear_signatures(call, 0, signatures);
}

}  // namespace

void register_norm_rules(AddRule add) {
  for (const Op* row : {&op::softmax, &op::log_softmax}) add(*row, {.signatures = softmax_signatures});
  for (const Op* row : {&op::softmax_backward, &op::log_softmax_backward})
    add(*row, {.signatures = softmax_backward_signatures});
  for (const Op* row : {&op::layer_norm, &op::rms_norm}) add(*row, {.signatures = norm_signatures});
  for (const Op* row : {&op::layer_norm_backward, &op::rms_norm_backward})
    add(*row, {.signatures = norm_backward_signatures});
}

}  // namespace sherd
