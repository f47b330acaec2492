// The recorder decides the origin of a tensor's bytes, in this order: an argument; a known value; a storage with an
// owner; a slot's tensor or gradient at the start of the step; else a constant from outside. Storages that the step
// itself makes are temporaries if an op writes them first, and constants if the program filled them on the host
// (Tensor::scalar(0.5) in the step is a literal).
#include "compile/capture/capture.h"

#include <algorithm>

#include "compile/ir/analysis/numbers.h"
#include "runtime/autograd/slot.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/core/step_names.h"

namespace sherd {

namespace {

const Distributed* layout_of(const Tensor& tensor) { return tensor.is_distributed() ? tensor.layout() : nullptr; }

// But for the layout, which has no name yet.
TensorGuard guard_of(const Tensor& tensor) {
  const Tensor local = tensor.local();
  return {.dtype = local.dtype(),
          .shape = local.shape(),
          .strides = local.strides(),
          .offset = local.offset(),
          .global = tensor.shape(),
          .device = local.device()};
}

std::uint64_t storage_id(const Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const Tensor local = tensor.local();
  return local.storage() ? local.storage()->id() : 0;
}

std::pair<std::int64_t, std::int64_t> storage_extent(const Tensor& local) { return reference(local, 0).extent(); }

}  // namespace

Recorder::Recorder(std::span<const Tensor> arguments, std::span<const NodeRef> others)
    : context_(RankContext::current()), start_id_(context_.next_id()) {
  check(context_.capture == nullptr, "a step is being captured on this thread already");
  program_.grad_enabled = context_.grad_enabled;
  for (const Tensor& argument : arguments) add_argument(argument);
  for (const Slot* slot : living_slots()) remember_slot(*slot);
  num_own_before_ = before_.size();
  for (const NodeRef& leaf : others)
    if (const Slot* slot = static_cast<Leaf*>(leaf.get())->slot)
      if (!before_indices_.contains(slot->leaf())) remember_slot(*slot);  // this rank may be the one that has made it
  context_.capture = this;
}

Recorder::~Recorder() {
  if (context_.capture == this) context_.capture = nullptr;
}

void Recorder::add_argument(const Tensor& argument) {
  const std::size_t index = program_.arguments.size();
  check(argument.defined(), "argument {} of the captured step is undefined", index);
  check(!argument.requires_grad(),
        "argument {} of the captured step, {}, carries autograd history from outside of the step, which a replay would "
        "not run: pass argument.detach()",
        index, argument);
  const Tensor local = argument.local();
  check(local.storage().get() != nullptr, "argument {} of the captured step, {}, has no bytes; materialize it first",
        index, argument);
  ArgumentGuard guard{guard_of(argument)};
  guard.tensor.layout = layout_id(layout_of(argument));
  const std::int64_t base = base_bytes(local);
  for (std::size_t i = 0; i < index && guard.shares < 0; ++i)
    if (argument_storages_[i] == local.storage()->id()) {
      guard.shares = static_cast<int>(i);
      guard.shift = base - argument_bases_[i];
    }
  const ValueId value = add_value(ValueKind::argument, local);
  program_.value(value).source = static_cast<int>(index);
  program_.value(value).home = reference(local, value, base);
  program_.value(value).bytes = program_.value(value).home.extent().second;
  program_.arguments.push_back(guard);
  argument_storages_.push_back(local.storage()->id());
  argument_bases_.push_back(base);
}

Recorder::Seen Recorder::seen(const Tensor& tensor) {
  const std::uint64_t storage = storage_id(tensor);
  return storage == 0 ? Seen{} : Seen{storage, guard_of(tensor), layout_of(tensor)};
}

// What a unit has gathered into a slot is its own, and what the slot keeps is what a replay looks up.
void Recorder::remember_slot(const Slot& slot) {
  SlotBefore before{.leaf = NodeRef(slot.leaf()),
                    .had_value = slot.has_value(),
                    .requires_grad = slot.requires_grad(),
                    .holds_grad_alone = slot.grad().defined() && is_sole_owner(slot.grad()),
                    .grad = seen(slot.grad())};
  const int index = static_cast<int>(before_.size());
  const auto place = [&](const Seen& at, Place here) {
    if (at.storage != 0) slot_storages_[at.storage].push_back(here);
  };
  if (slot.has_value()) {
    const Tensor local = slot.value().local();
    before.value = seen(slot.value());
    before.is_gathered =
        before.value.storage != 0 && local.storage()->owner && storage_id(slot.kept_value()) != before.value.storage;
    place(before.value, {.before = index, .gradient = false, .gathered = before.is_gathered});
    if (before.is_gathered) place(before.value = seen(slot.kept_value()), {.before = index, .gradient = false});
  }
  place(before.grad, {.before = index, .gradient = true});
  before_indices_[slot.leaf()] = index;
  before_.push_back(std::move(before));
}

// Another thread may own a model. Its slots are state as this rank's own are, but only the step knows which it uses,
// and by then what they were at its start is gone.
void Recorder::meet(const Slot& slot) {
  if (slot.home() == context_.rank_register || before_indices_.contains(slot.leaf())) return;
  if (std::ranges::find(met_, static_cast<Node*>(slot.leaf()), &NodeRef::get) == met_.end())
    met_.emplace_back(slot.leaf());
}

// What lives of this rank, then of others what the recording was told of.
std::vector<Slot*> Recorder::slots() const {
  std::vector<Slot*> all = living_slots();
  for (std::size_t i = num_own_before_; i < before_.size(); ++i)
    if (Slot* slot = static_cast<Leaf*>(before_[i].leaf.get())->slot) all.push_back(slot);
  return all;
}

ValueId Recorder::add_value(ValueKind kind, const Tensor& tensor) {
  const auto id = static_cast<ValueId>(program_.values.size());
  Value& value = program_.values.emplace_back();
  value.kind = kind;
  value.bytes = tensor.storage()->bytes();
  value.device = tensor.storage()->device();
  value.category = tensor.storage()->category();
  value.home = reference(tensor, id);
  if (kind == ValueKind::unit) {
    value.source = static_cast<int>(live_.units.size());
    live_.units.push_back(tensor.storage());
    program_.units.push_back(name_of(*tensor.storage()));
  } else if (kind == ValueKind::constant) {
    value.source = static_cast<int>(live_.constants.size());
    live_.constants.push_back(tensor.storage());
    program_.constants.emplace_back();
  }
  return id;
}

ModuleId Recorder::module_id(const std::string* path) {
  if (!path || path->empty()) return kNoModule;
  if (const auto known = module_ids_.find(path); known != module_ids_.end()) return known->second;
  const std::string* const interned = context_.intern(*path);  // looks at all paths, hence once for each
  const auto [found, is_new] = module_ids_.try_emplace(interned, static_cast<ModuleId>(program_.modules.size()));
  const ModuleId id = found->second;
  if (is_new) {
    program_.modules.push_back(*interned);
    live_.modules.push_back(interned);
  }
  module_ids_[path] = id;
  return id;
}

LayoutId Recorder::layout_id(const Distributed* layout) {
  if (!layout) return kPlain;
  const auto known = std::ranges::find(live_.layouts, layout, &LayoutRef::get);
  if (known != live_.layouts.end()) return static_cast<LayoutId>(known - live_.layouts.begin());
  const std::string own = layout->name();
  std::string name = own;
  for (int i = 2; std::ranges::find(program_.layouts, name) != program_.layouts.end(); ++i)
    name = fmt::format("{}~{}", own, i);
  program_.layouts.push_back(std::move(name));
  live_.layouts.push_back(layout);
  return static_cast<LayoutId>(live_.layouts.size() - 1);
}

// Beside its arguments a batch is a tensor like any other from outside.
void Recorder::check_within_argument(const Tensor& tensor) const {
  if (argument_of(tensor) != kNoValue) return;
  const auto [first, last] = storage_extent(tensor);
  for (std::size_t i = 0; i < argument_storages_.size(); ++i) {
    const std::int64_t begin = argument_bases_[i], end = begin + program_.values[i].bytes;
    check(argument_storages_[i] != tensor.storage()->id() || last <= begin || end <= first,
          "{} lies partly in argument {} of the captured step and partly beside it, so a replay could not tell what of "
          "it to read from the argument: pass all of it as an argument, or use a copy",
          tensor, i);
  }
}

void Recorder::check_one_origin(const Tensor& tensor) const {
  const auto argument = std::find(argument_storages_.begin(), argument_storages_.end(), tensor.storage()->id());
  if (argument == argument_storages_.end()) return;
  check_within_argument(tensor);
  const auto places = slot_storages_.find(tensor.storage()->id());
  if (places == slot_storages_.end()) return;
  const SlotBefore& before = before_[static_cast<std::size_t>(places->second.front().before)];
  const Slot* slot = static_cast<Leaf*>(before.leaf.get())->slot;
  fail(
      "argument {} of the captured step shares its bytes with slot \"{}\", so it is unclear which of the two a replay "
      "should read: use the slot inside the step, or pass a copy",
      argument - argument_storages_.begin(), slot ? slot->name() : "");
}

// Two arguments may share a storage (tokens and targets sliced from one batch). Any argument that covers the tensor
// will do, because a replay requires the same sharing.
ValueId Recorder::argument_of(const Tensor& tensor) const {
  const auto [first, last] = storage_extent(tensor);
  for (std::size_t i = 0; i < argument_storages_.size(); ++i) {
    if (argument_storages_[i] != tensor.storage()->id()) continue;
    const auto value = static_cast<ValueId>(i);  // arguments are the first values
    if (first >= argument_bases_[i] && last <= argument_bases_[i] + program_.value(value).bytes) return value;
  }
  return kNoValue;
}

ValueId Recorder::value_of(const Tensor& tensor) {
  check(tensor.storage().get() != nullptr,
        "{} has no bytes: a captured step runs on real tensors; materialize the model first", tensor);
  check_one_origin(tensor);
  if (const ValueId argument = argument_of(tensor); argument != kNoValue) return argument;
  const auto found = by_storage_.find(tensor.storage()->id());
  if (found == by_storage_.end()) return add_external(tensor);
  Value& value = program_.value(found->second);
  // An asynchronous collective accounts its input as "communication" only until it is done.
  if (value.kind == ValueKind::temporary && tensor.storage()->category() != MemoryCategory::communication)
    value.category = tensor.storage()->category();
  return found->second;
}

ValueId Recorder::add_external(const Tensor& tensor) {
  const std::uint64_t id = tensor.storage()->id();
  ValueId value = kNoValue;
  if (tensor.storage()->owner) {
    value = add_unit(tensor);
  } else if (const auto places = slot_storages_.find(id); places != slot_storages_.end()) {
    value = add_slot_value(tensor, places->second);
  }
  if (value == kNoValue) value = add_value(ValueKind::constant, tensor);
  by_storage_[id] = value;
  return value;
}

// Slots with tensors in it before the step get other tensors when it is released: they are guarded, not bound.
ValueId Recorder::add_unit(const Tensor& tensor) {
  const ValueId value = add_value(ValueKind::unit, tensor);
  is_present_[value] = tensor.storage()->is_present();
  program_.value(value).is_absent = !is_present_[value];
  if (const auto places = slot_storages_.find(tensor.storage()->id()); places != slot_storages_.end())
    for (const Place& place : places->second)
      if (Slot* slot = static_cast<Leaf*>(before_[static_cast<std::size_t>(place.before)].leaf.get())->slot)
        slot_index(*slot);
  return value;
}

ValueId Recorder::add_slot_value(const Tensor& tensor, std::span<const Place> places) {
  ValueId value = kNoValue;
  for (const Place& place : places) {
    const SlotBefore& before = before_[static_cast<std::size_t>(place.before)];
    Slot* slot = static_cast<Leaf*>(before.leaf.get())->slot;
    if (!slot || place.gathered) continue;
    TensorGuard guard = before.seen(place.gradient).guard;
    guard.layout = layout_id(before.seen(place.gradient).layout);
    if (value == kNoValue) {
      value = add_value(place.gradient ? ValueKind::gradient : ValueKind::slot, tensor);
      program_.value(value).source = static_cast<int>(program_.bindings.size());
      program_.value(value).home = {value, guard.dtype, guard.shape, guard.strides, guard.offset};
    }
    program_.bindings.push_back({.slot = slot_index(*slot),
                                 .gradient = place.gradient,
                                 .value = value,
                                 .tensor = guard,
                                 .kept = !place.gradient && before.is_gathered});
  }
  return value;
}

TensorRef Recorder::ref_to(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  const ValueId id = value_of(tensor);
  const Value& value = program_.value(id);
  const bool argument = value.kind == ValueKind::argument;
  return reference(tensor, id, argument ? argument_bases_[static_cast<std::size_t>(value.source)] : 0);
}

void Recorder::prepare(const Op&, std::span<const Tensor> in) {
  for (const Tensor& tensor : in)
    if (tensor.defined()) value_of(tensor);
}

void Recorder::record(const Op& op, AttrsView attrs, std::span<const Tensor> in, std::span<const Tensor> out,
                      bool accumulate) {
  GraphNode node;
  node.op = &op;
  node.attrs = attrs.keep();
  node.accumulate = accumulate;
  node.num_mutated = op.mutated ? op.mutated({op, in, attrs}) : 0;
  node.module = module_id(context_.module_path);
  node.phase = context_.phase;
  for (const Tensor& tensor : in) node.in.push_back(read_from(tensor, op.name));
  for (const Tensor& tensor : out) node.out.push_back(write_to(op, tensor, accumulate));
  const int index = static_cast<int>(program_.nodes.size());
  for (int i = 0; i < node.num_mutated; ++i) {
    const TensorRef& ref = node.in[static_cast<std::size_t>(i)];
    if (!ref.defined()) continue;
    check_writable(op, ref.value);
    writers_[ref.value] = index;
  }
  for (const TensorRef& ref : node.out) writers_[ref.value] = index;
  note_residency(node);
  program_.nodes.push_back(std::move(node));
}

TensorRef Recorder::write_to(const Op& op, const Tensor& tensor, bool accumulate) {
  check(tensor.storage().get() != nullptr,
        "{} has no bytes: a captured step runs on real tensors; materialize the model first", tensor);
  const std::uint64_t id = tensor.storage()->id();
  const bool is_new = context_.is_own(id) && id > start_id_ && !by_storage_.contains(id) && !tensor.storage()->owner;
  if (!is_new) {
    const TensorRef ref = accumulate ? read_from(tensor, op.name) : ref_to(tensor);
    check_writable(op, ref.value);
    if (const auto partly = partly_written_.find(ref.value); partly != partly_written_.end())
      partly->second.add(ref.extent());
    return ref;
  }
  check(!accumulate,
        "{} adds to {}, which the step made but no op has written: a replay would not find what the program put there; "
        "make it with zeros() or full()",
        op.name, tensor);
  const ValueId value = add_value(ValueKind::temporary, tensor);
  by_storage_[id] = value;
  const TensorRef ref = reference(tensor, value);
  if (const auto [first, last] = ref.extent(); first > 0 || last < program_.value(value).bytes)
    partly_written_[value].add({first, last});
  return ref;
}

// A replay would not reproduce bytes that no op has written: the program filled them on the host, or nothing did.
TensorRef Recorder::read_from(const Tensor& tensor, std::string_view reader) {
  TensorRef ref = ref_to(tensor);
  const auto partly = partly_written_.find(ref.value);
  check(partly == partly_written_.end() || partly->second.cover(ref.extent()),
        "{} reads {}, of which ops of the step have written a part only: a replay would not find what the program put "
        "into the rest on the host; make it with an op such as zeros() or full(), or outside of the step",
        reader, tensor);
  return ref;
}

// (A home of what is offloaded is written before it is read, and by evict alone.)
void Recorder::check_writable(const Op& op, ValueId id) const {
  const Value& value = program_.value(id);
  const auto was_before = [&](const Storage& storage) {
    return !context_.is_own(storage.id()) || storage.id() <= start_id_;
  };
  check(value.kind != ValueKind::constant || was_before(*live_.storage(value)) || value.bytes == 0 ||
            (&op == &op::evict && home_of(*live_.storage(value))),
        "{} writes into a tensor that the step filled on the host ({}{}): a replay would find it written already; make "
        "it with an op such as zeros() or full()",
        op.name, name(value.home.dtype), value.home.shape);
}

// By the row's column, and not by a look at the storages.
void Recorder::note_residency(GraphNode& node) {
  const ResidencyChange& change = node.op->residency;
  if ((change.restores | change.releases) == 0) return;
  for (std::size_t i = 0; i < node.in.size(); ++i) {
    const bool restores = change.restores_input(i);
    if (!restores && !change.releases_input(i)) continue;
    const ValueId value = node.in[i].value;
    const auto present = is_present_.find(value);
    if (present == is_present_.end()) continue;
    if (std::exchange(present->second, restores) != restores)
      (restores ? node.restores : node.releases).push_back(value);
  }
}

int Recorder::slot_index(const Slot& slot) {
  const auto [found, is_new] = slot_indices_.try_emplace(slot.leaf(), static_cast<int>(program_.slots.size()));
  if (!is_new) return found->second;
  GraphSlot entry{.name = slot.name(), .requires_grad = slot.requires_grad()};
  if (const SlotBefore* before = before_of(slot)) {
    entry.requires_grad = before->requires_grad;
    entry.had_value = before->had_value;
    entry.had_grad = before->grad.storage != 0;
  }
  program_.slots.push_back(std::move(entry));
  live_.slots.emplace_back(slot.leaf());
  return found->second;
}

const Recorder::SlotBefore* Recorder::before_of(const Slot& slot) const {
  const auto found = before_indices_.find(slot.leaf());
  return found == before_indices_.end() ? nullptr : &before_[static_cast<std::size_t>(found->second)];
}

void Recorder::grad_used(const Slot& slot) {
  meet(slot);
  slot_index(slot);
}

void Recorder::slot_assigned(Slot& slot) { update(slot_index(slot), false, slot.value()); }

// The last assignment counts; the order is that of the last assignments.
void Recorder::update(int slot, bool gradient, const Tensor& tensor) {
  std::erase_if(program_.updates, [&](const SlotUpdate& u) { return u.slot == slot && u.gradient == gradient; });
  program_.updates.push_back({slot, gradient, result_of(tensor)});
}

GraphResult Recorder::result_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {read_from(tensor.local(), "the end of the step"), tensor.shape(), layout_id(layout_of(tensor))};
}

