// What differs from a replay by the interpreter, and how each difference is closed:
//   arguments      are copied into tensors of the recording
//   results        are copied out of it, so that the caller's stay when the next replay runs
//   slot = fresh   the recording copies the new value over the slot's bytes, so that the next replay finds it there
//   host effects   (versions, gradients of slots) are repeated by hand after each launch
#include "compile/device_replay.h"

#include <algorithm>

#include "compile/guard.h"
#include "compile/print.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/process_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/trace.h"
#include "runtime/op/attr_types.h"
#include "runtime/op/ops.h"

namespace sherd {

Device device_of(const Graph& graph) {
  for (const Value& value : graph.values)
    if (value.device.kind == Device::Kind::cuda) return value.device;
  return Device::cpu();
}

namespace {

std::string name_of(const Graph& graph, const Value& value) {
  if (value.kind == ValueKind::argument) return fmt::format("argument {}", value.source);
  const Binding& binding = graph.bindings[static_cast<std::size_t>(value.source)];
  return fmt::format("{}slot \"{}\"", binding.gradient ? "the gradient of " : "", graph.slot(binding.slot).name);
}

std::string value_obstacle(const Graph& graph, const Value& value, Device device) {
  if (value.device == device || value.bytes == 0) return {};
  switch (value.kind) {
    case ValueKind::argument:
    case ValueKind::slot:
    case ValueKind::gradient:
      return fmt::format("{} is on {}; move it to {} with to() before the step", name_of(graph, value),
                         to_string(value.device), to_string(device));
    case ValueKind::unit: return "a unit's parameters are on the host";
    case ValueKind::temporary: return "part of the step runs on the host";
    case ValueKind::constant:  // a number travels in the recording
      return value.home.shape.size() == 0 || numel(value.home.shape) == 1
                 ? ""
                 : fmt::format("a tensor of {} that the step reads is on the host", to_string(value.home.shape));
  }
  return {};
}

// A unit must be between two steps as it was before: absent, or present all along.
std::string unit_obstacle(const Graph& graph) {
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].kind != ValueKind::unit) continue;
    const bool before = graph.values[v].held->is_present();
    bool after = before;
    for (const GraphNode& node : graph.nodes) {
      const auto names = [&](const std::vector<ValueId>& list) {
        return std::find(list.begin(), list.end(), static_cast<ValueId>(v)) != list.end();
      };
      after = (after || names(node.restores)) && !names(node.releases);
    }
    if (before || after) return "gathered parameters stay in memory between steps";
  }
  return {};
}

std::string node_obstacle(const Graph& graph, std::size_t index) {
  const GraphNode& node = graph.nodes[index];
  if (!node.op->traits.collective || node.attrs.as<CollectiveAttrs>().group->size() == 1) return {};
  return fmt::format("\"{}\" communicates", describe_node(graph, index));
}

// Copies what the tensor's elements span, gaps included.
void copy_extent(DeviceContext& context, const Tensor& to, const Tensor& from) {
  const auto [first, last] = reference(from, 0).extent();
  const std::int64_t start = from.offset() * byte_size(from.dtype());
  context.copy(static_cast<std::byte*>(to.raw()) + (first - start),
               static_cast<std::byte*>(from.raw()) + (first - start), last - first);
}

// As `like`, in memory of its own.
Tensor twin(const Tensor& like) {
  const auto [first, last] = reference(like, 0).extent();
  Ref<Storage> storage = Storage::allocate(last - first, MemoryCategory::activations, like.device());
  return Tensor::make(std::move(storage), like.shape(), like.strides(), 0, like.dtype(), like.device());
}

}  // namespace

std::string device_obstacle(const Graph& graph) {
  const Device device = device_of(graph);
  if (device == Device::cpu()) return "the step runs on the host";
  for (const Value& value : graph.values)
    if (std::string why = value_obstacle(graph, value, device); !why.empty()) return why;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    if (std::string why = node_obstacle(graph, i); !why.empty()) return why;
  for (const ArgumentGuard& argument : graph.arguments)
    if (argument.shares >= 0) return "arguments share memory";
  for (const GraphResult& result : graph.results)
    if (result.local.defined() && graph.value(result.local.value).kind == ValueKind::argument)
      return "the step hands an argument back";
  return unit_obstacle(graph);
}

DeviceReplay::DeviceReplay(const Graph& graph, Interpreter& interpreter)
    : graph_(graph), interpreter_(interpreter), device_(device_of(graph)) {}

// A copy in the program's memory.
Tensor DeviceReplay::copied(const Tensor& tensor) const {
  static const Op& copy = find_op("copy");
  Tensor local = call(copy, {}, tensor.local());
  return tensor.is_distributed() ? Tensor::distributed(tensor.shape(), tensor.layout(), local) : local;
}

