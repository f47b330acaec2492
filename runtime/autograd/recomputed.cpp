#include "runtime/autograd/recomputed.h"

#include <algorithm>
#include <utility>

#include "runtime/exec/context.h"
#include "runtime/op/core/dispatch.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

// Whether the vjp reads a result of its own call that the tape does not keep.
bool reads_own(const OpNode& node, std::size_t output) {
  return node.segment != 0 && node.op->needs.output(output) && !node.saved_outputs[output].defined();
}

// Plans of layouts and kernels depend on metadata alone, so this finds a row that is no function of its inputs.
void check_same(const OpNode& node, const Tensors& again) {
  for (const std::size_t i : indices(again)) {
    const TensorMeta &then = node.output_metas[i], &now = again[i].meta();
    check(now.shape == then.shape && now.dtype == then.dtype && now.layout == then.layout,
          "{} gave {} in forward and {} when backward ran it again: is a scope open in only one of them?",
          node.op->name, then, now);
  }
}

}  // namespace

void check_not_freed(const OpNode& node) {
  check(!node.freed,
        "backward through {} a second time: its saved tensors were freed; pass retain_graph to the first backward",
        node.op->name);
}

RecomputedValues::Results& RecomputedValues::results_of(const OpNode& maker) {
  Results& results = results_[&maker];
  if (results.values.empty()) results.values.resize(maker.output_metas.size());
  return results;
}

RecomputedValues::Held& RecomputedValues::input_of(const OpNode& node, std::size_t i) {
  return results_of(maker_of(node, i)).values[output_of(node, i)];
}

void RecomputedValues::count(const OpNode& node) {
  if (node.recomputed_inputs != 0)
    for (const std::size_t i : indices(node.next))
      if (is_recomputed(node, i)) ++input_of(node, i).readers;
  if (node.segment == 0 || node.freed) return;
  for (const std::size_t i : indices(node.output_metas))
    if (reads_own(node, i)) ++results_of(node).values[i].readers;
}

bool RecomputedValues::is_there(const OpNode& maker, std::size_t output) {
  return (!maker.freed && maker.saved_outputs[output].defined()) || results_of(maker).values[output].tensor.defined();
}

const Tensor& RecomputedValues::value(OpNode& maker, std::size_t output) {
  check_not_freed(maker);
  if (SavedTensor& kept = maker.saved_outputs[output]; kept.defined()) return kept.unpack();
  Held& held = results_of(maker).values[output];
  if (!held.tensor.defined()) {
    ++held.waiting;  // whoever asks
    const std::vector<OpNode*> plan = plan_for(maker);
    for (OpNode* node : plan) run_again(*node, maker);
    for (OpNode* node : plan) results_of(*node).is_planned = false;
    --held.waiting;
  }
  return held.tensor.unpack();
}

// Explicit stacks: a segment may be a chain of any length.
std::vector<OpNode*> RecomputedValues::plan_for(OpNode& wanted) {
  std::vector<OpNode*> plan{&wanted};
  results_of(wanted).is_planned = true;
  for (std::size_t next = 0; next < plan.size(); ++next) {
    const OpNode& node = *plan[next];
    check_not_freed(node);
    for (const std::size_t i : indices(node.next)) {
      if (!is_recomputed(node, i)) continue;
      OpNode& maker = maker_of(node, i);
      if (is_there(maker, output_of(node, i))) continue;
      ++input_of(node, i).waiting;
      if (!std::exchange(results_of(maker).is_planned, true)) plan.push_back(&maker);
    }
  }
  std::ranges::sort(plan, {}, &OpNode::sequence);  // as in forward
  return plan;
}

void RecomputedValues::run_again(OpNode& node, const OpNode& wanted) {
  RankContext& context = RankContext::current();
  Results& results = results_of(node);
  const std::string* const reader_path = std::exchange(context.module_path, node.module_path);
  const bool is_first_time = results.runs++ == 0;
  SmallVec<Tensor, 3> in;
  for (const std::size_t i : indices(node.next)) in.push_back(take_input(node, i, is_first_time, wanted));
  const Tensors out = call_op(*node.op, in, node.attrs);
  check_same(node, out);
  for (const std::size_t i : indices(out))
    if (Held& held = results.values[i]; (held.readers > 0 || held.waiting > 0) && !held.tensor.defined())
      held.tensor = SavedTensor(out[i]);
  context.module_path = reader_path;
}

// Moved in if it is held for nobody else: its memory may be the result's.
Tensor RecomputedValues::take_input(OpNode& node, std::size_t i, bool is_first_time, const OpNode& wanted) {
  if (!is_recomputed(node, i)) return node.saved_inputs[i].unpack();
  OpNode& maker = maker_of(node, i);
  const std::size_t output = output_of(node, i);
  Held& held = input_of(node, i);
  if (is_first_time && !node.op->needs.input(i)) --held.readers;
  const bool was_waiting = held.waiting > 0;
  if (was_waiting) --held.waiting;
  if (maker.saved_outputs[output].defined()) return maker.saved_outputs[output].unpack();
  Tensor result = held.tensor.unpack();
  if (held.waiting > 0) return result;
  const bool may_run_twice = was_waiting && &maker != &wanted && results_of(maker).runs == 1;
  const bool is_held_for_later = held.readers > 0 && !(may_run_twice && is_cheap_again(maker, output));
  if (!is_held_for_later) held.tensor = SavedTensor();
  return result;
}

// Whether making it again later takes one cheap call, since what that reads stays until its own turn.
bool RecomputedValues::is_cheap_again(const OpNode& maker, std::size_t output) {
  if (maker.segment == 0 || output != 0 || !maker.op->recompute) return false;
  for (const std::size_t i : indices(maker.next))
    if (is_recomputed(maker, i) && !is_there(maker_of(maker, i), output_of(maker, i))) return false;
  return true;
}

void RecomputedValues::let_go(const OpNode& node, std::size_t i) {
  if (Held& held = input_of(node, i); --held.readers <= 0) held.tensor = SavedTensor();
}

Tensor RecomputedValues::take(OpNode& maker, std::size_t output) {
  Tensor result = value(maker, output);
  if (Held& held = results_of(maker).values[output]; --held.readers <= 0) held.tensor = SavedTensor();
  return result;
}

// What is left is for readers that get no turn in this pass.
void RecomputedValues::begin_turn(const OpNode& node) {
  turn_ = nullptr;
  if (const bool may_run_again = node.segment != 0 || node.op->recompute; !may_run_again) return;
  const auto found = results_.find(&node);
  if (found == results_.end()) return;
  turn_ = &found->second;
  for (const std::size_t i : indices(found->second.values))
    if (!reads_own(node, i)) found->second.values[i].tensor = SavedTensor();
}

void RecomputedValues::end_turn(const OpNode& node, std::uint32_t taken) {
  const bool has_run = turn_ && turn_->runs > 0;
  if (node.recomputed_inputs != 0)
    for (const std::size_t i : indices(node.next)) {
      if (!is_recomputed(node, i) || (i < 32 && (taken >> i & 1u))) continue;
      if (node.op->needs.input(i) || !has_run) let_go(node, i);
    }
  if (std::exchange(turn_, nullptr)) results_.erase(&node);
}

}  // namespace sherd