// A gradient in the same place as before is unchanged or was added to in place.
void Recorder::finish_gradient(Slot& slot) {
  const SlotBefore* before = before_of(slot);
  const Seen now_seen = seen(slot.grad()), old_seen = before ? before->grad : Seen{};
  if (now_seen == old_seen) return;
  const std::uint64_t old = old_seen.storage, now = now_seen.storage;
  const bool used = old != 0 && (old == now || by_storage_.contains(old));
  const int index = slot_index(slot);
  program_.slot(index).drops_grad_first = old != 0 && !used;
  if (now != 0 || used) update(index, true, slot.grad());
}

void Recorder::note_requires_grad() {
  for (const Slot* slot : slots())
    if (const SlotBefore* before = before_of(*slot); before && before->requires_grad != slot->requires_grad())
      slot_index(*slot);
  for (std::size_t i = 0; i < live_.slots.size(); ++i)
    if (const Slot* slot = live_.slot(static_cast<int>(i)))
      program_.slots[i].leaves_requires_grad = slot->requires_grad();
}

void Recorder::note_sole_gradients() {
  for (Binding& binding : program_.bindings) {
    const auto before =
        before_indices_.find(static_cast<Leaf*>(live_.slots[static_cast<std::size_t>(binding.slot)].get()));
    binding.held_by_slot_only = binding.gradient && before != before_indices_.end() &&
                                before_[static_cast<std::size_t>(before->second)].holds_grad_alone &&
                                writers_.contains(binding.value);
  }
}