void DeviceReplay::hold_arguments(std::span<const Tensor> arguments) {
  DeviceContext& context = RankContext::current().device(device_);
  if (arguments_.empty())
    for (const Tensor& argument : arguments) {
      const Tensor held = twin(argument.local());
      arguments_.push_back(argument.is_distributed() ? Tensor::distributed(argument.shape(), argument.layout(), held)
                                                     : held);
    }
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].numel() > 0) copy_extent(context, arguments_[i].local(), arguments[i].local());
}

// Nobody else may see a slot's bytes change under a tensor that is read-only to them.
bool DeviceReplay::is_slots_own(const Slot& slot) const {
  const TensorImpl& local = slot.value().is_distributed() ? *slot.value().impl()->local : *slot.value().impl();
  return slot.value().impl()->use_count() == 1 && local.use_count() == 1 && local.storage->use_count() == 1 &&
         local.contiguous;
}

// Called at the end of the recording, while the values of the step are there.
void DeviceReplay::keep_what_remains() {
  DeviceContext& context = RankContext::current().device(device_);
  for (const GraphResult& result : graph_.results)
    results_.push_back(result.local.defined() ? interpreter_.result(result) : Tensor());
  for (const SlotUpdate& update : graph_.updates) {
    const bool is_read = std::any_of(graph_.bindings.begin(), graph_.bindings.end(), [&](const Binding& binding) {
      return binding.slot == update.slot && !binding.gradient;
    });
    const Tensor value = update.result.local.defined() ? interpreter_.result(update.result) : Tensor();
    const bool is_fresh = value.defined() && graph_.value(update.result.local.value).kind == ValueKind::temporary &&
                          value.is_contiguous();
    if (update.gradient || !is_read || !is_fresh) {
      late_updates_.push_back({&update, value});
      continue;
    }
    const Tensor target = graph_.slot(update.slot).get()->value().local();
    context.copy(target.raw(), value.local().raw(), target.bytes());
    slots_in_place_.push_back(update.slot);
  }
}

void DeviceReplay::record() {
  results_.clear();
  late_updates_.clear();
  slots_in_place_.clear();
  places_.clear();
  written_.clear();
  recorded_.reset();
  // A slot that will be overwritten gets bytes of its own.
  for (const SlotUpdate& update : graph_.updates) {
    Slot& slot = *graph_.slot(update.slot).get();
    if (!update.gradient && slot.has_value() && !slot.value().impl()->storage->owner && !is_slots_own(slot))
      slot.set(copied(slot.value()));
  }
  for (const Binding& binding : graph_.bindings) {
    const Ref<Storage>& storage = bound_tensor(graph_, binding).local().storage();
    places_.push_back({storage, storage->address()});
  }
  std::vector<std::uint32_t> versions;
  for (const Place& place : places_) versions.push_back(place.storage->version());
  recorded_ = RankContext::current().device(device_).record(
      [this] { interpreter_.run(arguments_, [this] { keep_what_remains(); }); });
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Ref<Storage>& storage = places_[i].storage;
    const bool is_new = std::find(written_.begin(), written_.end(), storage) == written_.end();
    if (storage->version() != versions[i] && is_new) written_.push_back(storage);
  }
  ++num_recordings_;
}

bool DeviceReplay::is_current() {
  if (!recorded_) return false;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Ref<Storage>& now = bound_tensor(graph_, graph_.bindings[i]).local().storage();
    if (now != places_[i].storage || now->address() != places_[i].address) return false;
  }
  return true;
}

std::vector<Tensor> DeviceReplay::run(std::span<const Tensor> arguments) {
  const TraceSpan span("device graph");
  hold_arguments(arguments);
  const bool recorded_now = !is_current();
  if (recorded_now) record();
  recorded_->launch();
  for (const GraphSlot& slot : graph_.slots)
    if (slot.drops_grad_first) slot.get()->clear_grad();
  if (!recorded_now)
    for (const Ref<Storage>& storage : written_) storage->bump_version();
  for (const int slot : slots_in_place_) graph_.slot(slot).get()->value().local().storage()->bump_version();
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < results_.size(); ++i) {
    const bool is_fresh =
        results_[i].defined() && graph_.value(graph_.results[i].local.value).kind == ValueKind::temporary;
    results.push_back(is_fresh ? copied(results_[i]) : results_[i]);
  }
  for (const LateUpdate& late : late_updates_) {
    Slot& slot = *graph_.slot(late.update->slot).get();
    const Tensor value = late.value.defined() ? copied(late.value) : Tensor();
    if (late.update->gradient) slot.set_grad(value);
    else slot.set(value);
  }
  return results;
}

}  // namespace sherd
