#include "compile/run/guard.h"

#include <algorithm>
#include <functional>

#include "runtime/autograd/slot.h"
#include "runtime/exec/context.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {
using ir::Graph, ir::Program, ir::ValueId, ir::ValueKind;

bool fits(const ir::Live& live, const ir::TensorGuard& guard, const Tensor& tensor, bool compare_offset) {
  const Distributed* const layout = live.layout(guard.layout);
  if ((tensor.is_distributed() ? tensor.layout() : nullptr) != layout || tensor.shape() != guard.global) return false;
  if (layout) layout->replicated();  // Error if its mesh is gone: nodes know that one's groups by address
  const TensorImpl& local = tensor.is_distributed() ? *tensor.impl()->local : *tensor.impl();
  const TensorMeta& meta = local.meta;
  return meta.dtype == guard.dtype && meta.shape == guard.shape && meta.strides == guard.strides && local.storage &&
         meta.device == guard.device && (!compare_offset || meta.offset == guard.offset);
}

std::string text(DType dtype, const Shape& shape, const Strides& strides, std::int64_t offset,
                 const Distributed* layout, const Shape& global) {
  std::string result = fmt::format("{}{}", name(dtype), to_string(shape));
  if (!is_contiguous(shape, strides)) result += fmt::format(" with strides {}", to_string(strides));
  if (offset != 0) result += fmt::format(" at element {}", offset);
  if (layout) result += fmt::format(" (local part of {}{}{})", name(dtype), to_string(global), layout->describe());
  return result;
}

std::string differs(const ir::Live& live, std::string_view what, const Tensor& tensor, ir::TensorGuard guard,
                    bool compare_offset) {
  if (!tensor.defined()) return fmt::format("{} is gone", what);
  const Tensor local = tensor.local();
  if (local.device() != guard.device)
    return fmt::format("{} is on {}, in the graph it was on {}", what, to_string(local.device()),
                       to_string(guard.device));
  if (!compare_offset) guard.offset = 0;
  const std::string now = text(local.dtype(), local.shape(), local.strides(), compare_offset ? local.offset() : 0,
                               tensor.is_distributed() ? tensor.layout() : nullptr, tensor.shape());
  return fmt::format(
      "{} is {}, the graph has {}", what, now,
      text(guard.dtype, guard.shape, guard.strides, guard.offset, live.layout(guard.layout), guard.global));
}

std::string shown(const ir::GraphSlot& slot, bool gradient) {
  return fmt::format("{} \"{}\"", gradient ? "the gradient of" : "slot", slot.name);
}

}  // namespace

Slot& living_slot(const Graph& graph, int index) {
  Slot* const slot = graph.live.slot(index);
  if (!slot)
    fail("the captured step uses slot \"{}\", which no longer exists: capture the step again with compile()",
         graph.program.slots[static_cast<std::size_t>(index)].name);
  return *slot;
}

Tensor bound_tensor(const Graph& graph, const ir::Binding& binding) {
  const Slot& slot = living_slot(graph, binding.slot);
  if (binding.gradient) return slot.grad();
  if (binding.kept) return slot.has_value() ? slot.kept_value() : Tensor();
  return slot.has_value() ? slot.value() : Tensor();
}

void leave_requires_grad(const Graph& graph) {
  for (const std::size_t i : indices(graph.program.slots))
    if (const ir::GraphSlot& entry = graph.program.slots[i];
        !entry.is_local && entry.requires_grad != entry.leaves_requires_grad)
      graph.live.slot(static_cast<int>(i))->set_requires_grad(entry.leaves_requires_grad);
}

