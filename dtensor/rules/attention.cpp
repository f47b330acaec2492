// Attention and rotary positions. B batch, H query heads, G heads of keys and values, T positions, K elements.
//
//   q [B,H,T,K]   k, v [B,G,T,K]   ->   out   lse [B,H,T]
//   S0            S0                    S0    S0            batch
//   S1            S1                    S1    S1            heads; with grouped queries every rank holds full groups
//   S1            R                     S1    S1            heads, if all query heads share one head of keys
//   S2            R                     S2    S2            queries, if not causal: each sees all keys
//
//   backward: gradients have their inputs' placements, those of replicated keys and values are Partial; linear in the
//   gradient
//
//   rope [B,H,T,K]   derived; a shard of the sequence starts at a later position
#include "dtensor/rule.h"
#include "runtime/op/rows/attention_attrs.h"

namespace sherd {

namespace {

// One way to shard attention: dim `dim` of the operands that belong to queries; `keys`: that of keys and values too,
// else those are replicated.
struct Cut {
  int dim;
  bool keys;
  std::int64_t even;
};

std::vector<Cut> cuts(const Shape& q, const Shape& k, bool causal) {
  const std::int64_t H = q[1], G = k[1];
  std::vector<Cut> list{{0, true, 0}, {1, true, H == G ? 0 : G}};
  if (G == 1) list.push_back({1, false, 0});
  if (!causal) list.push_back({2, false, 0});
  return list;
}

void attention_signatures(const RuleCall& call, Signatures& signatures) {
  for (const Cut& cut : cuts(call.shape(0), call.shape(1), call.attrs.as<AttentionAttrs>().causal)) {
    const Placement queries = Shard(cut.dim), keys = cut.keys ? queries : Replicate();
    signatures.push_back({{queries, keys, keys}, {queries, queries}, cut.even});
  }
}

// grad, q, k, v, out, lse -> dq, dk, dv
void attention_backward_signatures(const RuleCall& call, Signatures& signatures) {
  for (const Cut& cut : cuts(call.shape(1), call.shape(2), call.attrs.as<AttentionAttrs>().causal)) {
    const Placement queries = Shard(cut.dim), keys = cut.keys ? queries : Replicate();
    const Placement key_gradients = cut.keys ? queries : Partial();
    signatures.push_back(
        {{queries, queries, keys, keys, queries, queries}, {queries, key_gradients, key_gradients}, cut.even});
  }
  add_linear_signatures(call, 0, signatures);
}

Attrs rope_attrs(const LocalCall& local) {
  auto attrs = local.call.attrs.as<RopeAttrs>();
  attrs.first_position += local.in[0]->local_range(2, local.call.shape(0)[2]).begin;
  return attrs;
}

}  // namespace

void register_attention_rules(AddRule add) {
  add(op::scaled_dot_product_attention, {.signatures = attention_signatures});
  add(op::scaled_dot_product_attention_backward, {.signatures = attention_backward_signatures});
  add(op::rope, {.attrs = rope_attrs, .derived = true});
}

}  // namespace sherd
