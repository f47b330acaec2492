#pragma once
// Sharding rules. A rule says how one op row may be laid out along ONE mesh axis: it lists *signatures*, placements of
// all inputs and outputs with which every rank computes its part of the result from its parts of the inputs. Generic
// code (propagate.h) expands them over the axes of a mesh and picks the cheapest. All-Replicate is always legal and
// never listed.
//
//   matmul "mk,kn->mn"      m    S0 R  -> S0        rows of the left operand
//                           n    R  S1 -> S1        columns of the right one
//                           k    S1 S0 -> P         terms of the sum
//                                P  R  -> P         linear in each operand
//
// Most rows need no rule of their own: signatures follow from the columns dims, traits and algebra (derived.cpp). What
// those cannot say stands in rules/, a file per family.
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "dtensor/below.h"
#include "dtensor/spec.h"

namespace sherd {

/// Legal placements of one call along one axis.
struct Signature {
  SmallVec<Placement, 4> in;   ///< per input; of one that is absent: Replicate
  SmallVec<Placement, 2> out;  ///< per output
  /// Unless 0, the number of parts into which all axes together shard the dim must divide this: where a dim is
  /// sharded together with others (views, grouped heads) ranks must hold whole groups.
  std::int64_t even = 0;
};
using Signatures = std::vector<Signature>;

/// What a rule sees: the call on global shapes.
struct RuleCall {
  const Op& op;
  std::span<const TensorMeta> in;
  AttrsView attrs;
  std::span<const TensorMeta> out;

  const Shape& shape(std::size_t input) const { return in[input].shape; }
  int ndim(std::size_t input) const { return in[input].ndim(); }
  bool has(std::size_t input) const { return input < in.size() && in[input].defined(); }
};

/// The same with the layouts that were chosen. Of inputs that are absent or plain the layout is that of a replicated
/// tensor.
struct LocalCall {
  RuleCall call;
  std::span<const Spec* const> in, out;

  /// This rank's part of an operand.
  Shape in_shape(std::size_t i) const { return in[i]->local_shape(call.shape(i)); }
  Shape out_shape(std::size_t i = 0) const { return out[i]->local_shape(call.out[i].shape); }
};

struct ShardingRule {
  /// Appends signatures.
  void (*signatures)(const RuleCall&, Signatures&) = nullptr;
  /// Attributes of the local call where they differ: shapes of views, indices of elements.
  Attrs (*attrs)(const LocalCall&) = nullptr;
  /// In place of the row: a local program of several rows and collectives, which it calls by below(). `in` are local
  /// parts; returns local parts.
  Tensors (*run)(const LocalCall&, AttrsView attrs, std::span<Tensor> in) = nullptr;
  /// Also what the columns of the row say.
  bool derived = false;
};

/// The rule of a row; null if there is none, neither by hand nor derived.
const ShardingRule* find_rule(const Op& op);
/// Adds or replaces the rule of a row, also of one of the user's own. Before the row is first called with distributed
/// tensors; not while ranks that are threads run.
void register_rule(const Op& op, const ShardingRule& rule);

// Each family adds its rules; see rules/.
using AddRule = const std::function<void(const Op& op, const ShardingRule& rule)>&;
void register_matmul_rules(AddRule add);
void register_reduce_rules(AddRule add);
void register_view_rules(AddRule add);
void register_index_rules(AddRule add);
void register_gather_rules(AddRule add);
void register_attention_rules(AddRule add);
void register_loss_rules(AddRule add);
void register_random_rules(AddRule add);

// ---- for rules ----

/// `count` times `placement`.
template <std::size_t N = 4>
SmallVec<Placement, N> all(std::size_t count, Placement placement) {
  SmallVec<Placement, N> list;
  for (std::size_t i = 0; i < count; ++i) list.push_back(placement);
  return list;
}
/// The signatures of the dims column: every letter that is not whole, sharded in all operands that have it; a result
/// without it becomes Partial, if the row is linear.
void add_dims_signatures(const RuleCall& call, std::string_view dims, Signatures& signatures);
/// Partial through a row that is linear in input i for given others: sum and avg.
void add_linear_signatures(const RuleCall& call, std::size_t i, Signatures& signatures);
/// Partial through a row that is linear in these inputs together (add, cat): all of them Partial of one kind.
void add_jointly_linear_signatures(const RuleCall& call, std::uint32_t inputs, Signatures& signatures);
/// Reduces a local tensor over the mesh axes along which `spec` says Partial(kind) where all ranks need the whole now:
/// for programs of rows. Collective; the bits are equal on all ranks.
Tensor reduce_over(Tensor local, const DeviceMesh& mesh, std::span<const int> axes, ReduceKind kind);

}  // namespace sherd