std::string argument_mismatch(const Graph& graph, std::span<const Tensor> arguments) {
  const Program& program = graph.program;
  if (arguments.size() != program.arguments.size())
    return fmt::format("{} arguments, the graph has {}", arguments.size(), program.arguments.size());
  if (RankContext::current().grad_enabled != program.grad_enabled)
    return fmt::format("recording of gradients is {}, the graph was captured with it {}",
                       program.grad_enabled ? "off" : "on", program.grad_enabled ? "on" : "off");
  for (const std::size_t i : indices(arguments)) {
    const ir::ArgumentGuard& guard = program.arguments[i];
    const Tensor& argument = arguments[i];
    if (!argument.defined() || !fits(graph.live, guard.tensor, argument, false))
      return differs(graph.live, fmt::format("argument {}", i), argument, guard.tensor, false);
    if (argument.requires_grad()) return fmt::format("argument {} carries autograd history", i);
    if (guard.shares < 0) continue;
    const Tensor& other = arguments[static_cast<std::size_t>(guard.shares)];
    if (argument.local().storage() != other.local().storage() ||
        ir::base_bytes(argument) - ir::base_bytes(other) != guard.shift)
      return fmt::format("arguments {} and {} no longer share memory as in the graph", guard.shares, i);
  }
  return {};
}

namespace {

/// A storage from outside, as a value of the program.
struct Outside {
  const Storage* storage;
  ValueId value;
};

std::string name_of(const Program& program, ValueId id) {
  const ir::Value& value = program.value(id);
  if (value.kind == ValueKind::argument) return fmt::format("argument {}", value.source);
  if (value.kind == ValueKind::unit) return "a unit";
  if (value.kind == ValueKind::constant) return "a tensor that the step uses";
  const ir::Binding& binding = program.bindings[static_cast<std::size_t>(value.source)];
  return shown(program.slot(binding.slot), binding.gradient);
}

std::vector<Outside> storages_from_outside(const Graph& graph, std::span<const Tensor> arguments) {
  std::vector<Outside> all;
  for (const std::size_t v : indices(graph.program.values)) {
    const ir::Value& value = graph.program.values[v];
    const auto source = static_cast<std::size_t>(value.source);
    const Storage* storage = nullptr;
    switch (value.kind) {
      case ValueKind::argument:  // what shared memory with an earlier one does so now, in the recorded places
        if (graph.program.arguments[source].shares < 0) storage = arguments[source].local().storage().get();
        break;
      case ValueKind::slot:
      case ValueKind::gradient:
        storage = bound_tensor(graph, graph.program.bindings[source]).local().storage().get();
        break;
      case ValueKind::unit:
      case ValueKind::constant: storage = graph.live.storage(value).get(); break;
      case ValueKind::temporary: break;
    }
    if (storage && storage->bytes() > 0) all.push_back({storage, static_cast<ValueId>(v)});
  }
  std::ranges::stable_sort(all, std::less<>(), &Outside::storage);
  return all;
}

std::vector<ValueId> who_shares(const Program& program, const std::vector<Outside>& all) {
  std::vector<ValueId> shares(program.values.size(), -1);
  const Storage* storage = nullptr;
  ValueId first = -1;
  for (const Outside& outside : all) {
    if (program.value(outside.value).kind == ValueKind::argument) continue;
    if (storage != outside.storage) first = outside.value;
    storage = outside.storage;
    shares[static_cast<std::size_t>(outside.value)] = first;
  }
  return shares;
}

// The first of the arguments that share memory stands for all.
ValueId root_of(const Program& program, ValueId id) {
  if (program.value(id).kind != ValueKind::argument) return id;
  int argument = program.value(id).source;
  while (program.arguments[static_cast<std::size_t>(argument)].shares >= 0)
    argument = program.arguments[static_cast<std::size_t>(argument)].shares;
  const auto found = std::ranges::find_if(program.values, [&](const ir::Value& value) {
    return value.kind == ValueKind::argument && value.source == argument;
  });
  return found == program.values.end() ? id : static_cast<ValueId>(found - program.values.begin());
}

bool writes_one(const Program& program, ValueId a, ValueId b) {
  const auto is_one = [&](const ir::TensorRef& ref) {
    if (!ref.defined() || program.value(ref.value).kind == ValueKind::temporary) return false;
    const ValueId root = root_of(program, ref.value);
    return root == a || root == b;
  };
  return std::ranges::any_of(program.nodes, [&](const ir::GraphNode& node) {
    return std::ranges::any_of(node.out, is_one) ||
           std::any_of(node.in.begin(), node.in.begin() + node.num_mutated, is_one);
  });
}

}  // namespace

