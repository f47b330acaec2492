#include "compile/run/bind.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "compile/ir/homes.h"
#include "compile/ir/text/parse.h"
#include "compile/ir/text/print.h"
#include "compile/ir/text/unit_table.h"
#include "compile/ir/verify.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/group_names.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/core/host_state.h"
#include "runtime/op/core/step_names.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/fnv1a.h"
#include "runtime/tensor/nearest.h"

namespace sherd {

namespace {
using ir::Graph, ir::Live, ir::Program, ir::Value;

// All bytes of a storage, as a tensor.
Tensor all_bytes(const Ref<Storage>& storage) { return Tensor::over(storage, {storage->bytes()}, {1}, 0, DType::u8); }

ir::ConstantContent content_of(const Ref<Storage>& storage) {
  if (storage->is_ghost() || RankContext::current().is_ghost()) return {};
  const Tensor host = to(all_bytes(storage), Device::cpu());
  const std::string_view bytes(static_cast<const char*>(static_cast<const void*>(host.storage()->read())),
                               static_cast<std::size_t>(storage->bytes()));
  const bool is_carried = storage->bytes() <= ir::ConstantContent::kMostBytes;
  return {is_carried ? std::string(bytes) : std::string(), fnv1a(bytes)};
}

class Binder {
 public:
  Binder(const Program& program, const Names& names)
      : program_(program),
        names_(names),
        slots_(names.slots.empty() ? living_slots() : names.slots),
        units_(program.units.size()),
        constants_(program.constants.size()),
        are_homes_(homes_of(program)) {
    for (Slot* slot : slots_) by_name_[slot->name()].push_back(slot);
    for (const ir::GraphSlot& slot : program.slots)
      if (!slot.is_local) wanted_.insert(slot.name);
    for (const Value& value : program.values) {
      const auto source = static_cast<std::size_t>(value.source);
      if (value.kind == ir::ValueKind::unit) units_[source] = &value;
      if (value.kind == ir::ValueKind::constant) constants_[source] = &value;
    }
    if (!program.constants.empty())
      for (const Ref<Storage>& storage : names.constants) given_.push_back({storage});
  }

  Live run() {
    check_arguments();
    check_unit_layouts();
    Live live;
    for (std::size_t i = 0; i < program_.slots.size(); ++i) live.slots.push_back(slot(i));
    for (const std::string& path : program_.modules) live.modules.push_back(RankContext::current().intern(path));
    check(names_.layouts.empty() || names_.layouts.size() == program_.layouts.size(),
          "Names::layouts has {} layouts, the program {}", names_.layouts.size(), program_.layouts.size());
    for (std::size_t i = 0; i < program_.layouts.size(); ++i)
      live.layouts.push_back(names_.layouts.empty() ? layout(program_.layouts[i]) : names_.layouts[i]);
    for (const ir::GraphSetting& setting : program_.settings) live.settings.push_back(this->setting(setting));
    for (std::size_t i = 0; i < program_.units.size(); ++i) live.units.push_back(unit(i));
    for (std::size_t i = 0; i < program_.constants.size(); ++i) live.constants.push_back(constant(i));
    return live;
  }

 private:
  // Guards compare arguments; no value may reach further than they do.
  void check_arguments() const {
    for (const Value& value : program_.values) {
      if (value.kind != ir::ValueKind::argument) continue;
      const ir::TensorGuard& guard = program_.arguments[static_cast<std::size_t>(value.source)].tensor;
      const std::int64_t bytes = ir::TensorRef{0, guard.dtype, guard.shape, guard.strides, 0}.extent().second;
      check(value.bytes <= bytes, "argument {} has {} bytes, and the program uses {} of them", value.source, bytes,
            value.bytes);
    }
  }

