#include "nn/module.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <typeinfo>

#include "nn/shard_keeper.h"
#include "runtime/exec/context.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/core/tape_modes.h"
#include "runtime/op/rows/ops.h"
#include "runtime/os/host_memory.h"
#include "runtime/tensor/nearest.h"

namespace sherd::nn {

Parameter::Parameter(std::string name, Shape shape, Init init, DType dtype)
    : Slot(std::move(name), /*requires_grad=*/true), shape_(std::move(shape)), init_(init) {
  set(Tensor::empty(shape_, dtype, Device::meta()));
}

void Parameter::reshard() const {
  if (keeper_) keeper_->shards_written();
}

Module::Module() : state_([](const void* module) { return static_cast<const Module*>(module)->label(); }, this) {}

std::string Module::path() const {
  if (!parent_) return name_;
  const std::string above = parent_->path();
  return above.empty() ? name_ : above + "." + name_;
}

std::string Module::label() const {
  const std::string own = path();
  return own.empty() ? "(model)" : own;
}

namespace {
// Dots separate the parts of a path.
void check_name(std::string_view what, const std::string& name) {
  check(!name.empty() && name.find('.') == std::string::npos,
        "the name of a {} must not be empty or hold a dot, got \"{}\"", what, name);
}
}  // namespace

void Module::adopt(std::string name, std::unique_ptr<Module> child) {
  check_name("child", name);
  if (child_names_.contains(name)) fail("\"{}\" has a child \"{}\" already", path(), name);
  child->name_ = std::move(name);
  child->parent_ = this;
  Module& below = *child;
  children_.push_back(std::move(child));
  child_names_.insert(below.name_);
  below.rename_below();
  root().num_added_ += below.num_added_;
  root().count_hooks(below.num_hooks_, below.hooks_mark_);
  count_parts(1 + below.state_.all().parts);
}

// Parameters carry their full path: initial values and checkpoints are keyed by it.
void Module::rename_below() {
  interned_path_ = nullptr;
  const std::string prefix = path();
  for (const NamedParameter& p : parameters_)
    if (!p.shared) p.parameter->rename(prefix.empty() ? p.name : prefix + "." + p.name);
  for (const auto& child : children_) child->rename_below();
}

void Module::check_parameter_name(const std::string& name) const {
  check_name("parameter", name);
  for (const NamedParameter& p : parameters_)
    check(p.name != name, "\"{}\" has a parameter \"{}\" already", path(), name);
}

Parameter& Module::add_parameter(std::string name, const Shape& shape, Init init, DType dtype) {
  check_parameter_name(name);
  const std::string prefix = path();
  owned_parameters_.push_back(
      std::make_unique<Parameter>(prefix.empty() ? name : prefix + "." + name, shape, init, dtype));
  parameters_.push_back({std::move(name), owned_parameters_.back().get(), false});
  count_parts(1);
  return *owned_parameters_.back();
}

Parameter& Module::share_parameter(std::string name, Parameter& other) {
  check_parameter_name(name);
  parameters_.push_back({std::move(name), &other, true});
  count_parts(1);
  return other;
}

Buffer& Module::add_buffer(std::string name, const Tensor& value) {
  check_name("buffer", name);
  for (const auto& b : buffers_) check(b->name() != name, "\"{}\" has a buffer \"{}\" already", path(), name);
  buffers_.push_back(std::make_unique<Buffer>(std::move(name), value));
  count_parts(1);
  return *buffers_.back();
}

void Module::for_each_module(const std::function<void(Module&)>& visit) {
  visit(*this);
  for (const auto& child : children_) child->for_each_module(visit);
}

namespace {
std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

// Own parameters first, then the children's, with paths relative to the module asked.
void collect(const Module& module, const std::string& prefix, std::set<Parameter*>& seen,
             std::vector<std::pair<std::string, Parameter*>>& out) {
  for (const Module::NamedParameter& p : module.own_parameters())
    if (seen.insert(p.parameter).second) out.emplace_back(join(prefix, p.name), p.parameter);
  for (const auto& child : module.children()) collect(*child, join(prefix, child->name()), seen, out);
}
void collect(const Module& module, std::set<Parameter*>& seen, std::vector<Parameter*>& out) {
  for (const Module::NamedParameter& p : module.own_parameters())
    if (seen.insert(p.parameter).second) out.push_back(p.parameter);
  for (const auto& child : module.children()) collect(*child, seen, out);
}
void collect_buffers(const Module& module, const std::string& prefix,
                     std::vector<std::pair<std::string, Buffer*>>& out) {
  for (const auto& b : module.own_buffers()) out.emplace_back(join(prefix, b->name()), b.get());
  for (const auto& child : module.children()) collect_buffers(*child, join(prefix, child->name()), out);
}
}  // namespace

std::vector<std::pair<std::string, Parameter*>> Module::named_parameters() const {
  std::vector<std::pair<std::string, Parameter*>> result;
  std::set<Parameter*> seen;
  collect(*this, "", seen, result);
  return result;
}

std::vector<Parameter*> Module::parameters() const {
  std::vector<Parameter*> result;
  std::set<Parameter*> seen;
  collect(*this, seen, result);
  return result;
}

std::vector<std::pair<std::string, Buffer*>> Module::named_buffers() const {
  std::vector<std::pair<std::string, Buffer*>> result;
  collect_buffers(*this, "", result);
  return result;
}

std::int64_t Module::num_parameters() const {
  std::int64_t n = 0;
  for (const Parameter* p : parameters()) n += p->numel();
  return n;
}

Parameter& Module::parameter(std::string_view wanted) const {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : named_parameters()) {
    if (name == wanted) return *parameter;
    names.push_back(name);
  }
  check(!names.empty(), "no parameter \"{}\": the module has none", wanted);
  fail("no parameter \"{}\"{}", wanted, did_you_mean(wanted, names));
}

