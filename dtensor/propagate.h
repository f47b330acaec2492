#pragma once
// From the layouts of a call's inputs to a plan: the layouts to redistribute the inputs to, the local call, and the
// layouts of its results. A plan is made once per (row, attributes, layouts, shapes, types) and cached per rank until
// kMaxPlans others are newer. Ranks need not drop the same plans: planning again gives the same plan.
#include <cstdint>
#include <memory>
#include <vector>

#include "dtensor/rule.h"
#include "dtensor/transition/transition.h"

namespace sherd {

/// How one distributed call runs.
struct CallPlan {
  const Op* op = nullptr;
  const ShardingRule* rule = nullptr;
  Attrs global_attrs;
  Attrs attrs;                                           ///< of the local call
  SmallVec<const Spec*, 4> from;                         ///< layouts of the inputs; null: plain or absent
  SmallVec<const Spec*, 4> in;                           ///< layouts the local call works on
  SmallVec<std::unique_ptr<const Transition>, 4> moves;  ///< per input; null: no move
  bool communicates = false;                             ///< a move does
  SmallVec<const Spec*, 2> out;
  SmallVec<TensorMeta, 4> in_metas;  ///< global
  Metas out_metas;                   ///< global
  const Distributed* wanted = nullptr;
  bool implicit_replication = false;
  std::vector<SpecRef> kept{};  ///< all layouts that the others point to

  LocalCall local_call() const { return {{*op, in_metas, global_attrs, out_metas}, in, out}; }
};

/// The plan of a call with at least one distributed input. Errors name the row, inputs and layouts: plain tensors that
/// may be a rank's own among distributed ones (see ImplicitReplication), layouts on different meshes, a row without
/// rule. Throws what infer throws on the global shapes, before any communication. The reference is valid until
/// the rank has asked for kMaxPlans / 2 other plans.
const CallPlan& plan_call(const OpCall& call);

inline constexpr std::size_t kMaxPlans = 1 << 10;

/// Counters of this rank's plan cache.
struct PlanCounts {
  std::int64_t made = 0, found = 0;  ///< misses, hits
  std::size_t kept = 0;
};
PlanCounts plan_counts();

/// Drops all plans and transitions of this rank: needed when prices or groups change.
void forget_plans();

}  // namespace sherd
