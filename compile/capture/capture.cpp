// The recorder decides the origin of a tensor's bytes, in this order: an argument; a known value; a storage with an
// owner; a slot's tensor or gradient at the start of the step; else a constant from outside. Storages that the step
// itself makes are temporaries if an op writes them first, and constants if the program filled them on the host
// (Tensor::scalar(0.5) in the step is a literal).
#include "compile/capture/capture.h"

#include <algorithm>

#include "compile/ir/analysis/numbers.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/core/step_names.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {
using ir::kNoValue, ir::TensorRef, ir::ValueId, ir::ValueKind;

RankContext& context_to_record() {
  RankContext& context = RankContext::current();
  check(context.capture == nullptr, "a step is being captured on this thread already");
  return context;
}
}  // namespace

Recorder::Recorder(std::span<const Tensor> arguments, std::span<const NodeRef> others)
    : context_(context_to_record()),
      start_id_(context_.next_id()),
      before_(context_, others),
      names_(context_, before_, program_, live_) {
  program_.grad_enabled = context_.grad_enabled;
  for (const Tensor& argument : arguments) add_argument(argument);
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
  ir::ArgumentGuard guard{guard_of(argument)};
  guard.tensor.layout = names_.layout(layout_of(argument));
  const std::int64_t base = ir::base_bytes(local);
  const std::uint64_t storage = local.storage()->id();
  if (const ValueId first = arguments_.first_in(storage); first != kNoValue) {
    guard.shares = static_cast<int>(first);
    guard.shift = base - arguments_.base(first);
  }
  const ValueId value = add_value(ValueKind::argument, local);
  program_.value(value).source = static_cast<int>(index);
  program_.value(value).home = ir::reference(local, value, base);
  program_.value(value).bytes = program_.value(value).home.extent().second;
  program_.arguments.push_back(guard);
  arguments_.add(storage, base, program_.value(value).bytes);
}