  // The numbers of a layout are those of one rank: the program is for a rank that has that shard.
  void check_unit_layouts() const {
    const ir::UnitTable table(program_);
    for (const auto& [name, layout] : table.entries()) {
      if (!layout->shard_axis.empty()) {
        const ProcessGroup& group = group_of(name, layout->shard_axis);
        check(group.size() == layout->shards && group.rank() == layout->shard,
              "unit \"{}\" of the program is shard {} of {} over the group \"{}\", and this rank has shard {} of {}",
              name, layout->shard, layout->shards, layout->shard_axis, group.rank(), group.size());
      }
      if (!layout->replica_axis.empty()) {
        const ProcessGroup& group = group_of(name, layout->replica_axis);
        check(group.size() == layout->replicas,
              "unit \"{}\" of the program has {} replicas over the group \"{}\", and here it has {}", name,
              layout->replicas, layout->replica_axis, group.size());
      }
    }
  }

  static const ProcessGroup& group_of(const std::string& unit, const std::string& axis) {
    const ProcessGroup* const group = find_group(axis);
    check(group != nullptr,
          "unit \"{}\" of the program lies on the group \"{}\", which is not on this rank: make its mesh first", unit,
          axis);
    return *group;
  }

  std::span<Slot* const> slots_called(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? std::span<Slot* const>() : found->second;
  }

  // Slots of one name are "w", "w~2", ... in the order in which they were made.
  NodeRef slot(std::size_t index) const {
    const ir::GraphSlot& wanted = program_.slots[index];
    if (wanted.is_local) return {};
    std::string name = wanted.name;
    std::size_t place = 0;
    if (const std::size_t mark = name.rfind('~'); mark != std::string::npos && slots_called(name).empty()) {
      std::string first = name.substr(0, mark);
      for (std::size_t i = 2; place == 0 && i <= program_.slots.size(); ++i)
        if (name == fmt::format("{}~{}", first, i)) place = i - 1;
      if (place > 0) name = std::move(first);
    }
    std::size_t namesakes = 1;
    while (is_numbered(fmt::format("{}~{}", name, namesakes + 1))) ++namesakes;
    const std::span<Slot* const> found = slots_called(name);
    if (found.empty())
      fail("the program uses slot \"{}\", which is not on this rank{}", wanted.name, did_you_mean(wanted.name));
    check(found.size() == namesakes,
          "the program uses {} of the {} slots called \"{}\" on this rank, and does not say which: name them in "
          "Names::slots",
          namesakes, found.size(), name);
    return NodeRef(found[place]->leaf());
  }

  // Whether the program has a slot of that name, and no slot here is called so itself.
  bool is_numbered(const std::string& name) const { return wanted_.contains(name) && slots_called(name).empty(); }

  std::string did_you_mean(const std::string& name) const {
    std::vector<std::string> known;
    for (const Slot* slot : slots_) known.push_back(slot->name());
    return sherd::did_you_mean(name, known);
  }

  static LayoutRef layout(const std::string& name) {
    const std::vector<LayoutRef> found = find_layouts(name);
    check(!found.empty(), "the program uses layout {}, which no tensor on this rank has had: make its mesh first",
          name);
    check(found.size() == 1,
          "{} meshes on this rank have a layout {}, and the program does not say which: give it in Names::layouts",
          found.size(), name);
    return found.front();
  }

  static std::shared_ptr<const StepSetting> setting(const ir::GraphSetting& wanted) {
    auto found = setting_called(wanted.name);
    check(found != nullptr, "the program depends on \"{}\", which is {} in it, and nothing on this rank has that",
          wanted.name, wanted.text);
    return found;
  }

  Ref<Storage> unit(std::size_t index) const {
    const std::string& name = program_.units[index];
    Ref<Storage> storage = find_storage(name);
    if (!storage) fail("the program uses the storage \"{}\" of a unit, which is not on this rank", name);
    if (const Value* value = units_[index])
      check(storage->bytes() == value->bytes && storage->device() == value->device,
            "the storage \"{}\" has {} bytes on {}, in the program it has {} on {}", name, storage->bytes(),
            to_string(storage->device()), value->bytes, to_string(value->device));
    return storage;
  }

