// A call on distributed tensors becomes a call on this rank's parts: bring the inputs to the layouts that the plan
// says, run the row (or the rule's program of rows) on the parts, and say how the results lie.
#include "dtensor/layer.h"

#include "dtensor/modes.h"
#include "dtensor/propagate.h"
#include "dtensor/transition/placement_rows.h"
#include "dtensor/transition/redistribute.h"
#include "runtime/comm/group/count_collective.h"
#include "runtime/op/core/step_names.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

// The error names the first input that would have to move. It asks the plan: the inputs may be gone.
[[noreturn]] void refuse_moves(const CallPlan& plan) {
  std::size_t i = 0;
  while (!plan.moves[i] || plan.moves[i]->is_free()) ++i;
  const TensorMeta& meta = plan.in_metas[i];
  fail("{}: input {} would have to move from {} to {} ({}); redistribute() it first, or leave StrictCommunication",
       plan.op->name, i, plan.from[i] ? plan.from[i]->describe() : "a plain tensor", plan.in[i]->describe(),
       fmt::format("{}{}", name(meta.dtype), meta.shape));
}

// Rows like the optimizer's: each rank works on its own elements, whatever the layout.
Tensors run_on_local_extents(OpCall& call) {
  SmallVec<Tensor, 4> local;
  for (const Tensor& t : call.in) local.push_back(t.defined() ? t.local() : t);
  SmallVec<Tensor, 2> into;
  for (const Tensor& t : call.into) into.push_back(t.local());
  OpCall local_call{call.op, local, call.attrs, into, call.accumulate};
  return call_below_dist(local_call);
}

// The row on this rank's parts, or what its rule runs in its place.
Tensors run_local(const CallPlan& plan, std::span<Tensor> local) {
  if (plan.rule->run) return plan.rule->run(plan.local_call(), plan.attrs, local);
  return below(*plan.op, plan.attrs, local);
}

// How a result that lies as `layout` comes to its destination; null: it lies alike.
const Transition* move_to_destination(const OpCall& call, std::size_t i, const Spec* layout) {
  const Tensor& into = call.into[i];
  if (layout == into.layout()) return nullptr;
  check(into.is_distributed(), "the destination {} is a plain tensor, the result lies as {}", into, layout->describe());
  const Spec* to = &Spec::from(into);
  const Transition& move = plan_transition(layout, to, into.shape(), into.dtype());
  if (is_strict_communication() && !move.is_free())
    fail(
        "{}: the result would have to move from {} to {} of its destination; redistribute() the inputs first, or "
        "leave StrictCommunication",
        call.op.name, layout->describe(), to->describe());
  return &move;
}

bool takes_results(const OpCall& call, const CallPlan& plan) {
  if (plan.rule->run) return false;
  for (const std::size_t i : indices(call.into))
    if (call.into[i].layout() != plan.out[i]) return false;
  return true;
}

// Where the results go: straight to their destinations, or by way of tensors of their own.
struct Destinations {
  bool is_direct = false;
  SmallVec<const Transition*, 2> moves;
};

Destinations destinations_of(const OpCall& call, const CallPlan& plan) {
  check(call.into.size() == plan.out.size(), "{} outputs for {} destinations", plan.out.size(), call.into.size());
  for (const std::size_t i : indices(call.into))
    check(call.into[i].shape() == plan.out_metas[i].shape && call.into[i].dtype() == plan.out_metas[i].dtype,
          "the destination is {}, the result is {}{}", call.into[i], name(plan.out_metas[i].dtype),
          plan.out_metas[i].shape);
  Destinations to{.is_direct = takes_results(call, plan), .moves = {}};
  if (!to.is_direct)
    for (const std::size_t i : indices(call.into)) to.moves.push_back(move_to_destination(call, i, plan.out[i]));
  return to;
}

void run_into(const OpCall& call, const CallPlan& plan, const Destinations& to, std::span<Tensor> local) {
  SmallVec<Tensor, 2> into;
  for (const Tensor& t : call.into) into.push_back(t.local());
  if (to.is_direct) {
    OpCall local_call{call.op, local, plan.attrs, into, call.accumulate};
    call_below_dist(local_call);
    return;
  }
  Tensors results = run_local(plan, local);
  for (const std::size_t i : indices(results)) {
    Tensor result = std::move(results[i]);
    if (to.moves[i]) result = run_transition(std::move(result), call.into[i].shape(), *to.moves[i]);
    OpCall write{op::copy, {&result, 1}, {}, {&into[i], 1}, call.accumulate};
    call_below_dist(write);
  }
}

// Whether the result may be added to `sum` where that lies.
bool adds_to(const Tensor& sum, const CallPlan& plan) {
  return !plan.rule->run && plan.op->traits.accumulates && plan.out.size() == 1 && sum.layout() == plan.out[0] &&
         sum.shape() == plan.out_metas[0].shape && sum.dtype() == plan.out_metas[0].dtype;
}

Tensors run_fresh(const CallPlan& plan, std::span<Tensor> local) {
  Tensors results = run_local(plan, local);
  for (const std::size_t i : indices(results))
    results[i] = Tensor::distributed(plan.out_metas[i].shape, plan.out[i], results[i]);
  return results;
}

// What comes after planning, which is the same on all ranks: what fails here may fail on one.
Tensors run_plan(OpCall& call, const CallPlan& plan, const Destinations& to) {
  const CommCause cause(call.op.name);
  SmallVec<Tensor, 4> local;
  for (const std::size_t i : indices(call.in)) {
    Tensor part = take_local(call.in[i]);
    if (plan.moves[i]) part = run_transition(std::move(part), plan.in_metas[i].shape, *plan.moves[i]);
    local.emplace_back(std::move(part));
  }
  if (!call.into.empty()) {
    run_into(call, plan, to, local);
    return {};
  }
  if (const Tensor* sum = call.wanted.sum; sum && adds_to(*sum, plan)) {
    const Tensor into = sum->local();
    OpCall local_call{call.op, local, plan.attrs, {&into, 1}, true};
    call_below_dist(local_call);
    return Tensors{*sum};
  }
  return run_fresh(plan, local);
}

Tensors distributed_layer(OpCall& call) {
  if (call.op.traits.placement) return run_placement_row(call);
  if (call.op.traits.local_extents) return run_on_local_extents(call);
  const CallPlan& plan = plan_call(call);
  if (plan.communicates && is_strict_communication()) refuse_moves(plan);
  const Destinations to = call.into.empty() ? Destinations{} : destinations_of(call, plan);
  try {
    return run_plan(call, plan, to);
  } catch (...) {
    abort_peers(*plan.in[0]);
    throw;
  }
}

}  // namespace

void install_distributed_layer() {
  add_placement_rows();
  install_dist_layer(distributed_layer);
  install_layout_finder(DeviceMesh::layouts_called);
}

}  // namespace sherd
