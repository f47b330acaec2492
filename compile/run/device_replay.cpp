// Differences from a replay by the interpreter, and how each is handled:
//   arguments      are copied into tensors of the recording
//   results        are copied out of it, so that the caller's stay when the next replay runs
//   slot = fresh   the recording copies the new value over the slot's bytes, so that the next replay finds it there
//   host effects   (versions, gradients of slots) are repeated by hand after each launch
#include "compile/run/device_replay.h"

#include <algorithm>
#include <unordered_map>

#include "compile/ir/analysis/seconds.h"
#include "compile/ir/builder.h"
#include "compile/ir/text/print.h"
#include "compile/run/guard.h"
#include "runtime/autograd/slot.h"
#include "runtime/exec/context.h"
#include "runtime/exec/trace.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {
using ir::Program, ir::SlotUpdate, ir::ValueKind;
}  // namespace

Device device_of(const Program& program) {
  for (const ir::Value& value : program.values)
    if (value.device.has_backend()) return value.device;
  return Device::cpu();
}

namespace {

std::string name_of(const Program& program, const ir::Value& value) {
  if (value.kind == ValueKind::argument) return fmt::format("argument {}", value.source);
  const ir::Binding& binding = program.bindings[static_cast<std::size_t>(value.source)];
  return fmt::format("{}slot \"{}\"", binding.gradient ? "the gradient of " : "", program.slot(binding.slot).name);
}

std::string value_obstacle(const Program& program, const ir::Value& value, Device device) {
  if (value.device == device || value.bytes == 0) return {};
  switch (value.kind) {
    case ValueKind::argument:
    case ValueKind::slot:
    case ValueKind::gradient:
      return fmt::format("{} is on {}; move it to {} with to() before the step", name_of(program, value),
                         to_string(value.device), to_string(device));
    case ValueKind::unit: return "a unit's parameters are on the host";
    case ValueKind::temporary: return "part of the step runs on the host";
    case ValueKind::constant:  // a number is part of the recording
      return value.home.shape.size() == 0 || numel(value.home.shape) == 1
                 ? ""
                 : fmt::format("a tensor of {} that the step reads is on the host", to_string(value.home.shape));
  }
  return {};
}

// Units must be absent before and after the step.
std::string unit_obstacle(const ir::Graph& graph) {
  const Program& program = graph.program;
  for (const std::size_t v : indices(program.values)) {
    if (program.values[v].kind != ValueKind::unit) continue;
    const bool before = graph.live.storage(program.values[v])->is_present();
    bool after = before;
    for (const ir::GraphNode& node : program.nodes) {
      const auto names = [&](const std::vector<ir::ValueId>& list) {
        return std::find(list.begin(), list.end(), static_cast<ir::ValueId>(v)) != list.end();
      };
      after = (after || names(node.restores)) && !names(node.releases);
    }
    if (before || after) return "gathered parameters stay in memory between steps";
  }
  return {};
}

// Collectives run on queues of their own, those of units too.
std::string node_obstacle(const Program& program, std::size_t index) {
  const ir::GraphNode& node = program.nodes[index];
  const auto is_argument = [&](const ir::TensorRef& ref) {
    return ref.defined() && program.value(ref.value).kind == ValueKind::argument;
  };
  if (std::any_of(node.out.begin(), node.out.end(), is_argument) ||
      std::any_of(node.in.begin(), node.in.begin() + node.num_mutated, is_argument))
    return fmt::format("\"{}\" writes into an argument", describe_node(program, index));
  return ir::transfer_of(node) ? fmt::format("\"{}\" communicates", describe_node(program, index)) : std::string();
}

// Copies the byte range that the tensor's elements span, gaps included.
void copy_extent(DeviceContext& context, const Tensor& to, const Tensor& from) {
  const auto [first, last] = ir::reference(from, 0).extent();
  const std::int64_t shift = first - from.offset() * byte_size(from.dtype());
  context.copy(static_cast<std::byte*>(to.raw()) + shift, static_cast<std::byte*>(from.raw()) + shift, last - first);
}

// As `like`, in memory of its own, at an address that is aligned alike: kernels choose by alignment, and the choice may
// show in the last bit.
Tensor twin(const Tensor& like) {
  constexpr std::uintptr_t kAlignment = 256;
  const auto [first, last] = ir::reference(like, 0).extent();
  const std::int64_t item = byte_size(like.dtype());
  const auto shift = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(like.raw()) % kAlignment) / item;
  const std::int64_t before = like.offset() - first / item;  // elements below the tensor's first one
  Ref<Storage> storage =
      Storage::allocate(last - first + (shift + before) * item, MemoryCategory::activations, like.device());
  return Tensor::make(std::move(storage), like.shape(), like.strides(), shift + before, like.dtype(), like.device());
}

