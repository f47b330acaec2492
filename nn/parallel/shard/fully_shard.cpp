// Wiring: which hook does what when. What is done then is a function of the recorded calls (unit_schedule.h); bytes are
// moved by unit_buffers.h, gradients by gradient_inbox.h.
//
//   before forward   first module to run becomes the root of the tree; gather, register full tensors; gather the next
//   after forward    reshard as configured; hook the outputs' gradients
//   output gradient  (the backward of a call begins) reshard units whose backward is over; gather again if resharded;
//                    gather the next
//   last gradient    of the unit: reduce; reshard, unless the tape still has readers of gathered parameters
//   end of backward  reduce the gradients of units that did not complete, reshard everything
//
// "Gather the next" is what hides communication: it is submitted before the module computes and overlaps with it.
#include "nn/parallel/shard/fully_shard.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "nn/module_list.h"
#include "nn/optim/agree_on_updates.h"
#include "nn/parallel/shard/gradient_inbox.h"
#include "nn/parallel/shard/unit_schedule.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"

namespace sherd::nn {

// All wrapped modules below one root share this.
struct ShardTree {
  std::vector<FullyShardHook*> hooks;  // by UnitId, in module order; null once its modules were destroyed
  UnitSchedule schedule;
  std::shared_ptr<BackwardEnd> end = std::make_shared<BackwardEnd>([this] { end_backward(is_last); });
  int depth = 0;        // of wrapped forwards that run
  bool is_last = true;  // the next backward, of those that belong together

  void add(FullyShardHook& hook);
  void drop_unused() const;
  void close_rounds() const;
  void end_backward(bool is_last_of_all);
  void abandon(std::string_view reason) noexcept;
};

/// The parameters of one call.
struct Unit {
  UnitBuffers buffers;
  GradientInbox inbox;
  Unit(const std::string& name, const DataMesh& data, const std::vector<Parameter*>& parameters,
       const MixedPrecision& policy)
      : buffers(place_unit(name, data, policy, parameters), parameters), inbox(buffers, data) {}
};

class FullyShardHook final : public ModuleHook, public std::enable_shared_from_this<FullyShardHook> {
 public:
  FullyShardHook(std::string name, std::vector<Module*> modules, const DeviceMesh& mesh,
                 const std::vector<Parameter*>& parameters, const FullyShardOptions& options)
      : name_(std::move(name)),
        modules_(std::move(modules)),
        policy_(options.mp_policy),
        mesh_(mesh, options.optimizer) {
    if (options.reshard_after_forward)
      reshard_after_forward_ = options.reshard_after_forward->resolve(mesh_.num_shards());
    prefetches_ = options.prefetch;
    if (parameters.empty()) return;
    unit = std::make_unique<Unit>(name_, mesh_, parameters, policy_);
    if (options.parameters == ShardedOver::none) unit->buffers.keep_gathered();
    unit->inbox.set_accumulates_shards(options.gradients != ShardedOver::none);
    if (options.reduce_unused) unit->inbox.set_reduces_unused(true);
  }
  ~FullyShardHook() override {
    if (tree_) tree_->hooks[static_cast<std::size_t>(id_)] = nullptr;
  }

  void before_forward(Module& module) override;
  void after_forward(Module& module, const std::function<void(const TensorVisitor&)>& visit_outputs) override;
  void abandon_forward(Module& module, std::string_view reason) noexcept override;
  void before_materialize(Module&, Device device) override {
    if (unit) unit->buffers.materialize(device);
  }
  bool maps_inputs() const override { return policy_.cast_forward_inputs && policy_.param_dtype; }
  bool maps_outputs() const override { return policy_.output_dtype.has_value(); }
  void map_input(Module&, Tensor& tensor, TensorPlace) override { cast_floating(tensor, *policy_.param_dtype); }
  void map_output(Module&, Tensor& tensor, TensorPlace) override { cast_floating(tensor, *policy_.output_dtype); }

  const std::string& name() const { return name_; }
  bool reshards() const { return reshard_after_forward_.value_or(!is_root_); }
  void set_reshards(bool value) { reshard_after_forward_ = value; }
  void set_is_last(bool value) {
    is_last_ = value;
    if (tree_) tree_->is_last = value;
  }
  bool is_root() const { return is_root_; }
  const std::shared_ptr<ShardTree>& tree() const { return tree_; }
  /// Error naming the module if no parameters are its own.
  Unit& own_unit() const {
    check(unit != nullptr, "module \"{}\" has no parameters of its own: inner calls of fully_shard own them", name_);
    return *unit;
  }
  void close_round();
  ProcessGroup& root_group() const { return mesh_.root_group(); }