// A slot that was made and destroyed within the step is as good as a local variable.
void Recorder::forget_local_slots() {
  for (std::size_t i = 0; i < live_.slots.size(); ++i) {
    GraphSlot& slot = program_.slots[i];
    slot.is_local =
        !live_.slot(static_cast<int>(i)) && !before_indices_.contains(static_cast<Leaf*>(live_.slots[i].get()));
    if (slot.is_local) live_.slots[i] = NodeRef();
  }
  std::erase_if(program_.updates, [&](const SlotUpdate& u) { return program_.slot(u.slot).is_local; });
}

// Among slots with one name the one that was made first keeps it, so that bind() can tell them apart; slots of other
// threads follow, in the order in which the step used them.
void Recorder::name_slots() {
  std::set<std::string> taken;
  std::vector<bool> is_named(program_.slots.size());
  const auto name = [&](std::size_t index) {
    GraphSlot& slot = program_.slots[index];
    if (is_named[index]) return;
    is_named[index] = true;
    const std::string own = slot.name;
    for (int i = 2; !taken.insert(slot.name).second; ++i) slot.name = fmt::format("{}~{}", own, i);
  };
  for (const Slot* slot : living_slots())
    if (const auto found = slot_indices_.find(slot->leaf()); found != slot_indices_.end())
      name(static_cast<std::size_t>(found->second));
  for (std::size_t i = 0; i < program_.slots.size(); ++i) name(i);
}

