// Making a plan takes microseconds and allocates; finding it again takes a hash of what the call is and one comparison.
// Plans are the rank thread's own: layouts know this rank's coordinates.
#include "dtensor/propagate.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "dtensor/choose.h"
#include "dtensor/derived.h"
#include "dtensor/modes.h"
#include "dtensor/plain_part.h"
#include "dtensor/recent.h"
#include "runtime/exec/context.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

// Bounded: shapes and attributes that change all the time (a constant that a schedule sets) would fill memory.
struct PlanCache {
  Recent<CallPlan> plans{kMaxPlans};
  PlanCounts counts;
};

PlanCache& cache() { return RankContext::current().state<PlanCache>(); }

std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 32);
}

template <class P>
std::uint64_t bits(const P* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

std::uint64_t hash_of(const OpCall& call, bool implicit_replication) {
  std::uint64_t hash = mix(call.attrs.hash(), bits(&call.op));
  for (const Tensor& t : call.in) {
    if (!t.defined()) {
      hash = mix(hash, 1);
      continue;
    }
    hash = mix(hash, bits(t.layout()) + static_cast<std::uint64_t>(t.dtype()));
    for (std::int64_t d : t.shape()) hash = mix(hash, static_cast<std::uint64_t>(d));
  }
  hash = mix(hash, bits(call.wanted.layout));
  return mix(hash, implicit_replication);
}

// Whether a plain tensor counts as replicated without a scope: a single number; ids, targets and masks; and what no
// gradient flows to, where the row compares it element by element with the distributed ones, so that its shape must be
// the global one. Other floats may be a rank's own activations or its part of the batch, which no shape tells.
bool counts_as_replicated(const Op& op, const Tensor& t) {
  return t.numel() == 1 || !is_floating(t.dtype()) || (op.traits.pointwise && !t.requires_grad());
}

bool is_plan_of(const CallPlan& plan, const OpCall& call, bool implicit_replication) {
  if (plan.op != &call.op || plan.wanted != call.wanted.layout || plan.implicit_replication != implicit_replication ||
      plan.from.size() != call.in.size() || !(plan.global_attrs == call.attrs))
    return false;
  for (const std::size_t i : indices(call.in)) {
    const TensorMeta &now = call.in[i].meta(), &then = plan.in_metas[i];
    if (now.absent != then.absent) return false;
    if (now.absent) continue;
    if (now.layout != then.layout || now.dtype != then.dtype || !(now.shape == then.shape)) return false;
    // A plan does not say whether gradients were wanted: of what is refused there is none.
    if (!now.layout && !implicit_replication && !counts_as_replicated(call.op, call.in[i])) return false;
  }
  return true;
}

// The mesh that all distributed inputs are on.
DeviceMesh common_mesh(const OpCall& call) {
  const Spec* first = nullptr;
  std::size_t first_input = 0;
  for (const std::size_t i : indices(call.in)) {
    const Tensor& t = call.in[i];
    if (!t.defined() || !t.is_distributed()) continue;
    const Spec& spec = Spec::from(t);
    if (!first) {
      first = &spec;
      first_input = i;
    } else if (spec.mesh_id() != first->mesh_id()) {
      fail(
          "inputs {} and {} lie on different meshes, {} and {}; bring one to the other's with full_tensor() and "
          "distribute()",
          first_input, i, first->mesh().describe(), spec.mesh().describe());
    }
  }
  if (!first)
    fail("{} of plain inputs into the distributed tensor {} would need to know how they lie: write to its local() part",
         call.op.name, call.into.empty() ? Tensor() : call.into[0]);
  return first->mesh();
}

// A plain dim of one element is broadcast along a dim of which a rank holds one element; it may be that rank's part.
void check_broadcast(const OpCall& call, std::size_t i) {
  const Tensor& plain = call.in[i];
  for (const std::size_t j : indices(call.in)) {
    const Tensor& other = call.in[j];
    if (!other.defined() || !other.is_distributed()) continue;
    const Spec& spec = Spec::from(other);
    for (int d = 1; d <= std::min(plain.ndim(), other.ndim()); ++d) {
      const int dim = other.ndim() - d;
      if (plain.size(plain.ndim() - d) != 1 || other.size(dim) == 1 || spec.num_shards(dim) == 1 ||
          !has_part_of(spec, dim, other.size(dim), 1))
        continue;
      fail(
          "input {} is the plain tensor {}, of one element along dim {} of input {}, {}: it may be that of all ranks "
          "or "
          "a rank's part; {}",
          i, plain, dim, j, other, kSayHowItLies);
    }
  }
}

void check_plain(const OpCall& call, std::size_t i) {
  const Tensor& t = call.in[i];
  if (!t.defined() || t.is_distributed() || is_implicit_replication()) return;
  if (!counts_as_replicated(call.op, t))
    fail("input {} is the plain tensor {} among distributed ones{}: {}", i, t,
         t.requires_grad() ? ", and a gradient flows to it" : "", kSayHowItLies);
  if (call.op.traits.pointwise) check_broadcast(call, i);
}

// What infer says of the global shapes. Where a plain tensor does not fit it may be this rank's part.
Metas infer_global(const OpCall& call, std::span<const TensorMeta> in) {
  try {
    return call.op.infer({call.op, in, call.attrs});
  } catch (const Error& error) {
    for (const std::size_t i : indices(call.in))
      if (const Tensor& t = call.in[i]; t.defined() && !t.is_distributed() && t.ndim() > 0)
        fail(
            "{}; input {} is the plain tensor {}, which counts as replicated: if it is this rank's part, say "
            "with from_local() how it lies",
            error.message(), i, t);
    throw;
  }
}

Signatures signatures_of(const RuleCall& call, const ShardingRule& rule) {
  Signatures signatures;
  signatures.push_back({all(call.in.size(), Replicate()), all<2>(call.out.size(), Replicate()), 0});
  if (rule.signatures) rule.signatures(call, signatures);
  if (rule.derived) add_derived_signatures(call, signatures);
  for (const Signature& s : signatures)
    check(s.in.size() == call.in.size() && s.out.size() == call.out.size(),
          "the rule of {} lists {} inputs and {} outputs, the call has {} and {}", call.op.name, s.in.size(),
          s.out.size(), call.in.size(), call.out.size());
  return signatures;
}

// Signatures speak of the chunk rule. A pointwise row whose operands all have one layout that lists the sizes of shards
// keeps it; null: signatures decide, and what is listed is gathered.
const Spec* common_listed_layout(const CallPlan& plan) {
  if (!plan.op->traits.pointwise || plan.rule->attrs || plan.rule->run) return nullptr;
  const Spec* common = nullptr;
  for (const Spec* from : plan.from) common = common ? common : from;
  if (!common->lists_rows() || common->is_partial()) return nullptr;
  for (const std::size_t i : indices(plan.from)) {
    const TensorMeta& in = plan.in_metas[i];
    const bool fits =
        plan.from[i] ? plan.from[i] == common && in.shape == plan.out_metas[0].shape : in.absent || in.numel() == 1;
    if (!fits) return nullptr;
  }
  return common;
}

Choice choose(const CallPlan& plan, const OpCall& call, const DeviceMesh& mesh) {
  if (const Spec* common = common_listed_layout(plan)) {
    Choice choice;
    for (const Spec* from : plan.from) choice.in.push_back(from);
    for (std::size_t i = 0; i < plan.out_metas.size(); ++i) choice.out.push_back(common);
    return choice;
  }
  const RuleCall rule_call{call.op, plan.in_metas, call.attrs, plan.out_metas};
  return choose_layouts(rule_call, signatures_of(rule_call, *plan.rule), mesh, plan.from, plan.wanted);
}

// What a plan depends on: not how the parts lie in memory, nor where.
TensorMeta planned_meta(const Tensor& t) {
  if (!t.defined()) return kAbsent;
  return {.shape = t.shape(), .dtype = t.dtype(), .layout = t.layout()};
}

std::unique_ptr<CallPlan> make_plan(const OpCall& call) {
  const DeviceMesh mesh = common_mesh(call);
  auto plan = std::make_unique<CallPlan>();
  plan->op = &call.op;
  plan->global_attrs = call.attrs.keep();
  plan->wanted = call.wanted.layout;
  plan->implicit_replication = is_implicit_replication();
  for (const std::size_t i : indices(call.in)) {
    const Tensor& t = call.in[i];
    check_plain(call, i);
    plan->in_metas.push_back(planned_meta(t));
    plan->from.push_back(t.defined() && t.is_distributed() ? &Spec::from(t) : nullptr);
  }
  plan->rule = find_rule(call.op);
  check(
      plan->rule != nullptr,
      "{} has no sharding rule: gather its inputs with full_tensor(), work on their local() parts, or register_rule() "
      "one",
      call.op.name);
  plan->out_metas = infer_global(call, plan->in_metas);
  Choice choice = choose(*plan, call, mesh);
  const Spec* whole = Spec::replicate(mesh);
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    const Spec* now = plan->from[i] ? plan->from[i] : whole;
    const Spec* to = choice.in[i] ? choice.in[i] : whole;
    plan->in.push_back(to);
    auto& move = plan->moves.emplace_back();
    if (now == to) continue;
    const TensorMeta& meta = plan->in_metas[i];
    move = std::make_unique<const Transition>(plan_transition(now, to, meta.shape, meta.dtype));
    plan->communicates |= !move->is_free();
  }
  plan->out = std::move(choice.out);
  plan->attrs = plan->rule->attrs ? plan->rule->attrs(plan->local_call()) : plan->global_attrs;
  plan->kept.emplace_back(static_cast<const Spec*>(plan->wanted));  // dtensor is the only maker of layouts
  for (const Spec* spec : plan->from) plan->kept.emplace_back(spec);
  for (const Spec* spec : plan->in) plan->kept.emplace_back(spec);
  for (const Spec* spec : plan->out) plan->kept.emplace_back(spec);
  return plan;
}

}  // namespace

const CallPlan& plan_call(const OpCall& call) {
  PlanCache& known = cache();
  const bool implicit_replication = is_implicit_replication();
  const std::uint64_t hash = hash_of(call, implicit_replication);
  const auto is_it = [&](const CallPlan& plan) { return is_plan_of(plan, call, implicit_replication); };
  if (const CallPlan* const plan = known.plans.find(hash, is_it)) {
    ++known.counts.found;
    return *plan;
  }
  std::unique_ptr<const CallPlan> plan = make_plan(call);
  ++known.counts.made;
  return known.plans.add(hash, std::move(plan));
}

PlanCounts plan_counts() {
  PlanCounts counts = cache().counts;
  counts.kept = cache().plans.size();
  return counts;
}

void forget_plans() {
  cache().plans.clear();
  forget_transitions();
}

}  // namespace sherd