  std::unique_ptr<Unit> unit;
  // Replace the recorded order where they are not empty.
  std::vector<std::weak_ptr<FullyShardHook>> forward_prefetch, backward_prefetch;

 private:
  friend struct ShardTree;
  /// A forward call, as its outputs remember it.
  struct ForwardCall {
    std::weak_ptr<FullyShardHook> hook;
    UnitSchedule::Call call;
    std::uint64_t begun;     // nodes of its own have larger numbers
    std::uint64_t pass = 0;  // the backward that has reached it last
  };
  /// A forward that runs, or another method in its place.
  struct Running {
    const Module* module;
    std::uint64_t begun;  // nodes of its own have larger numbers
  };
  void join_or_make_tree(Module& module);
  void join_or_tell(Module& module);
  void become_root(Module& module);
  void enter_forward(bool begins);
  bool is_running(const Module& module) const {
    return std::ranges::find(running_, &module, &Running::module) != running_.end();
  }
  UnitSchedule::Call leave_forward(Module& module);
  void hook_outputs(UnitSchedule::Call call, std::uint64_t begun,
                    const std::function<void(const TensorVisitor&)>& visit_outputs);
  void before_backward(ForwardCall& call);
  void prefetch(const std::vector<std::weak_ptr<FullyShardHook>>& listed, UnitId expected) const;

