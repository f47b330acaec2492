#pragma once
// From the layouts of a call's inputs to a plan: which layouts the inputs are brought to, what the local call is, how
// its results lie. A plan is made once per (row, attributes, layouts, shapes, types) and kept by the rank's thread.
#include <cstdint>

#include "dtensor/attr_key.h"
#include "dtensor/rule.h"
#include "dtensor/transition.h"

namespace sherd {

/// How one distributed call runs.
struct CallPlan {
  const Op* op = nullptr;
  const ShardingRule* rule = nullptr;
  Attrs attrs;  ///< of the local call
  Attrs global_attrs;
  AttrKey key;                           ///< of global_attrs
  SmallVec<const Spec*, 4> from;         ///< layouts the inputs come with; null: plain or absent
  SmallVec<const Spec*, 4> in;           ///< layouts the local call works on
  SmallVec<const Transition*, 4> moves;  ///< per input; null: stays as it is
  SmallVec<const Spec*, 2> out;
  SmallVec<Tensor, 4> metas;  ///< inputs as meta tensors
  Metas out_metas;            ///< global
  const Distributed* wanted = nullptr;
  bool implicit_replication = false;

  explicit CallPlan(const Attrs& attributes) : global_attrs(attributes), key(attributes) {}
  LocalCall local_call() const { return {{*op, metas, global_attrs, out_metas}, in, out}; }
};

/// The plan of a call with at least one distributed input. Errors name the row, inputs and layouts: plain tensors of
/// several elements among distributed ones (outside of ImplicitReplication), layouts on different meshes, a row
/// without rule. Throws what infer throws on the global shapes, before any communication.
const CallPlan& plan_call(const OpCall& call);

/// Plans that this thread has made, and how often it found one again.
struct PlanCounts {
  std::int64_t made = 0, found = 0;
};
PlanCounts plan_counts();

}  // namespace sherd
