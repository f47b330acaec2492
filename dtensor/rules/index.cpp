// Rows that look up by index.
//
//   embedding  table [V, D]  ids [...]          ...:  R   S(i) -> S(i)        batch
//                                               d:    S1  R    -> S(-1)       columns of the table
//                                               v:    S0  R    -> P           rows: zeros for ids of other ranks
#include "dtensor/rule.h"
#include "runtime/op/rows/index_attrs.h"

namespace sherd {

namespace {

// The rows of the vocabulary that this rank holds if a dim of `size` is sharded as `spec` says; all of them if the dim
// is not sharded.
VocabularyPart part_of(const Spec& spec, int dim, std::int64_t size) {
  if (spec.num_shards(dim) == 1) return {};
  return {.first = spec.local_range(dim, size).begin, .total = size};
}

Attrs embedding_attrs(const LocalCall& local) {
  auto attrs = local.call.attrs.as<EmbeddingAttrs>();
  attrs.part = part_of(*local.in[0], 0, local.call.shape(0)[0]);
  return attrs;
}

// grad [..., D], ids [...] -> [V, D]: sums over positions. A rank may also make only its own rows of the table.
void embedding_backward_signatures(const RuleCall& call, Signatures& signatures) {
  add_dims_signatures(call, "...d,...->vd", signatures);
  signatures.push_back({all(2, Replicate()), {Shard(0)}, 0});
  add_linear_signatures(call, 0, signatures);
}

Attrs embedding_backward_attrs(const LocalCall& local) {
  auto attrs = local.call.attrs.as<EmbeddingAttrs>();
  attrs.part = part_of(*local.out[0], 0, attrs.rows);
  attrs.rows = local.out_shape()[0];
  return attrs;
}

}  // namespace

void register_index_rules(AddRule add) {
  add(op::embedding, {.attrs = embedding_attrs, .derived = true});
  add(op::embedding_backward, {.signatures = embedding_backward_signatures, .attrs = embedding_backward_attrs});
}

}  // namespace sherd