namespace {
// Counts this rank's parts that stay in memory, before any of them is there: the host would run out in the middle.
void check_fits_memory(const std::vector<Parameter*>& parameters, Device device) {
  std::int64_t bytes = 0;
  for (const Parameter* p : parameters) {
    if (ShardKeeper::of(*p) && !ShardKeeper::of(*p)->keeps_in_memory()) continue;
    if (const Tensor local = p->sharded_value().local(); local.is_meta()) bytes += local.bytes();
  }
  const RankContext& context = RankContext::current();
  if (context.is_ghost()) return;
  const Allocator& allocator = RankContext::current().allocator(device);
  if (const std::int64_t limit = allocator.limit(); limit > 0 && bytes > limit)
    throw OutOfMemory(fmt::format("out of memory: the parameters alone take {} on this rank, and the limit is {}",
                                  format_bytes(bytes), format_bytes(limit)));
  if (device != Device::cpu()) return;
  const std::int64_t ranks = context.num_ranks_here, host = host_memory();
  check(bytes <= host / ranks,
        "the parameters alone take {} on this rank, and the host has {} for {} rank{}: shard them over more hosts, or "
        "take a smaller model",
        format_bytes(bytes), format_bytes(host), ranks, ranks == 1 ? "" : "s");
}
}  // namespace

void Module::give_memory(Device device, const std::function<void(Parameter&)>& then) {
  check(!device.is_meta(), "parameters are given bytes here, and the meta device has none");
  check_fits_memory(parameters(), device);
  for_each_module([device](Module& m) {
    for (const auto& hook : m.hooks_) hook->before_materialize(m, device);
    for (const auto& buffer : m.buffers_)
      if (buffer->value().device() != device) buffer->set(to(buffer->value(), device));
  });
  for (Parameter* p : parameters()) {
    if (const Tensor value = p->value(); value.local().is_meta()) {
      const Tensor local = Tensor::empty(value.local().shape(), value.dtype(), device, MemoryCategory::parameters);
      p->set(value.is_distributed() ? Tensor::distributed(value.shape(), value.layout(), local) : local);
    }
    if (!p->initialised()) then(*p);
  }
}

void Module::allocate(Device device) {
  give_memory(device, [](Parameter& p) { p.mark_torn("it has memory, and nobody has drawn or loaded its values"); });
}

void Module::materialize(Seed seed, Device device) {
  give_memory(device, [seed](Parameter& p) {
    fill_initial(p.value(), p.init(), p.name(), seed);
    leave_memory(p.value());
    p.mark_initialised();
    p.mark_whole();
  });
}

