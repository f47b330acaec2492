#include "compile/run/guards.h"

#include <algorithm>
#include <functional>

#include "compile/run/guard.h"
#include "runtime/autograd/slot.h"
#include "runtime/exec/context.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {
using ir::Binding;

bool is_updated(const ir::Program& program, const Binding& binding) {
  return std::ranges::any_of(program.updates, [&](const ir::SlotUpdate& update) {
    return update.slot == binding.slot && update.gradient == binding.gradient;
  });
}

// This rank's, and those of others that have made what the step reads: a model may be trained by another thread than
// the one that has made it.
std::vector<std::shared_ptr<const RankRegister>> registers_of(const ir::Graph& graph) {
  std::vector<std::shared_ptr<const RankRegister>> all{RankContext::current().rank_register};
  const auto add = [&](const std::shared_ptr<const RankRegister>& home) {
    if (home && std::ranges::find(all, home) == all.end()) all.push_back(home);
  };
  for (const std::size_t i : indices(graph.live.slots))
    if (!graph.program.slots[i].is_local)
      if (const Slot* const slot = graph.live.slot(static_cast<int>(i))) add(slot->home());
  for (const auto& setting : graph.live.settings) add(setting->home);
  return all;
}

// Hooks of a slot and where its gradients go are no part of a program: a recording has what they did.
std::vector<std::uint64_t> told_of(const ir::Graph& graph) {
  std::vector<std::uint64_t> told(graph.program.slots.size());
  for (const std::size_t i : indices(told))
    if (!graph.program.slots[i].is_local)
      if (const Slot* const slot = graph.live.slot(static_cast<int>(i))) told[i] = slot->num_told();
  return told;
}

// A slot that is left with an argument looks as the argument of that call does.
bool keeps_an_argument(const ir::Program& program) {
  return std::ranges::any_of(program.updates, [&](const ir::SlotUpdate& update) {
    const ir::TensorRef& ref = update.result.local;
    return ref.defined() && program.value(ref.value).kind == ir::ValueKind::argument;
  });
}

}  // namespace

Guards::Guards(const ir::Graph& graph)
    : graph_(graph),
      registers_(registers_of(graph)),
      told_(told_of(graph)),
      can_settle_(!keeps_an_argument(graph.program)) {
  for (const Binding& binding : graph.program.bindings) {
    if (binding.held_by_slot_only) held_.push_back(&binding);
    if (is_updated(graph.program, binding)) moving_.push_back(&binding);
  }
}

// Each only grows, so none has changed where the sum has not.
std::uint64_t Guards::changes() const {
  std::uint64_t sum = 0;
  for (const auto& each : registers_) sum += each->changes();
  return sum;
}

std::string Guards::mismatch(std::span<const Tensor> arguments) {
  if (RankContext::current().rank_register != registers_.front())
    return "it is called on another thread, with a seed and a step of its own, than it was recorded on";
  const std::uint64_t now = changes();
  if (!is_settled_ || now != seen_) {
    std::string found = look_at_all(arguments);
    if (!found.empty()) return found;
    const bool is_alike = found_ == before_;
    stays_alike_ = is_alike && (stays_alike_ || (is_as_left_ && now == seen_));
    is_as_left_ = false;
    before_.swap(found_);
    return {};
  }
  if (std::string found = argument_mismatch(graph_, arguments); !found.empty()) return found;
  const bool is_held = std::ranges::any_of(held_, [&](const Binding* binding) {
    const Tensor& grad = living_slot(graph_, binding->slot).grad();
    return grad.defined() && !ir::is_sole_owner(grad);
  });
  return is_held || may_share(arguments) ? look_at_all(arguments) : std::string();
}

// What shares memory after a replay follows from what shares memory before it, and so do shapes and layouts. So if a
// replay leaves that as it has found it, all later ones do. Slots that hand their tensors on may take some calls to
// come to that, or never come to it.
void Guards::replayed() {
  seen_ = changes();
  is_as_left_ = true;
  is_settled_ = can_settle_ && stays_alike_;
}

std::string Guards::told_mismatch() const {
  for (const std::size_t i : indices(told_))
    if (const ir::GraphSlot& slot = graph_.program.slots[i]; !slot.is_local)
      if (living_slot(graph_, static_cast<int>(i)).num_told() != told_[i])
        return fmt::format("slot \"{}\" was given a hook or another sink of its gradients since it was recorded",
                           slot.name);
  return {};
}

std::string Guards::look_at_all(std::span<const Tensor> arguments) {
  ++num_looks_;
  // Settings first: a mesh that another one has replaced is gone, and slots and arguments on it with it.
  std::string found = setting_mismatch(graph_);
  if (found.empty()) found = argument_mismatch(graph_, arguments);
  if (found.empty()) found = slot_mismatch(graph_);
  if (found.empty()) found = told_mismatch();
  if (found.empty()) found = sharing_mismatch(graph_, arguments, &found_);
  if (!found.empty()) return found;
  fixed_.clear();
  for (const Binding& binding : graph_.program.bindings)
    if (!is_updated(graph_.program, binding)) fixed_.push_back(bound_tensor(graph_, binding).local().storage().get());
  for (const auto* list : {&graph_.live.units, &graph_.live.constants})
    for (const Ref<Storage>& storage : *list) fixed_.push_back(storage.get());
  std::ranges::sort(fixed_, std::less<>());
  return {};
}

// Whether an argument may share bytes with another or with what the step reads from elsewhere, not as recorded.
bool Guards::may_share(std::span<const Tensor> arguments) const {
  for (const std::size_t i : indices(arguments)) {
    if (graph_.program.arguments[i].shares >= 0) continue;  // it does as recorded
    const Storage* const storage = arguments[i].local().storage().get();
    if (std::ranges::binary_search(fixed_, storage, std::less<>())) return true;
    for (const Binding* binding : moving_)
      if (bound_tensor(graph_, *binding).local().storage().get() == storage) return true;
    for (const std::size_t j : up_to(i))
      if (graph_.program.arguments[j].shares < 0 && arguments[j].local().storage().get() == storage) return true;
  }
  return false;
}

}  // namespace sherd