  std::string name_;
  std::vector<Module*> modules_;  // their addresses only: they may be gone
  MixedPrecision policy_;
  DataMesh mesh_;
  std::shared_ptr<ShardTree> tree_;
  UnitId id_ = kNoUnit;
  std::optional<bool> reshard_after_forward_;
  UnitSchedule::Call forward_call_;  // the last that began
  std::vector<Running> running_;     // the innermost last
  std::vector<Module*> awaited_;     // of the list: those that have not run since the first did
  bool is_root_ = false;
  bool is_last_ = true;
  bool prefetches_ = true;
};

void ShardTree::add(FullyShardHook& hook) {
  hook.id_ = static_cast<UnitId>(hooks.size());
  hooks.push_back(&hook);
  if (hook.unit) hook.unit->inbox.set_end(end);
}

void ShardTree::drop_unused() const {
  for (FullyShardHook* hook : hooks)
    if (hook && hook->unit) hook->unit->buffers.drop_unused();
}

void ShardTree::close_rounds() const {
  for (FullyShardHook* hook : hooks)
    if (hook && !hook->awaited_.empty()) hook->close_round();
}

void ShardTree::end_backward(bool is_last_of_all) {
  if (is_last_of_all) schedule.end_backward();
  for (auto hook = hooks.rbegin(); hook != hooks.rend(); ++hook) {
    if (!*hook) continue;
    (*hook)->awaited_.clear();
    if ((*hook)->unit) (*hook)->unit->inbox.finish_backward();
  }
}

void ShardTree::abandon(std::string_view reason) noexcept {
  schedule.end_forward();
  schedule.end_backward();
  for (FullyShardHook* hook : hooks) {
    if (!hook) continue;
    hook->awaited_.clear();
    if (hook->unit) hook->unit->inbox.abandon(reason);
  }
}

namespace {

FullyShardHook* hook_of(const Module& module) {
  for (const auto& hook : module.hooks())
    if (auto* h = dynamic_cast<FullyShardHook*>(hook.get())) return h;
  return nullptr;
}

FullyShardHook& wrapped(Module& module) {
  FullyShardHook* hook = hook_of(module);
  if (!hook) fail("module \"{}\" is not wrapped by fully_shard", module.path());
  return *hook;
}

std::string label(const Module& module) { return module.path().empty() ? "(model)" : module.path(); }

// Parameters used below `module` that no unit owns yet, each once.
void collect_free(Module& module, std::set<Parameter*>& seen, std::vector<Parameter*>& out) {
  for (const Module::NamedParameter& p : module.own_parameters())
    if (!p.parameter->shard_keeper() && seen.insert(p.parameter).second) out.push_back(p.parameter);
  for (const auto& child : module.children())
    if (!hook_of(*child)) collect_free(*child, seen, out);
}

// Wrapping goes from the inside out. Error if a unit above `wrapped` has taken a parameter of it.
void check_inside_out(const Module& wrapped, const Module& module) {
  for (const Module::NamedParameter& p : module.own_parameters()) {
    const ShardKeeper* const owner = p.parameter->shard_keeper();
    for (const Module* above = owner ? wrapped.parent() : nullptr; above; above = above->parent())
      if (const FullyShardHook* hook = hook_of(*above); hook && hook->unit && owner == &hook->unit->buffers)
        fail(
            "fully_shard: module \"{}\" comes after \"{}\", which is above it and has taken its parameter \"{}\" "
            "already; wrap from the inside out: inner modules first, the model last",
            label(wrapped), hook->name(), p.parameter->name());
  }
  for (const auto& child : module.children())
    if (!hook_of(*child)) check_inside_out(wrapped, *child);
}

// A tied parameter must be gathered wherever it is used: the innermost wrapped module of each user must own it.
void check_tied(Module& module, const Unit* unit) {
  if (const FullyShardHook* hook = hook_of(module)) unit = hook->unit.get();
  for (const Module::NamedParameter& p : module.own_parameters()) {
    const ShardKeeper* const owner = p.parameter->shard_keeper();
    check(!owner || (unit && owner == &unit->buffers),
          "parameter \"{}\" is used by module \"{}\", whose fully_shard group \"{}\" does not own it: tied weights "
          "need both users in one group; wrap their common parent instead of one of them",
          p.parameter->name(), label(module), unit ? unit->buffers.layout().name : "none");
  }
  for (const auto& child : module.children()) check_tied(*child, unit);
}

void check_materialized(Module& module) {
  std::string names;
  int count = 0;
  for (const Parameter* p : module.parameters())
    if (p->value().local().is_meta() && ++count <= 8) names += (names.empty() ? "" : ", ") + p->name();
  check(count == 0,
        "{} parameters have no values yet ({}{}): call model.materialize(seed), or load a checkpoint, before the first "
        "forward",
        count, names, count > 8 ? ", ..." : "");
}

// In module order, each once: several modules may be one unit.
std::vector<FullyShardHook*> hooks_below(Module& root) {
  std::vector<FullyShardHook*> hooks;
  root.for_each_module([&](Module& m) {
    FullyShardHook* hook = hook_of(m);
    if (hook && std::find(hooks.begin(), hooks.end(), hook) == hooks.end()) hooks.push_back(hook);
  });
  return hooks;
}

// The tree of the nearest wrapped module above that is in one.
const std::shared_ptr<ShardTree>* tree_above(const Module& module) {
  for (const Module* above = module.parent(); above; above = above->parent())
    if (const FullyShardHook* hook = hook_of(*above); hook && hook->tree()) return &hook->tree();
  return nullptr;
}

}  // namespace

// A module that was wrapped after the root's first forward, in place of another perhaps, joins.
void FullyShardHook::join_or_make_tree(Module& module) {
  const std::shared_ptr<ShardTree>* const above = tree_above(module);
  if (!above) return become_root(module);
  check_materialized(module);
  check_tied(module, nullptr);
  tree_ = *above;
  tree_->add(*this);
}

void FullyShardHook::become_root(Module& module) {
  check_materialized(module);
  check_tied(module, nullptr);
  const std::vector<FullyShardHook*> found = hooks_below(module);
  for (const FullyShardHook* hook : found)
    if (hook->tree_)
      fail(
          "fully_shard: module \"{}\" ran by itself before \"{}\", so it is a root of its own; run the whole model "
          "first",
          hook->name_, label(module));
  const auto tree = std::make_shared<ShardTree>();
  for (FullyShardHook* hook : found) {
    tree->add(*hook);
    hook->tree_ = tree;
  }
  is_root_ = true;
  tree->is_last = is_last_;
}

// Without a tree nobody else tells the peers, who are on their way into the first gather.
void FullyShardHook::join_or_tell(Module& module) {
  try {
    join_or_make_tree(module);
  } catch (...) {
    const std::string reason = current_exception_text();
    for (FullyShardHook* hook : hooks_below(module))
      if (hook->root_group().size() > 1) hook->root_group().abort(reason);
    throw;
  }
}

void FullyShardHook::before_forward(Module& module) {
  if (!tree_) join_or_tell(module);
  const bool begins = awaited_.empty();
  try {
    enter_forward(begins);
  } catch (...) {
    if (tree_->depth == 0) tree_->abandon(current_exception_text());
    throw;
  }
  ++tree_->depth;
  running_.push_back({&module, RankContext::current().next_id()});
  if (begins) awaited_ = modules_;
}

void FullyShardHook::enter_forward(bool begins) {
  if (begins && is_root_ && !in_backward()) {
    tree_->schedule.begin_forward();
    tree_->close_rounds();  // of modules that were called by themselves
    for (FullyShardHook* hook : tree_->hooks)
      if (hook && hook->unit) hook->unit->inbox.discard_pending();  // left by a backward that failed
  }
  if (unit) unit->buffers.unshard();
  if (begins) forward_call_ = tree_->schedule.begin();
  if (begins) prefetch(forward_prefetch, unit ? tree_->schedule.enter(id_) : kNoUnit);
}

// Without grad mode there is no backward that would reshard later.
void FullyShardHook::close_round() {
  awaited_.clear();
  if (unit && (reshards() || !RankContext::current().grad_enabled)) unit->buffers.reshard();
}

// Submitted before the module computes, so that it runs beside it.
void FullyShardHook::prefetch(const std::vector<std::weak_ptr<FullyShardHook>>& listed, UnitId expected) const {
  for (const auto& weak : listed)
    if (const auto next = weak.lock(); next && next->unit) next->unit->buffers.prefetch();
  if (!listed.empty() || !prefetches_ || expected == kNoUnit) return;
  if (const FullyShardHook* next = tree_->hooks[static_cast<std::size_t>(expected)]; next && next->unit)
    next->unit->buffers.prefetch();
}

void FullyShardHook::after_forward(Module& module, const std::function<void(const TensorVisitor&)>& visit_outputs) {
  --tree_->depth;
  const std::uint64_t begun = running_.back().begun;
  running_.pop_back();
  try {
    const UnitSchedule::Call call = leave_forward(module);
    if (RankContext::current().grad_enabled) hook_outputs(call, begun, visit_outputs);
  } catch (...) {
    if (tree_->depth == 0) tree_->abandon(current_exception_text());
    throw;
  }
}

UnitSchedule::Call FullyShardHook::leave_forward(Module& module) {
  if (is_running(module)) return {};  // it called itself
  std::erase(awaited_, &module);
  const bool is_done = awaited_.empty();
  if (is_done) {
    close_round();
    if (is_root_ && !in_backward()) {
      tree_->schedule.end_forward();
      tree_->close_rounds();  // the rest of their lists does not run
      tree_->drop_unused();
    }
  }
  if (!unit || !is_done || !RankContext::current().grad_enabled) return {};
  return tree_->schedule.leave(id_, forward_call_);
}

// Of the outputs those that this call has made: one that was an input too is reached when the call's backward is over.
void FullyShardHook::hook_outputs(UnitSchedule::Call call, std::uint64_t begun,
                                  const std::function<void(const TensorVisitor&)>& visit_outputs) {
  const auto shared = std::make_shared<ForwardCall>(ForwardCall{weak_from_this(), call, begun});
  visit_outputs([&shared](const Tensor& t) {
    if (!t.requires_grad() || t.grad_node()->kind != Node::Kind::op || t.grad_node()->sequence < shared->begun) return;
    register_grad_hook(t,
                       [shared](const Tensor&) {
                         if (const auto self = shared->hook.lock()) self->before_backward(*shared);
                         return Tensor();
                       },
                       {.capturable = true});  // gathers are rows: replay issues them without the hook
  });
}

// An exception that leaves the outermost forward ends the step, for all ranks. One that leaves an inner forward may be
// handled by the model.
void FullyShardHook::abandon_forward(Module& module, std::string_view reason) noexcept {
  if (!tree_) return;
  running_.pop_back();
  if (--tree_->depth == 0) return tree_->abandon(reason);
  if (is_running(module)) return;  // it called itself
  awaited_.clear();
  if (unit) unit->buffers.reshard();
}

void FullyShardHook::before_backward(ForwardCall& call) {
  tree_->end->expect();
  if (std::exchange(call.pass, backward_pass()) == backward_pass()) return;  // another output was reached before
  const UnitSchedule::Backward plan = tree_->schedule.begin_backward(id_, call.call);
  for (const UnitId over : plan.over)
    if (const FullyShardHook* hook = tree_->hooks[static_cast<std::size_t>(over)]) hook->unit->inbox.leave_backward();
  if (unit) unit->buffers.unshard();
  prefetch(backward_prefetch, plan.next);
}

UnitHandle fully_shard(const std::vector<Module*>& modules, const DeviceMesh& mesh, const FullyShardOptions& options) {
  check(!modules.empty(), "fully_shard: the list of modules is empty");
  check_policy(options, mesh);
  std::set<Parameter*> seen;
  std::vector<Parameter*> parameters;
  std::string name;
  for (Module* module : modules) {
    check(dynamic_cast<ModuleContainer*>(module) == nullptr,
          "fully_shard: \"{}\" is a container without a forward, so its hooks would never run; wrap its children one "
          "by one, or pass them "
          "as a list to make one group",
          label(*module));
    check(hook_of(*module) == nullptr, "fully_shard: module \"{}\" is wrapped already", label(*module));
    check_inside_out(*module, *module);
    collect_free(*module, seen, parameters);
    name += (name.empty() ? "" : "+") + label(*module);
  }
  const auto hook = std::make_shared<FullyShardHook>(std::move(name), modules, mesh, parameters, options);
  for (Module* module : modules) module->add_hook(hook);
  return UnitHandle(hook);
}

UnitHandle fully_shard(Module& module, const DeviceMesh& mesh, const FullyShardOptions& options) {
  return fully_shard(std::vector<Module*>{&module}, mesh, options);
}

UnitHandle fully_shard(Module& module, const FullyShardOptions& options) {
  return fully_shard(module, DeviceMesh::world(), options);
}

bool is_fully_sharded(const Module& module) { return hook_of(module) != nullptr; }

UnitHandle unit_of(Module& module) { return UnitHandle(wrapped(module).shared_from_this()); }

namespace {

std::vector<UnitHandle> handles_of(const std::vector<Module*>& modules) {
  std::vector<UnitHandle> handles;
  for (Module* module : modules) handles.push_back(unit_of(*module));
  return handles;
}

}  // namespace

std::vector<UnitHandle> units(Module& root) {
  std::vector<UnitHandle> handles;
  for (FullyShardHook* hook : hooks_below(root))
    if (hook->unit) handles.emplace_back(hook->shared_from_this());
  return handles;
}

// ---- the handle ----

FullyShardHook& UnitHandle::hook() const {
  const auto hook = hook_.lock();
  check(hook != nullptr, "the modules of this fully_shard unit were destroyed");
  return *hook;  // kept by its modules, which nobody destroys within a call
}

const std::string& UnitHandle::name() const { return hook().name(); }
bool UnitHandle::has_parameters() const { return hook().unit != nullptr; }
std::vector<Parameter*> UnitHandle::parameters() const { return hook().own_unit().buffers.parameters(); }
const UnitLayout& UnitHandle::layout() const { return hook().own_unit().buffers.layout(); }
std::int64_t UnitHandle::gathered_bytes() const { return layout().full_bytes; }
bool UnitHandle::is_unsharded() const { return hook().own_unit().buffers.is_unsharded(); }
bool UnitHandle::is_gathered() const { return hook().own_unit().buffers.is_gathered(); }
int UnitHandle::late_gathers() const { return hook().own_unit().buffers.late_gathers(); }

void UnitHandle::unshard() const {
  if (Unit* unit = hook().unit.get()) unit->buffers.unshard();
}

UnshardHandle UnitHandle::unshard_async() const {
  unshard();
  return UnshardHandle(hook().shared_from_this());
}

void UnshardHandle::wait() const {
  if (hook_->unit) hook_->unit->buffers.wait();
}

void UnitHandle::reshard() const {
  if (Unit* unit = hook().unit.get()) unit->buffers.reshard();
}

void UnitHandle::set_gradient_divide_factor(double factor) const {
  check(factor > 0 && std::isfinite(factor), "the gradient divide factor must be a number above 0, got {}", factor);
  if (Unit* unit = hook().unit.get()) unit->inbox.set_divide_factor(factor);
}

void UnitHandle::set_requires_all_reduce(bool on) const {
  if (Unit* unit = hook().unit.get()) unit->inbox.set_all_reduces(on);
}

void UnitHandle::set_reduce_unused(bool on) const {
  if (Unit* unit = hook().unit.get()) unit->inbox.set_reduces_unused(on);
}

void UnitHandle::set_requires_gradient_sync(bool on) const {
  if (Unit* unit = hook().unit.get()) unit->inbox.set_syncs(on);
}

void UnitHandle::set_reshard_after_forward(bool reshard) const { hook().set_reshards(reshard); }

void UnitHandle::set_reshard_after_backward(bool reshard) const {
  if (Unit* unit = hook().unit.get()) unit->inbox.set_reshards(reshard);
}

void UnitHandle::set_max_reductions(int count) const {
  check(count >= 1, "at least one gradient buffer must be allowed to be in reduction, got {}", count);
  if (Unit* unit = hook().unit.get()) unit->inbox.set_max_reductions(count);
}

void UnitHandle::set_forward_prefetch(const std::vector<UnitHandle>& units) const {
  auto& list = hook().forward_prefetch;
  list.clear();
  for (const UnitHandle& unit : units) list.push_back(unit.hook_);
}

void UnitHandle::set_backward_prefetch(const std::vector<UnitHandle>& units) const {
  auto& list = hook().backward_prefetch;
  list.clear();
  for (const UnitHandle& unit : units) list.push_back(unit.hook_);
}

// ---- the same by module ----

void unshard(Module& module) { unit_of(module).unshard(); }
UnshardHandle unshard_async(Module& module) { return unit_of(module).unshard_async(); }
void reshard(Module& module) { unit_of(module).reshard(); }
void set_gradient_divide_factor(Module& module, double factor) { unit_of(module).set_gradient_divide_factor(factor); }

void set_requires_all_reduce(Module& module, bool on, bool recurse) {
  unit_of(module).set_requires_all_reduce(on);
  if (!recurse) return;
  for (const UnitHandle& unit : units(module)) unit.set_requires_all_reduce(on);
}

void set_requires_gradient_sync(Module& module, bool on, bool recurse) {
  unit_of(module).set_requires_gradient_sync(on);
  if (!recurse) return;
  for (const UnitHandle& unit : units(module)) unit.set_requires_gradient_sync(on);
}

void set_reshard_after_backward(Module& module, bool reshard, bool recurse) {
  unit_of(module).set_reshard_after_backward(reshard);
  if (!recurse) return;
  for (const UnitHandle& unit : units(module)) unit.set_reshard_after_backward(reshard);
}

void set_reshard_after_forward(Module& module, bool reshard, bool recurse) {
  unit_of(module).set_reshard_after_forward(reshard);
  if (!recurse) return;
  for (FullyShardHook* hook : hooks_below(module)) hook->set_reshards(reshard);
}

void set_reduce_unused(Module& module, bool on, bool recurse) {
  unit_of(module).set_reduce_unused(on);
  if (!recurse) return;
  for (const UnitHandle& unit : units(module)) unit.set_reduce_unused(on);
}

void set_modules_to_forward_prefetch(Module& module, const std::vector<Module*>& modules) {
  unit_of(module).set_forward_prefetch(handles_of(modules));
}

void set_modules_to_backward_prefetch(Module& module, const std::vector<Module*>& modules) {
  unit_of(module).set_backward_prefetch(handles_of(modules));
}

void set_reduce_scatter_max_input_buffers(Module& root, int count) {
  for (const UnitHandle& unit : units(root)) unit.set_max_reductions(count);
}

namespace {

FullyShardHook& root_hook(Module& root, std::string_view call) {
  FullyShardHook& hook = wrapped(root);
  check(hook.is_root() || !hook.tree(),
        "{}: module \"{}\" is not the root of its fully_shard tree; name the module whose forward is called", call,
        label(root));
  return hook;
}

}  // namespace

void set_is_last_backward(Module& root, bool is_last) { root_hook(root, "set_is_last_backward").set_is_last(is_last); }

GradientReduction finalize_backward(Module& root) {
  check(!in_backward(), "finalize_backward: a backward pass is running; call it after the last one");
  const FullyShardHook& hook = root_hook(root, "finalize_backward");
  const GradMode off(false);
  const PhaseScope phase(StepPhase::backward);
  if (hook.tree()) hook.tree()->end_backward(true);
  return GradientReduction(units(root));
}

void GradientReduction::wait() const {
  for (const UnitHandle& unit : units_) {
    if (!unit.is_alive()) continue;
    for (const Parameter* p : unit.parameters())
      if (const Tensor& gradient = p->grad(); gradient.defined() && gradient.local().storage())
        gradient.local().storage()->wait_to_read();
  }
}

void reset_after_error(Module& root) {
  const FullyShardHook& hook = root_hook(root, "reset_after_error");
  RankContext::current().drain_queues();
  if (hook.tree()) hook.tree()->schedule.forget();
  std::set<const ProcessGroup*> reset;
  for (FullyShardHook* each : hooks_below(root)) {
    if (!each->unit) continue;
    each->unit->inbox.discard_pending();
    each->unit->inbox.discard_earlier();
    each->unit->buffers.drop();
    if (reset.insert(&each->root_group()).second) each->root_group().reset();
  }
  agree_on_updates(root.parameters(), hook.root_group());
}

}  // namespace sherd::nn
