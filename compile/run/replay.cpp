#include "compile/run/replay.h"

#include "compile/ir/analysis/access.h"
#include "compile/ir/builder.h"
#include "compile/ir/text/words.h"
#include "compile/run/guard.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/step_clock.h"
#include "runtime/op/core/dispatch.h"
#include "runtime/op/rows/wait_attrs.h"
#include "runtime/tensor/indices.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

namespace {
using ir::GraphNode, ir::TensorRef, ir::ValueKind;
}  // namespace

// Cleans up however a run ends.
class Interpreter::Running : NoCopy {
 public:
  explicit Running(Interpreter& interpreter)
      : interpreter_(interpreter),
        context_(RankContext::current()),
        module_path_(context_.module_path),
        phase_(context_.phase) {}
  ~Running() {
    context_.module_path = module_path_;
    if (!finished_ && !interpreter_.handles_.empty()) interpreter_.let_go(interpreter_.at_);
    for (Ref<Storage>& storage : interpreter_.storages_) storage = {};
  }
  void finish() { finished_ = true; }
  /// Called first: it releases peers that wait for the rest of the step, so that work in flight ends.
  void abandon(std::string_view reason) noexcept {
    for (const Ref<Storage>& unit : interpreter_.live_.units)
      if (unit->owner) unit->owner->abandon_replay(*unit, reason);
    for (const GraphNode& node : interpreter_.program_.nodes)
      if (ProcessGroup* const group = group_of(node)) group->abort(reason);
  }

 private:
  Interpreter& interpreter_;
  RankContext& context_;
  const std::string* const module_path_;
  const PhaseScope phase_;
  bool finished_ = false;
};

Interpreter::Interpreter(const ir::Graph& graph, std::string predicted)
    : program_(graph.program),
      live_(graph.live),
      graph_(graph),
      predicted_(std::move(predicted)),
      storages_(program_.values.size()),
      bases_(program_.values.size(), 0) {
  const auto handle = [](const TensorRef& ref) {
    return ref.defined() ? Tensor::make({}, ref.shape, ref.strides, ref.offset, ref.dtype, Device::cpu()) : Tensor();
  };
  for (const GraphNode& node : program_.nodes) {
    Handles& handles = handles_.emplace_back();
    if (node.op->traits.waits) continue;
    for (const TensorRef& ref : node.in) handles.in.push_back(handle(ref));
    for (const TensorRef& ref : node.out) handles.out.push_back(handle(ref));
  }
  find_changes();
}

// Slots of one step, as the scale of the gradients, are no state that can be torn. Several slots may share a value, as
// the shards of a unit do: where one of them is changed, none is known to be whole.
void Interpreter::find_changes() {
  const auto is_state = [&](const ir::Binding& binding) {
    const Slot* const slot = binding.gradient ? nullptr : live_.slot(binding.slot);
    return slot && !slot->is_of_step();
  };
  std::vector<bool> has_state(program_.values.size()), is_changed(program_.values.size());
  for (const ir::Binding& binding : program_.bindings)
    if (is_state(binding)) has_state[static_cast<std::size_t>(binding.value)] = true;
  for (const std::size_t i : indices(program_.nodes)) {
    const GraphNode& node = program_.nodes[i];
    if (node.phase != StepPhase::optimizer) continue;
    const auto note = [&](const TensorRef& ref) {
      if (!ref.defined() || !has_state[static_cast<std::size_t>(ref.value)]) return;
      if (first_change_ == kNever) first_change_ = i;
      last_change_ = i;
      is_changed[static_cast<std::size_t>(ref.value)] = true;
    };
    for (const std::size_t m : up_to(static_cast<std::size_t>(node.num_mutated))) note(node.in[m]);
    for (const TensorRef& ref : node.out) note(ref);
  }
  for (const ir::Binding& binding : program_.bindings)
    if (is_changed[static_cast<std::size_t>(binding.value)] && is_state(binding))
      changed_slots_.push_back(binding.slot);
}