  Ref<Storage> constant(std::size_t index) {
    const ir::ConstantContent& content = program_.constants[index];
    const Value* const value = constants_[index];
    if (!value) return Storage::allocate(0, MemoryCategory::activations);
    const bool is_home = are_homes_[index];
    for (Given& given : given_)
      if (given.storage && given.storage->bytes() == value->bytes && given.storage->device() == value->device &&
          (is_home ? home_of(*given.storage) != nullptr : given.has(content)))
        return std::exchange(given.storage, {});  // equal ones stay apart: the step may write into one
    if (is_home || RankContext::current().is_ghost() || value->bytes == 0)
      return Storage::allocate(value->bytes, value->category, value->device);
    check(static_cast<std::int64_t>(content.bytes.size()) == value->bytes,
          "the program does not carry constant #{}, {}{} of {} bytes with the hash {:016x}: give its storage in "
          "Names::constants",
          index, name(value->home.dtype), to_string(value->home.shape), value->bytes, content.hash);
    const Ref<Storage> host = Storage::allocate(value->bytes, value->category);
    std::memcpy(host->write(), content.bytes.data(), content.bytes.size());
    Ref<Storage> there = to(all_bytes(host), value->device).storage();
    there->retag(value->category);
    return there;
  }

  struct Given {
    Ref<Storage> storage;  // none: it is a constant already
    std::uint64_t hash = 0;
    bool has(const ir::ConstantContent& content) {
      if (content.hash == 0) return false;
      if (hash == 0) hash = content_of(storage).hash;
      return hash == content.hash;
    }
  };
  const Program& program_;
  const Names& names_;
  const std::vector<Slot*> slots_;
  std::unordered_map<std::string, std::vector<Slot*>> by_name_;
  std::unordered_set<std::string_view> wanted_;  // names of the program's slots
  std::vector<const Value*> units_, constants_;  // by entry; null: no value is that
  const std::vector<bool> are_homes_;
  std::vector<Given> given_;
};

// What the names of a graph's program were recorded as.
Names names_in(const Graph& graph) {
  const Live& live = graph.live;
  Names names{.slots = living_slots(), .constants = live.constants, .layouts = live.layouts};
  std::erase_if(names.slots, [&](const Slot* slot) {
    return std::ranges::find(live.slots, static_cast<const Node*>(slot->leaf()), &NodeRef::get) == live.slots.end();
  });
  for (const NodeRef& leaf : live.slots)  // those of other threads, which come after this rank's
    if (Slot* slot = leaf.get() ? static_cast<Leaf*>(leaf.get())->slot : nullptr)
      if (std::ranges::find(names.slots, slot) == names.slots.end()) names.slots.push_back(slot);
  return names;
}

bool has_all_names(const Graph& graph) {
  const Program& program = graph.program;
  for (std::size_t i = 0; i < program.slots.size(); ++i)
    if (!program.slots[i].is_local && !graph.live.slot(static_cast<int>(i))) return false;  // it is gone
  return std::ranges::none_of(program.units, &std::string::empty) &&
         std::ranges::none_of(program.settings, &std::string::empty, &ir::GraphSetting::name);
}

}  // namespace

Program lower(const Graph& graph) {
  Program program = graph.program;
  const std::vector<bool> are_homes = homes_of(program);
  for (std::size_t i = 0; i < program.constants.size(); ++i)
    if (!are_homes[i]) program.constants[i] = content_of(graph.live.constants[i]);
  return program;
}

Graph bind(Program program, const Names& names) {
  verify(program);
  Live live = Binder(program, names).run();
  return {std::move(program), std::move(live)};
}

void check_round_trip(const Graph& graph) {
  const Program program = lower(graph);
  check_round_trip(program);
  if (!has_all_names(graph)) return;
  const Live bound = bind(program, names_in(graph)).live;
  const Live& live = graph.live;
  const auto same_slot = [](const NodeRef& a, const NodeRef& b) { return a.get() == b.get(); };
  check(std::ranges::equal(bound.slots, live.slots, same_slot) && bound.units == live.units &&
            bound.modules == live.modules && bound.settings == live.settings,
        "the names of a captured program do not mean what they meant when it was recorded:\n{}", text(program));
}

}  // namespace sherd