Tensor dense_copy_of(const Tensor& tensor) {
  Tensor local = call(op::copy, {}, tensor.local());
  return tensor.is_distributed() ? Tensor::distributed(tensor.shape(), tensor.layout(), local) : local;
}

}  // namespace

std::string device_obstacle(const ir::Graph& graph) {
  const Program& program = graph.program;
  const Device device = device_of(program);
  if (device == Device::cpu()) return "the step runs on the host";
  if (RankContext::current().is_ghost()) return "a ghost opens no device";
  for (const ir::Value& value : program.values)
    if (std::string why = value_obstacle(program, value, device); !why.empty()) return why;
  for (const std::size_t i : indices(program.nodes))
    if (std::string why = node_obstacle(program, i); !why.empty()) return why;
  for (const ir::ArgumentGuard& argument : program.arguments)
    if (argument.shares >= 0) return "arguments share memory";
  for (const ir::GraphResult& result : program.results)
    if (result.local.defined() && program.value(result.local.value).kind == ValueKind::argument)
      return "the step hands an argument back";
  return unit_obstacle(graph);
}

DeviceReplay::DeviceReplay(const ir::Graph& graph, Interpreter& interpreter)
    : graph_(graph),
      program_(graph.program),
      live_(graph.live),
      interpreter_(interpreter),
      device_(device_of(graph.program)) {}

bool DeviceReplay::fits_units() const {
  return std::ranges::none_of(live_.units, [](const Ref<Storage>& unit) { return unit->is_present(); });
}

void DeviceReplay::hold_arguments(std::span<const Tensor> arguments) {
  DeviceContext& context = RankContext::current().device(device_);
  if (arguments_.empty())
    for (const Tensor& argument : arguments) {
      const Tensor held = twin(argument.local());
      arguments_.push_back(argument.is_distributed() ? Tensor::distributed(argument.shape(), argument.layout(), held)
                                                     : held);
    }
  for (const std::size_t i : indices(arguments))
    if (arguments[i].local().numel() > 0) copy_extent(context, arguments_[i].local(), arguments[i].local());
}

// A slot that the step reads and then sets to a fresh tensor with the same metadata gets its bytes overwritten, unless
// a tensor that remains after the step shares the old ones.
bool DeviceReplay::is_updated_in_place(const SlotUpdate& update) const {
  if (update.gradient || !update.result.local.defined()) return false;
  const ir::TensorRef& fresh = update.result.local;
  if (program_.value(fresh.value).kind != ValueKind::temporary) return false;
  const auto bound = std::find_if(program_.bindings.begin(), program_.bindings.end(), [&](const ir::Binding& binding) {
    return binding.slot == update.slot && !binding.gradient && !binding.kept;
  });
  if (bound == program_.bindings.end()) return false;
  const ir::TensorGuard& old = bound->tensor;
  if (old.dtype != fresh.dtype || old.shape != fresh.shape || old.layout != update.result.layout ||
      old.global != update.result.shape || !is_contiguous(old.shape, old.strides) ||
      !is_contiguous(fresh.shape, fresh.strides))
    return false;
  const auto shows_old = [&](const ir::GraphResult& result) {
    return result.local.defined() && result.local.value == bound->value;
  };
  return std::none_of(program_.results.begin(), program_.results.end(), shows_old) &&
         std::none_of(program_.updates.begin(), program_.updates.end(),
                      [&](const SlotUpdate& other) { return shows_old(other.result); });
}

// Called at the end of the recording, while the values of the step are present.
void DeviceReplay::keep_what_remains() {
  DeviceContext& context = RankContext::current().device(device_);
  for (const ir::GraphResult& result : program_.results)
    results_.push_back(result.local.defined() ? interpreter_.result(result) : Tensor());
  for (const SlotUpdate& update : program_.updates) {
    const Tensor value = update.result.local.defined() ? interpreter_.result(update.result) : Tensor();
    if (!is_updated_in_place(update)) {
      late_updates_.push_back({&update, value});
      continue;
    }
    const Tensor target = live_.slot(update.slot)->value().local();
    context.copy(target.raw(), value.local().raw(), target.bytes());
    slots_in_place_.push_back(update.slot);
  }
}

// A recording gathers into the memory that a unit keeps, and into its own for other units. What a unit is yet to keep
// must outlast the recording, so it is allocated before.
void DeviceReplay::note_kept_memory() {
  kept_.clear();
  for (const Ref<Storage>& unit : live_.units) {
    if (unit->keeps_memory()) {
      unit->restore_data();
      unit->release_data();
    }
    kept_.push_back(unit->kept_address());
  }
}