// The optimizer's waits, before it changes anything: what failed in a queue by then leaves the state whole.
void Interpreter::await_changes() const {
  for (std::size_t i = first_change_; i <= last_change_; ++i)
    if (const GraphNode& node = program_.nodes[i]; node.op->traits.waits)
      for (const TensorRef& ref : node.in)
        if (ref.defined())
          if (const Ref<Storage>& storage = storages_[static_cast<std::size_t>(ref.value)])
            if (storage->is_lent_for_writing()) storage->wait_to_read();
}

void Interpreter::check_whole() const {
  for (const int index : changed_slots_)
    if (const Slot* slot = live_.slot(index); slot && !slot->torn().empty())
      fail("the step is refused: \"{}\" is torn: {}; load a checkpoint first", slot->name(), slot->torn());
}

void Interpreter::tear_changed(std::string_view reason) const {
  const std::string text = fmt::format("a replayed step was left in the midst of its updates: {}", reason);
  for (const int index : changed_slots_)
    if (Slot* slot = live_.slot(index)) slot->mark_torn(text);
}

Tensor Interpreter::tensor_of(const TensorRef& ref) const {
  if (!ref.defined()) return {};
  const auto at = static_cast<std::size_t>(ref.value);
  return Tensor::make(storages_[at], ref.shape, ref.strides, ref.offset + bases_[at] / byte_size(ref.dtype), ref.dtype,
                      storages_[at]->device());
}

Tensor Interpreter::result(const ir::GraphResult& result) const {
  Tensor local = tensor_of(result.local);
  const Distributed* const layout = live_.layout(result.layout);
  return layout ? Tensor::distributed(result.shape, layout, local) : local;
}

void Interpreter::bind(std::span<const Tensor> arguments) {
  for (const std::size_t v : indices(storages_)) {
    const ir::Value& value = program_.values[v];
    switch (value.kind) {
      case ValueKind::argument: {
        const Tensor local = arguments[static_cast<std::size_t>(value.source)].local();
        storages_[v] = local.storage();
        bases_[v] = ir::base_bytes(local);
        break;
      }
      case ValueKind::slot:
      case ValueKind::gradient:
        storages_[v] =
            bound_tensor(graph_, program_.bindings[static_cast<std::size_t>(value.source)]).local().storage();
        break;
      case ValueKind::unit:
        storages_[v] = live_.storage(value);
        if (storages_[v]->owner) storages_[v]->owner->begin_replay(*storages_[v]);
        break;
      case ValueKind::constant: storages_[v] = live_.storage(value); break;
      case ValueKind::temporary: break;
    }
  }
  check_whole();
  for (const std::size_t i : indices(program_.slots))
    if (program_.slots[i].drops_grad_first) live_.slot(static_cast<int>(i))->set_grad({});
}

// Puts the storage of a ref's value into its tensor handle: allocated at a temporary's first appearance.
void Interpreter::present(const TensorRef& ref, const Tensor& handle) {
  if (!ref.defined()) return;
  Ref<Storage>& storage = storages_[static_cast<std::size_t>(ref.value)];
  const ir::Value& value = program_.value(ref.value);
  if (!storage) storage = Storage::allocate(value.bytes, value.category, value.device);
  else if (value.kind == ValueKind::argument)
    handle.impl()->meta.offset = ref.offset + bases_[static_cast<std::size_t>(ref.value)] / byte_size(ref.dtype);
  handle.impl()->storage = storage;
  handle.impl()->meta.device = storage->device();
}

// verify() knows that the node does not come after a release. So what is absent was gathered before the recorded step,
// and by none of its nodes: a late gather is one.
void Interpreter::check_is_there(const TensorRef& ref) const {
  if (!ref.defined() || program_.value(ref.value).kind != ValueKind::unit) return;
  if (storages_[static_cast<std::size_t>(ref.value)]->is_present()) return;
  const std::string& name = program_.units[static_cast<std::size_t>(program_.value(ref.value).source)];
  fail(
      "the storage{} of a unit is absent: it was not gathered in the recorded step, which found its data there; gather "
      "it inside of the step, by a forward or unshard()",
      name.empty() ? "" : " " + ir::quoted(name));
}