ValueId Recorder::add_value(ValueKind kind, const Tensor& tensor) {
  const auto id = static_cast<ValueId>(program_.values.size());
  ir::Value& value = program_.values.emplace_back();
  value.kind = kind;
  value.bytes = tensor.storage()->bytes();
  value.device = tensor.storage()->device();
  value.category = tensor.storage()->category();
  value.home = ir::reference(tensor, id);
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

void Recorder::check_one_origin(const Tensor& tensor) const {
  const ValueId argument = arguments_.first_in(tensor.storage()->id());
  if (argument == kNoValue) return;
  arguments_.check_within(tensor);
  const auto places = before_.places_of(tensor.storage()->id());
  if (places.empty()) return;
  const Slot* slot = before_.of(places.front()).slot();
  fail(
      "argument {} of the captured step shares its bytes with slot \"{}\", so it is unclear which of the two a replay "
      "should read: use the slot inside the step, or pass a copy",
      argument, slot ? slot->name() : "");
}

ValueId Recorder::value_of(const Tensor& tensor) {
  check(tensor.storage().get() != nullptr,
        "{} has no bytes: a captured step runs on real tensors; materialize the model first", tensor);
  check_one_origin(tensor);
  if (const ValueId argument = arguments_.argument_of(tensor); argument != kNoValue) return argument;
  const auto found = by_storage_.find(tensor.storage()->id());
  if (found == by_storage_.end()) return add_external(tensor);
  ir::Value& value = program_.value(found->second);
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
  } else {
    value = add_slot_value(tensor, before_.places_of(id));
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
  for (const SlotsBefore::Place& place : before_.places_of(tensor.storage()->id()))
    if (const Slot* slot = before_.of(place).slot()) names_.slot(*slot);
  return value;
}

ValueId Recorder::add_slot_value(const Tensor& tensor, std::span<const SlotsBefore::Place> places) {
  ValueId value = kNoValue;
  for (const SlotsBefore::Place& place : places) {
    const SlotsBefore::Of& before = before_.of(place);
    const Slot* slot = before.slot();
    if (!slot || place.gathered) continue;
    ir::TensorGuard guard = before.seen(place.gradient).guard;
    guard.layout = names_.layout(before.seen(place.gradient).layout);
    if (value == kNoValue) {
      value = add_value(place.gradient ? ValueKind::gradient : ValueKind::slot, tensor);
      program_.value(value).source = static_cast<int>(program_.bindings.size());
      program_.value(value).home = {value, guard.dtype, guard.shape, guard.strides, guard.offset};
    }
    program_.bindings.push_back({.slot = names_.slot(*slot),
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
  const ir::Value& value = program_.value(id);
  const bool argument = value.kind == ValueKind::argument;
  return ir::reference(tensor, id, argument ? arguments_.base(id) : 0);
}

void Recorder::prepare(const Op&, std::span<const Tensor> in) {
  for (const Tensor& tensor : in)
    if (tensor.defined()) value_of(tensor);
}

void Recorder::record(const Op& op, AttrsView attrs, std::span<const Tensor> in, std::span<const Tensor> out,
                      bool accumulate) {
  ir::GraphNode node;
  node.op = &op;
  node.attrs = attrs.keep();
  node.accumulate = accumulate;
  node.num_mutated = op.mutated ? op.mutated({op, in, attrs}) : 0;
  node.module = names_.module(context_.module_path);
  node.phase = context_.phase;
  for (const Tensor& tensor : in) node.in.push_back(read_from(tensor, op.name));
  for (const Tensor& tensor : out) node.out.push_back(write_to(op, tensor, accumulate));
  const int index = static_cast<int>(program_.nodes.size());
  for (const int i : up_to(node.num_mutated)) {
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
  const TensorRef ref = ir::reference(tensor, value);
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

// (A home of what is offloaded is written before it is read, and by copies alone.)
void Recorder::check_writable(const Op& op, ValueId id) const {
  const ir::Value& value = program_.value(id);
  const auto was_before = [&](const Storage& storage) {
    return !context_.is_own(storage.id()) || storage.id() <= start_id_;
  };
  check(value.kind != ValueKind::constant || was_before(*live_.storage(value)) || value.bytes == 0 ||
            (&op == &op::copy_start && home_of(*live_.storage(value))),
        "{} writes into a tensor that the step filled on the host ({}{}): a replay would find it written already; make "
        "it with an op such as zeros() or full()",
        op.name, name(value.home.dtype), value.home.shape);
}

// By the row's column, and not by a look at the storages.
void Recorder::note_residency(ir::GraphNode& node) {
  const ResidencyChange& change = node.op->residency;
  if ((change.restores | change.releases) == 0) return;
  for (const std::size_t i : indices(node.in)) {
    const bool restores = change.restores_input(i, node.attrs);
    if (!restores && !change.releases_input(i, node.attrs)) continue;
    const ValueId value = node.in[i].value;
    const auto present = is_present_.find(value);
    if (present == is_present_.end()) continue;
    if (std::exchange(present->second, restores) != restores)
      (restores ? node.restores : node.releases).push_back(value);
  }
}

void Recorder::grad_used(const Slot& slot) {
  before_.meet(slot);
  names_.slot(slot);
}

void Recorder::slot_assigned(Slot& slot) { update(names_.slot(slot), false, slot.value()); }

// The last assignment counts; the order is that of the last assignments.
void Recorder::update(int slot, bool gradient, const Tensor& tensor) {
  std::erase_if(program_.updates, [&](const ir::SlotUpdate& u) { return u.slot == slot && u.gradient == gradient; });
  program_.updates.push_back({slot, gradient, result_of(tensor)});
}

ir::GraphResult Recorder::result_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {read_from(tensor.local(), "the end of the step"), tensor.shape(), names_.layout(layout_of(tensor))};
}

// A gradient in the same place as before is unchanged or was added to in place.
void Recorder::finish_gradient(Slot& slot) {
  const SlotsBefore::Of* before = before_.find(slot.leaf());
  const SlotsBefore::Seen now_seen = SlotsBefore::seen(slot.grad());
  const SlotsBefore::Seen old_seen = before ? before->grad : SlotsBefore::Seen{};
  if (now_seen == old_seen) return;
  const std::uint64_t old = old_seen.storage, now = now_seen.storage;
  const bool used = old != 0 && (old == now || by_storage_.contains(old));
  const int index = names_.slot(slot);
  program_.slot(index).drops_grad_first = old != 0 && !used;
  if (now != 0 || used) update(index, true, slot.grad());
}

void Recorder::note_requires_grad() {
  for (const Slot* slot : before_.living())
    if (const SlotsBefore::Of* before = before_.find(slot->leaf());
        before && before->requires_grad != slot->requires_grad())
      names_.slot(*slot);
  for (const std::size_t i : indices(live_.slots))
    if (const Slot* slot = live_.slot(static_cast<int>(i)))
      program_.slots[i].leaves_requires_grad = slot->requires_grad();
}

void Recorder::note_sole_gradients() {
  for (ir::Binding& binding : program_.bindings) {
    const SlotsBefore::Of* const before =
        before_.find(static_cast<Leaf*>(live_.slots[static_cast<std::size_t>(binding.slot)].get()));
    binding.held_by_slot_only =
        binding.gradient && before && before->holds_grad_alone && writers_.contains(binding.value);
  }
}

ir::Graph Recorder::finish(std::span<const Tensor> results) {
  context_.capture = nullptr;
  for (const Tensor& tensor : results) program_.results.push_back(result_of(tensor));
  for (Slot* slot : before_.living()) finish_gradient(*slot);
  note_requires_grad();
  note_sole_gradients();
  names_.finish();
  compute_lifetimes(program_);
  write_numbers(program_);
  return {std::move(program_), std::move(live_)};
}

std::string Recorder::origin(const Tensor& tensor) const {
  const Tensor local = tensor.local();
  const std::uint64_t id = storage_id(tensor);
  if (id == 0) return "without bytes";
  if (const ValueId argument = arguments_.argument_of(local); argument != kNoValue)
    return fmt::format("argument {}", argument);
  if (const auto places = before_.places_of(id); !places.empty())
    if (const Slot* slot = before_.of(places.front()).slot())
      return fmt::format("{} slot \"{}\"", places.front().gradient ? "the gradient of" : "the value of", slot->name());
  const auto found = by_storage_.find(id);
  const auto writer = found == by_storage_.end() ? writers_.end() : writers_.find(found->second);
  if (writer == writers_.end()) return "a tensor the program made on the host";
  const ir::GraphNode& node = program_.nodes[static_cast<std::size_t>(writer->second)];
  const std::string* const module = live_.module(node.module);
  return fmt::format("the result of {}{}", node.op->name, module ? " in " + *module : "");
}

void Recorder::refuse_read(const Tensor& tensor, std::string_view what) {
  fail(
      "{} on {} inside a captured step: it is {}, and a replay does not run the code that would look at the value. "
      "Return "
      "the tensor from the step and read it outside, or express the choice with where()",
      what, tensor, origin(tensor));
}

}  // namespace sherd