Graph Recorder::finish(std::span<const Tensor> results) {
  context_.capture = nullptr;
  for (const Tensor& tensor : results) program_.results.push_back(result_of(tensor));
  for (Slot* slot : slots()) finish_gradient(*slot);
  note_requires_grad();
  note_sole_gradients();
  note_own_settings();
  forget_local_slots();
  name_slots();
  compute_lifetimes(program_);
  write_numbers(program_);
  return {std::move(program_), std::move(live_)};
}

std::string Recorder::origin(const Tensor& tensor) const {
  const Tensor local = tensor.local();
  const std::uint64_t id = storage_id(tensor);
  if (id == 0) return "without bytes";
  if (const ValueId argument = argument_of(local); argument != kNoValue) return fmt::format("argument {}", argument);
  if (const auto places = slot_storages_.find(id); places != slot_storages_.end()) {
    const Place& place = places->second.front();
    const Leaf* leaf = static_cast<Leaf*>(before_[static_cast<std::size_t>(place.before)].leaf.get());
    if (leaf->slot)
      return fmt::format("{} slot \"{}\"", place.gradient ? "the gradient of" : "the value of", leaf->slot->name());
  }
  const auto found = by_storage_.find(id);
  const auto writer = found == by_storage_.end() ? writers_.end() : writers_.find(found->second);
  if (writer == writers_.end()) return "a tensor the program made on the host";
  const GraphNode& node = program_.nodes[static_cast<std::size_t>(writer->second)];
  const std::string* const module = live_.module(node.module);
  return fmt::format("the result of {}{}", node.op->name, module ? " in " + *module : "");
}