// As the row's kernel does it, without a call: of most values no queue uses the bytes any more, or has on this rank.
void Interpreter::wait_for(const GraphNode& node) const {
  const bool to_write = node.attrs.as<WaitAttrs>().to_write;
  for (const TensorRef& ref : node.in) {
    if (!ref.defined()) continue;
    const Storage& storage = *storages_[static_cast<std::size_t>(ref.value)];
    if (to_write && storage.is_lent()) storage.wait_to_write();
    else if (storage.is_lent_for_writing()) storage.wait_to_read();
  }
}

Storage& Interpreter::room_for_scratch(ir::ValueId id) {
  const ir::Value& value = program_.value(id);
  Ref<Storage>& storage = storages_[static_cast<std::size_t>(id)];
  if (!storage) storage = Storage::allocate(value.bytes, value.category, value.device);
  return *storage;
}

void Interpreter::let_go(std::size_t index) {
  for (auto* list : {&handles_[index].in, &handles_[index].out})
    for (const Tensor& handle : *list)
      if (handle.defined()) handle.impl()->storage = {};
}

// Destinations are passed for every output: to the dispatcher the inputs' handles look like tensors moved in, whose
// memory it might reuse.
void Interpreter::execute(std::size_t index) {
  at_ = index;
  const GraphNode& node = program_.nodes[index];
  Handles& handles = handles_[index];
  RankContext& context = RankContext::current();
  context.module_path = live_.module(node.module);
  if (node.phase != context.phase) step_clock().enter(context.phase = node.phase);
  OpCall call{*node.op, handles.in, node.attrs, handles.out, node.accumulate};
  try {
    if (node.op->traits.waits) {
      wait_for(node);
    } else {
      for (const std::size_t i : indices(node.in)) present(node.in[i], handles.in[i]);
      for (const std::size_t i : indices(node.out)) present(node.out[i], handles.out[i]);
      for (const std::size_t i : indices(node.in))
        if (!needs_no_data(program_, node, i)) check_is_there(node.in[i]);
      for (const TensorRef& ref : node.out) check_is_there(ref);
      if (node.scratch != ir::kNoValue) call.scratch = &room_for_scratch(node.scratch);
      device_layer(call);
    }
  } catch (Error& error) {
    if (!predicted_.empty() && dynamic_cast<const OutOfMemory*>(&error)) error.add("predicted", predicted_);
    error.add("replay", fmt::format("node {} of {}", index, program_.nodes.size()));
    rethrow_with_context(call, error);
  }
  let_go(index);
  for (ir::ValueId v : node.frees) storages_[static_cast<std::size_t>(v)] = {};
}

void Interpreter::update_slots() const {
  for (const ir::SlotUpdate& update : program_.updates) {
    Slot& slot = *live_.slot(update.slot);
    if (update.gradient) slot.set_grad(result(update.result));
    else slot.set(result(update.result));
  }
  leave_requires_grad(graph_);
}

std::vector<Tensor> Interpreter::run(std::span<const Tensor> arguments) {
  std::vector<Tensor> results;
  run(arguments, [&] {
    for (const ir::GraphResult& r : program_.results) results.push_back(result(r));
    update_slots();
  });
  return results;
}

void Interpreter::run(std::span<const Tensor> arguments, const std::function<void()>& finish,
                      const std::function<void(std::size_t)>& ran) {
  Running running(*this);
  bool is_changing = false;
  try {
    bind(arguments);
    for (const std::size_t i : indices(program_.nodes)) {
      if (i == first_change_) {
        await_changes();
        is_changing = true;
      }
      execute(i);
      if (ran) ran(i);
      if (i == last_change_) is_changing = false;
    }
    finish();
    running.finish();
  } catch (...) {
    if (is_changing) tear_changed(current_exception_text());
    running.abandon(current_exception_text());
    throw;
  }
}

}  // namespace sherd
