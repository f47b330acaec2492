// A call on distributed tensors becomes a call on this rank's parts: bring the inputs to the layouts that the plan
// says, run the row (or the rule's program of rows) on the parts, and say how the results lie.
#include "dtensor/layer.h"

#include "dtensor/propagate.h"
#include "dtensor/redistribute.h"
#include "runtime/comm/comm_counter.h"
#include "runtime/op/ops.h"

namespace sherd {

namespace {

// What an error says of the inputs, which are gone by then.
[[noreturn]] void refuse_move(const CallPlan& plan, std::size_t i) {
  const Tensor& meta = plan.metas[i];
  fail("{}: input {} would have to move from {} to {} ({}); redistribute() it first, or leave StrictCommunication",
       plan.op->name, i, plan.from[i] ? plan.from[i]->describe() : "a plain tensor", plan.in[i]->describe(),
       fmt::format("{}{}", name(meta.dtype()), meta.shape()));
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

// A result for a destination with another layout, or of a program of rows, is made apart and copied.
void copy_result(const OpCall& call, std::size_t i, Tensor result, const Spec* layout) {
  static const Op& copy = find_op("copy");
  const Tensor& into = call.into[i];
  if (layout != into.layout()) {
    const Spec* to = into.is_distributed() ? &Spec::from(into) : nullptr;
    check(to != nullptr, "the destination {} is a plain tensor, the result lies as {}", into, layout->describe());
    const Transition& move = plan_transition(layout, to, into.shape(), into.dtype());
    if (is_strict_communication() && !move.is_free())
      fail(
          "{}: the result would have to move from {} to {} of its destination; redistribute() the inputs first, or "
          "leave StrictCommunication",
          call.op.name, layout->describe(), to->describe());
    result = run_transition(std::move(result), into.shape(), move);
  }
  const Tensor target = into.local();
  OpCall write{copy, {&result, 1}, {}, {&target, 1}, call.accumulate};
  call_below_dist(write);
}

bool takes_results(const OpCall& call, const CallPlan& plan) {
  if (plan.rule->run) return false;
  for (std::size_t i = 0; i < call.into.size(); ++i)
    if (call.into[i].layout() != plan.out[i]) return false;
  return true;
}

Tensors run_into(const OpCall& call, const CallPlan& plan, std::span<Tensor> local) {
  check(call.into.size() == plan.out.size(), "{} outputs for {} destinations", plan.out.size(), call.into.size());
  for (std::size_t i = 0; i < call.into.size(); ++i)
    check(call.into[i].shape() == plan.out_metas[i].shape && call.into[i].dtype() == plan.out_metas[i].dtype,
          "the destination is {}, the result is {}{}", call.into[i], name(plan.out_metas[i].dtype),
          plan.out_metas[i].shape);
  if (takes_results(call, plan)) {
    SmallVec<Tensor, 2> into;
    for (const Tensor& t : call.into) into.push_back(t.local());
    OpCall local_call{call.op, local, plan.attrs, into, call.accumulate};
    call_below_dist(local_call);
    return {};
  }
  Tensors results = run_local(plan, local);
  for (std::size_t i = 0; i < results.size(); ++i) copy_result(call, i, std::move(results[i]), plan.out[i]);
  return {};
}

Tensors distributed_layer(OpCall& call) {
  if (call.op.traits.placement) return run_placement_row(call);
  if (call.op.traits.local_extents) return run_on_local_extents(call);
  const CallPlan& plan = plan_call(call);
  if (is_strict_communication())
    for (std::size_t i = 0; i < plan.moves.size(); ++i)
      if (plan.moves[i] && !plan.moves[i]->is_free()) refuse_move(plan, i);
  const CommCause cause(call.op.name);
  SmallVec<Tensor, 4> local;
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    Tensor part = take_local(call.in[i]);
    if (plan.moves[i]) part = run_transition(std::move(part), plan.metas[i].shape(), *plan.moves[i]);
    local.push_back(std::move(part));
  }
  if (!call.into.empty()) return run_into(call, plan, local);
  Tensors results = run_local(plan, local);
  for (std::size_t i = 0; i < results.size(); ++i)
    results[i] = Tensor::distributed(plan.out_metas[i].shape, plan.out[i], results[i]);
  return results;
}

}  // namespace

void install_distributed_layer() { install_dist_layer(distributed_layer); }

}  // namespace sherd