void Recorder::setting_read(const std::shared_ptr<const StepSetting>& setting) {
  const auto index = static_cast<int>(live_.settings.size());
  if (!setting_indices_.try_emplace(setting.get(), index).second) return;
  program_.settings.push_back({setting->name, setting->text});
  live_.settings.push_back(setting);
}

void Recorder::setting_changed(const std::shared_ptr<const StepSetting>& setting) {
  setting_indices_.try_emplace(setting.get(), -1);
  if (std::ranges::find(own_settings_, setting) == own_settings_.end()) own_settings_.push_back(setting);
}

// A replay changes no settings, so it is only as good as the step where they are as the step leaves them.
void Recorder::note_own_settings() {
  for (const auto& setting : own_settings_) {
    int& index = setting_indices_.at(setting.get());
    if (index < 0) {
      index = static_cast<int>(live_.settings.size());
      program_.settings.push_back({setting->name, setting->text});
      live_.settings.push_back(setting);
    } else if (GraphSetting& read = program_.settings[static_cast<std::size_t>(index)]; read.text != setting->text) {
      read.text += fmt::format(" before it and {} after it", setting->text);  // which no call finds
    }
  }
}

void Recorder::refuse_read(const Tensor& tensor, std::string_view what) {
  fail(
      "{} on {} inside a captured step: it is {}, and a replay does not run the code that would look at the value. "
      "Return "
      "the tensor from the step and read it outside, or express the choice with where()",
      what, tensor, origin(tensor));
}

}  // namespace sherd