void DeviceReplay::record() {
  recorded_.reset();
  results_.clear();
  late_updates_.clear();
  slots_in_place_.clear();
  places_.clear();
  written_.clear();
  // Another handle must not see its bytes change.
  for (const SlotUpdate& update : program_.updates)
    if (Slot& slot = *live_.slot(update.slot); is_updated_in_place(update) && !ir::is_sole_owner(slot.value()))
      slot.set(dense_copy_of(slot.value()));
  std::vector<std::uint32_t> versions;
  for (const ir::Binding& binding : program_.bindings) {
    const Ref<Storage>& storage = bound_tensor(graph_, binding).local().storage();
    places_.push_back({storage->id(), storage->address()});
    versions.push_back(storage->version());
  }
  note_kept_memory();
  recorded_ = RankContext::current().device(device_).record(
      [this] { interpreter_.run(arguments_, [this] { keep_what_remains(); }); });
  ++num_recordings_;
  for (const std::size_t i : indices(places_)) {
    const ir::Binding& binding = program_.bindings[i];
    const bool is_first = program_.value(binding.value).source == static_cast<int>(i);  // of those in one storage
    if (is_first && bound_tensor(graph_, binding).local().storage()->version() != versions[i]) written_.push_back(i);
  }
}

bool DeviceReplay::is_current() const {
  if (!recorded_ || !recorded_->is_there()) return false;
  for (const std::size_t i : indices(places_)) {
    const Ref<Storage>& now = bound_tensor(graph_, program_.bindings[i]).local().storage();
    if (now->id() != places_[i].storage_id || now->address() != places_[i].address) return false;
  }
  for (const std::size_t i : indices(kept_))
    if (kept_[i] && live_.units[i]->kept_address() != kept_[i]) return false;  // somebody else may have it by now
  return std::all_of(slots_in_place_.begin(), slots_in_place_.end(),
                     [&](int slot) { return ir::is_sole_owner(live_.slot(slot)->value()); });
}

namespace {

// Memory for tensors of a recording that the program keeps: allocated before the launch, so that running out of memory
// is an error before it. Tensors that share a storage of the recording share one here, at the same offsets: gradients
// of a unit that wait for a reduction are read as one buffer.
class Rooms {
 public:
  Tensor room_for(const Tensor& tensor) {
    const Tensor local = tensor.local();
    const Ref<Storage>& old = local.storage();
    if (!local.is_contiguous()) return like(tensor, Tensor::empty(local.shape(), local.dtype(), local.device()));
    Ref<Storage>& storage = by_storage_[old.get()];
    if (!storage) storage = Storage::allocate(old->bytes(), old->category(), local.device());
    return like(tensor, Tensor::make(storage, local.shape(), contiguous_strides(local.shape()), local.offset(),
                                     local.dtype(), local.device()));
  }

 private:
  static Tensor like(const Tensor& tensor, const Tensor& local) {
    return tensor.is_distributed() ? Tensor::distributed(tensor.shape(), tensor.layout(), local) : local;
  }

  std::unordered_map<const Storage*, Ref<Storage>> by_storage_;
};

}  // namespace

std::vector<Tensor> DeviceReplay::run(std::span<const Tensor> arguments) {
  const TraceSpan span("device graph");
  interpreter_.check_whole();
  hold_arguments(arguments);
  const bool is_new = !is_current();
  if (is_new) record();
  Rooms rooms;
  // Tensors but temporaries are the program's already.
  const auto room_for = [&](const Tensor& tensor, ir::ValueId value) {
    return tensor.defined() && program_.value(value).kind == ValueKind::temporary ? rooms.room_for(tensor) : tensor;
  };
  std::vector<Tensor> results, updates;
  for (const std::size_t i : indices(results_))
    results.push_back(room_for(results_[i], program_.results[i].local.value));
  for (const LateUpdate& late : late_updates_) updates.push_back(room_for(late.value, late.update->result.local.value));
  if (!recorded_->is_there())
    throw OutOfMemory(fmt::format("the results of the step take the memory of its recording on {}", to_string(device_)));

  recorded_->launch();
  const auto fill = [](const Tensor& room, const Tensor& value) {
    if (value.defined() && room.local().storage() != value.local().storage()) copy_into(room.local(), value.local());
  };
  for (const std::size_t i : indices(results)) fill(results[i], results_[i]);
  for (const std::size_t i : indices(updates)) fill(updates[i], late_updates_[i].value);

  for (const std::size_t i : indices(program_.slots))
    if (program_.slots[i].drops_grad_first) live_.slot(static_cast<int>(i))->set_grad({});
  if (!is_new)  // recording ran the nodes' host side
    for (const std::size_t i : written_) bound_tensor(graph_, program_.bindings[i]).local().storage()->bump_version();
  for (const int slot : slots_in_place_) live_.slot(slot)->value().local().storage()->bump_version();
  for (const std::size_t i : indices(updates)) {
    const SlotUpdate& update = *late_updates_[i].update;
    Slot& slot = *live_.slot(update.slot);
    if (update.gradient) slot.set_grad(updates[i]);
    else slot.set(updates[i]);
  }
  leave_requires_grad(graph_);
  return results;
}

}  // namespace sherd