std::string sharing_mismatch(const Graph& graph, std::span<const Tensor> arguments, std::vector<ValueId>* shares) {
  const std::vector<Outside> all = storages_from_outside(graph, arguments);
  if (shares) *shares = who_shares(graph.program, all);
  for (const std::size_t i : Numbers<std::size_t>(1, all.size()))
    for (std::size_t j = i; j > 0 && all[j - 1].storage == all[i].storage; --j)
      if (writes_one(graph.program, all[j - 1].value, all[i].value))
        return fmt::format("{} and {} share memory that the step writes, in the graph they did not",
                           name_of(graph.program, all[j - 1].value), name_of(graph.program, all[i].value));
  return {};
}

std::string setting_mismatch(const Graph& graph) {
  for (const std::size_t i : indices(graph.live.settings))
    if (const std::string &now = graph.live.settings[i]->text, &recorded = graph.program.settings[i].text;
        now != recorded)
      return fmt::format("{} is {}, in the graph it is {}", graph.program.settings[i].name, now, recorded);
  return {};
}

std::string slot_mismatch(const Graph& graph) {
  const Program& program = graph.program;
  for (const std::size_t i : indices(program.slots)) {
    const ir::GraphSlot& entry = program.slots[i];
    if (entry.is_local) continue;
    const Slot* const slot = &living_slot(graph, static_cast<int>(i));
    if (slot->requires_grad() != entry.requires_grad)
      return fmt::format("slot \"{}\" {} a gradient, in the graph it {}", entry.name,
                         slot->requires_grad() ? "wants" : "does not want", entry.requires_grad ? "does" : "does not");
    if (slot->has_value() != entry.had_value)
      return fmt::format("slot \"{}\" {} a value, before the recorded run it {}", entry.name,
                         slot->has_value() ? "has" : "does not have", entry.had_value ? "had one" : "did not");
    if (slot->grad().defined() != entry.had_grad)
      return fmt::format("slot \"{}\" has {} gradient before the step, in the graph it has {}", entry.name,
                         entry.had_grad ? "no" : "a", entry.had_grad ? "one" : "none");
  }
  for (const ir::Binding& binding : program.bindings) {
    const ir::GraphSlot& slot = program.slot(binding.slot);
    const Slot& now = living_slot(graph, binding.slot);
    if (binding.held_by_slot_only && now.grad().defined() && !ir::is_sole_owner(now.grad()))
      return fmt::format("the gradient of \"{}\" is held outside of the slot, in the graph it was not", slot.name);
    const Tensor tensor = bound_tensor(graph, binding);
    if (!tensor.defined() || !fits(graph.live, binding.tensor, tensor, true))
      return differs(graph.live, shown(slot, binding.gradient), tensor, binding.tensor, true);
    const Ref<Storage>& storage = tensor.local().storage();
    const ir::Value& value = program.value(binding.value);
    const ir::Binding& first = program.bindings[static_cast<std::size_t>(value.source)];
    if (&first == &binding) {
      if (storage->owner)
        return fmt::format("{} holds memory that its unit gathers and releases", shown(slot, binding.gradient));
      if (storage->bytes() != value.bytes)
        return fmt::format("{} lies in {} bytes of memory, the graph has {}", shown(slot, binding.gradient),
                           storage->bytes(), value.bytes);
    } else if (bound_tensor(graph, first).local().storage() != storage) {
      return fmt::format("{} no longer shares memory with {}", shown(slot, binding.gradient),
                         shown(program.slot(first.slot), first.gradient));
    }
  }
  return {};
}

}  // namespace sherd