namespace {
// The same tensor in another dtype, in memory of its own.
Tensor in_dtype(const Tensor& value, DType dtype) {
  const Tensor from = value.local().detach();
  const Tensor local = from.is_meta() ? Tensor::empty(from.shape(), dtype, Device::meta())
                                      : Tensor::empty(from.shape(), dtype, from.device(), MemoryCategory::parameters);
  if (!from.is_meta()) copy_into(local, from);
  return value.is_distributed() ? Tensor::distributed(value.shape(), value.layout(), local) : local;
}
}  // namespace

void Module::cast_to(DType dtype) {
  check(is_floating(dtype), "cast_to({}): parameters can be f64, f32, bf16 or f16", sherd::name(dtype));
  const auto is_other = [dtype](const Slot& s) { return is_floating(s.value().dtype()) && s.value().dtype() != dtype; };
  for (const Parameter* p : parameters())
    check(!p->grad().defined(), "cast_to({}): parameter \"{}\" has a gradient of the old dtype; clear it",
          sherd::name(dtype), p->name());
  for_each_module([&](Module& m) {
    for (const auto& hook : m.hooks_) hook->before_cast(m, dtype);
    for (const auto& buffer : m.buffers_)
      if (buffer->has_value() && is_other(*buffer)) buffer->set(in_dtype(buffer->value(), dtype));
  });
  for (Parameter* p : parameters()) {
    if (!is_other(*p)) continue;
    check(!ShardKeeper::of(*p),
          "cast_to({}): parameter \"{}\" is of a unit of fully_shard that was wrapped above \"{}\"; cast that module",
          sherd::name(dtype), p->name(), path());
    const std::string torn = p->torn();
    p->set(in_dtype(p->value(), dtype));
    p->mark_torn(torn);  // bytes that were no values are none in another dtype
  }
}

void Module::train(bool on) {
  for_each_module([on](Module& m) { m.state_.set<&ModuleState::training>(on); });
}

Module& Module::root() {
  Module* top = this;
  while (top->parent_) top = top->parent_;
  return *top;
}

void Module::count_parts(std::int64_t come) {
  HostState<ModuleState>& state = root().state_;
  state.set<&ModuleState::parts>(state.all().parts + come);
}

void Module::note_parts_read() const {
  if (RankContext::current().capture) [[unlikely]]
    root().state_.get<&ModuleState::parts>();
}

void Module::count_hooks(int come, std::uint64_t mark) {
  num_hooks_ += come;
  hooks_mark_ += mark;
  state_.set<&ModuleState::hooks>(num_hooks_ == 0 ? "none" : fmt::format("{} ({:x})", num_hooks_, hooks_mark_));
}

void Module::add_hook(std::shared_ptr<ModuleHook> hook) {
  Module& top = root();
  const std::uint64_t mark =
      mix_attr_hash(AttrValue<std::string>::hash(path()), static_cast<std::uint64_t>(++top.num_added_));
  hooks_.push_back(std::move(hook));
  hook_marks_.push_back(mark);
  top.count_hooks(1, mark);
}

void Module::remove_hook(const ModuleHook& hook) {
  for (std::size_t i = hooks_.size(); i-- > 0;) {
    if (hooks_[i].get() != &hook) continue;
    const std::uint64_t mark = hook_marks_[i];
    hooks_.erase(hooks_.begin() + static_cast<std::ptrdiff_t>(i));
    hook_marks_.erase(hook_marks_.begin() + static_cast<std::ptrdiff_t>(i));
    root().count_hooks(-1, 0 - mark);
  }
}

namespace {
std::string class_name(const ModuleHook& hook) {
  const char* const symbol = typeid(hook).name();
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(symbol, nullptr, nullptr, &status), std::free);
  return text ? text.get() : symbol;
}
}  // namespace

void Module::check_recomputable() const {
  for (const auto& hook : hooks_)
    if (!hook->can_recompute())
      fail(
          "module \"{}\" is recomputed in backward, which runs its ops again and not its hook {}: mark the hook "
          "can_recompute() if that is right, or leave the module out of recomputation",
          label(), class_name(*hook));
}

