#include "compile/run/footprint.h"

#include <algorithm>
#include <numeric>

#include "compile/ir/graph.h"
#include "compile/ir/homes.h"
#include "compile/run/device_replay.h"
#include "compile/run/replay.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/group/group_names.h"
#include "runtime/exec/context.h"

namespace sherd {

namespace {
using ir::Program, ir::TensorGuard, ir::Value, ir::ValueKind;

std::vector<std::shared_ptr<ProcessGroup>> ghosts_of_groups() {
  std::vector<std::shared_ptr<ProcessGroup>> ghosts;
  for (const auto& [name, group] : named_groups())
    ghosts.push_back(make_ghost_group(group->rank(), group->size(), name));
  return ghosts;
}

/// A graph whose names stand for ghosts, of the current rank, which is one.
class GhostGraph {
 public:
  explicit GhostGraph(const Program& program) : graph_{program, {}} {
    const std::vector<bool> are_homes = ir::homes_of(program);
    for (const Value& value : program.values) {
      const bool is_home = value.kind == ValueKind::constant && are_homes[static_cast<std::size_t>(value.source)];
      storages_.push_back(is_home ? Storage::borrow(nullptr, value.bytes, {}) : storage_of(value));
    }
    make_slots();
    for (const Value& value : program.values) {
      if (value.kind == ValueKind::unit) keep(graph_.live.units, value);
      if (value.kind == ValueKind::constant) keep(graph_.live.constants, value);
    }
    graph_.live.layouts.resize(program.layouts.size());
    for (const std::string& path : program.modules) graph_.live.modules.push_back(RankContext::current().intern(path));
    make_arguments();
  }

  const ir::Graph& graph() const { return graph_; }
  std::span<const Tensor> arguments() const { return arguments_; }

 private:
  static Ref<Storage> storage_of(const Value& value) {
    if (value.kind == ValueKind::temporary) return {};
    const bool is_absent = value.kind == ValueKind::unit && value.is_absent;
    return is_absent ? Storage::released(value.bytes, value.category, value.device)
                     : Storage::allocate(value.bytes, value.category, value.device);
  }
  Ref<Storage>& storage(ir::ValueId value) { return storages_[static_cast<std::size_t>(value)]; }

  static Tensor tensor(const Ref<Storage>& storage, const TensorGuard& guard, std::int64_t offset) {
    return Tensor::make(storage, guard.shape, guard.strides, offset, guard.dtype, storage->device());
  }

  void make_slots() {
    for (const ir::GraphSlot& slot : graph_.program.slots) {
      slots_.push_back(std::make_unique<Slot>(slot.name, slot.requires_grad));
      graph_.live.slots.push_back(NodeRef(slots_.back()->leaf()));
    }
    for (const ir::Binding& binding : graph_.program.bindings) {
      const Tensor held = tensor(storage(binding.value), binding.tensor, binding.tensor.offset);
      Slot& slot = *slots_[static_cast<std::size_t>(binding.slot)];
      if (binding.gradient) slot.set_grad(held);
      else slot.set(held);
    }
  }

  void keep(std::vector<Ref<Storage>>& table, const Value& value) {
    const auto at = static_cast<std::size_t>(value.source);
    if (table.size() <= at) table.resize(at + 1);
    table[at] = storage(value.home.value);
  }

  // One that is not used has no value, and no bytes.
  void make_arguments() {
    const Program& program = graph_.program;
    std::vector<Ref<Storage>> bytes(program.arguments.size());
    for (const Value& value : program.values)
      if (value.kind == ValueKind::argument) bytes[static_cast<std::size_t>(value.source)] = storage(value.home.value);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const ir::ArgumentGuard& guard = program.arguments[i];
      std::int64_t shift = 0;
      const Ref<Storage>* held = &bytes[i];
      if (guard.shares >= 0) {
        shift = guard.shift / byte_size(guard.tensor.dtype);
        held = &bytes[static_cast<std::size_t>(guard.shares)];
      }
      const Ref<Storage> none = *held ? *held : Storage::released(0, MemoryCategory::activations);
      arguments_.push_back(tensor(none, guard.tensor, shift));
    }
  }

  ir::Graph graph_;
  std::vector<Ref<Storage>> storages_;  // by value; none of temporaries
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Tensor> arguments_;
};

void add_most(CategoryBytes& most, const CategoryBytes& other) {
  for (std::size_t c = 0; c < most.size(); ++c) most[c] = std::max(most[c], other[c]);
}

// The footprint of one replay, in which slots are as the one before has left them.
ir::Footprint footprint_of_replay(const GhostGraph& graph, Accounting& account) {
  ir::Footprint found;
  const auto note = [&](int node) {
    add_most(found.most, account.peak());
    if (account.total_peak() > found.peak) {
      found.peak = account.total_peak();
      found.at_peak = account.at_peak();
      found.node = node;
    }
  };
  account.reset_peaks();
  note(-1);
  Interpreter(graph.graph())
      .run(
          graph.arguments(), [] {},
          [&](std::size_t node) {
            note(static_cast<int>(node));
            found.by_node.push_back(account.at_peak());
            account.reset_peaks();
          });
  return found;
}

}  // namespace

// What a replay leaves behind, as on its way to a file, is there in the next ones.
ir::Footprint footprint_of(const Program& program) {
  const std::vector<std::shared_ptr<ProcessGroup>> groups = ghosts_of_groups();
  const RankScope ghost("", {.ghost = true});
  for (const auto& group : groups) name_group(group);
  Accounting& account = RankContext::current().allocator(device_of(program)).accounting();
  const GhostGraph graph(program);

  const CategoryBytes before = account.current();
  ir::Footprint found = footprint_of_replay(graph, account);
  if (account.current() != before) {
    ir::Footprint next = footprint_of_replay(graph, account);
    if (next.peak > found.peak) std::swap(found, next);
    add_most(found.most, next.most);
  }
  found.before = before;
  return found;
}

}  // namespace sherd