Module::ForwardScope::ForwardScope(Module& module) : module_(module), outer_path_(RankContext::current().module_path) {
  RankContext& context = RankContext::current();
  if (!module.interned_path_) {
    const std::string path = module.path();
    module.interned_path_ = context.intern(path.empty() ? "(model)" : path);
  }
  context.module_path = module.interned_path_;
  try {
    if (context.capture) [[unlikely]] {
      module.root().state_.get<&ModuleState::hooks>();
      module.note_parts_read();
    }
    if (records_segment()) [[unlikely]]
      module.check_recomputable();
    for (; entered_ < module.hooks_.size(); ++entered_) module.hooks_[entered_]->before_forward(module);
  } catch (...) {
    const std::string reason = current_exception_text();
    while (entered_ > 0) module.hooks_[--entered_]->abandon_forward(module, reason);
    context.module_path = outer_path_;
    throw;
  }
}

const TensorMap* Module::ForwardScope::input_map() {
  const auto& hooks = module_.hooks_;
  if (std::none_of(hooks.begin(), hooks.end(), [](const auto& hook) { return hook->maps_inputs(); })) return nullptr;
  map_ = [this](Tensor& tensor, TensorPlace place) {
    for (const auto& hook : module_.hooks_)
      if (hook->maps_inputs()) hook->map_input(module_, tensor, place);
  };
  return &map_;
}

const TensorMap* Module::ForwardScope::output_map() {
  const auto& hooks = module_.hooks_;
  if (std::none_of(hooks.begin(), hooks.end(), [](const auto& hook) { return hook->maps_outputs(); })) return nullptr;
  map_ = [this](Tensor& tensor, TensorPlace place) {
    for (auto hook = module_.hooks_.rbegin(); hook != module_.hooks_.rend(); ++hook)
      if ((*hook)->maps_outputs()) (*hook)->map_output(module_, tensor, place);
  };
  return &map_;
}

void Module::ForwardScope::finish(const std::function<void(const TensorVisitor&)>& visit_outputs) {
  while (entered_ > 0) module_.hooks_[--entered_]->after_forward(module_, visit_outputs);
}

void Module::ForwardScope::fail() {
  try {
    throw;
  } catch (Error& error) {
    if (!error.has("module")) error.add("module", *module_.interned_path_);
  } catch (...) {}
  reason_ = current_exception_text();
}

Module::ForwardScope::~ForwardScope() {
  while (entered_ > 0) module_.hooks_[--entered_]->abandon_forward(module_, reason_);
  RankContext::current().module_path = outer_path_;
}

namespace {

/// Bytes of global tensors, and of this rank's local ones.
struct Held {
  std::int64_t count = 0, global = 0, here = 0;
  void add(const Tensor& t) {
    const Tensor local = t.local();
    ++count;
    global += t.bytes();
    here += local.is_meta() ? 0 : local.bytes();
  }
  std::string describe() const {
    return global == here ? format_bytes(global) : fmt::format("{}, {} here", format_bytes(global), format_bytes(here));
  }
};

std::string line(const std::string& indent, const std::string& name, const Tensor& t, std::string_view remark) {
  Held held;
  held.add(t);
  return fmt::format("{}{} {}{}  {}\n", indent, name, describe(t), remark, held.describe());
}

void print(const Module& module, const std::string& indent, std::string& out, Held& total) {
  for (const Module::NamedParameter& p : module.own_parameters()) {
    const Tensor& t = p.parameter->value();
    out += line(indent, p.name, t, p.shared ? " (shared)" : "");
    if (!p.shared) total.add(t);
  }
  for (const auto& b : module.own_buffers())
    if (b->has_value()) out += line(indent, b->name(), b->value(), " (buffer)");
  for (const auto& child : module.children()) {
    out += fmt::format("{}{}\n", indent, child->name());
    print(*child, indent + "  ", out, total);
  }
}

}  // namespace

std::string to_string(const Module& module) {
  std::string out;
  Held total;
  print(module, "", out, total);
  return out + fmt::format("{} parameters, {}\n", total.count, total.describe());
}

}  // namespace sherd::nn
