// Wiring: which hook does what when. The data movement is ShardGroup's.
//
//   before forward   first module to run becomes the root of the tree; gather, register full tensors; gather the next
//   after forward    reshard as configured; hook the outputs' gradients
//   output gradient  (the module's backward begins) reshard groups whose backward is over; gather again if resharded;
//                    gather the next
//   last gradient    of the group: reduce; reshard, unless some of its parameters are frozen
//   end of backward  reduce the gradients of groups that did not complete, reshard everything
//
// "Gather the next" is what hides communication: it is submitted before the module computes and overlaps with it.
#include "nn/parallel/fully_shard.h"

#include <algorithm>
#include <set>

#include "nn/module_list.h"
#include "nn/parallel/prefetch_order.h"
#include "nn/parallel/shard_group.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"

namespace sherd::nn {

bool ReshardAfterForward::resolve(int ranks) const {
  if (is_bool_) return value_ != 0;
  check(value_ >= 1 && value_ <= ranks && ranks % value_ == 0,
        "reshard_after_forward = {}: it must divide the {} ranks of the mesh and lie in 1..{}", value_, ranks, ranks);
  check(value_ == 1 || value_ == ranks,
        "reshard_after_forward = {} would keep shards of {} ranks after forward, which there is not; use true or false",
        value_, value_);
  return value_ == ranks && ranks > 1;
}

// All wrapped modules below one root share this.
struct ShardTree {
  std::vector<FullyShardHook*> hooks;  // in module order
  PrefetchOrder order;
  std::vector<FullyShardHook*> in_backward;  // whose backward has begun and is not known to be over
  bool end_queued = false;                   // the end-of-backward callback of the running pass

  void drop_unused() const;
  void close_rounds() const;
  void leave_backward_before(const FullyShardHook& next, PrefetchOrder::Call call);
  void abandon(std::string_view reason) noexcept;
};

class FullyShardHook final : public ModuleHook, public std::enable_shared_from_this<FullyShardHook> {
 public:
  FullyShardHook(std::vector<Module*> modules, const DeviceMesh& mesh, const FullyShardOptions& options)
      : modules_(std::move(modules)), policy_(options.mp_policy) {
    if (options.reshard_after_forward)
      reshard_after_forward_ = options.reshard_after_forward->resolve(DataMesh(mesh).num_shards());
    prefetches_ = options.prefetch;
  }

  void before_forward(Module& module) override;
  void after_forward(Module& module, const std::function<void(const TensorVisitor&)>& visit_outputs) override;
  void abandon_forward(Module&, std::string_view reason) noexcept override {
    if (tree_) tree_->abandon(reason);
  }
  void before_materialize(Module&, Device device) override {
    if (group) group->materialize(device);
  }
  bool maps_inputs() const override { return policy_.cast_forward_inputs && policy_.param_dtype; }
  bool maps_outputs() const override { return policy_.output_dtype.has_value(); }
  void map_input(Module&, Tensor& tensor, TensorPlace) override { cast_floating(tensor, *policy_.param_dtype); }
  void map_output(Module&, Tensor& tensor, TensorPlace) override { cast_floating(tensor, *policy_.output_dtype); }

  bool reshards() const { return reshard_after_forward_.value_or(!is_root_); }
  void set_reshards(bool value) { reshard_after_forward_ = value; }
  Module& module() const { return *modules_[0]; }
  bool is_root() const { return is_root_; }
  const std::shared_ptr<ShardTree>& tree() const { return tree_; }

  std::unique_ptr<ShardGroup> group;
  // Replace the recorded order where they are not empty.
  std::vector<ShardGroup*> forward_prefetch, backward_prefetch;

 private:
  friend struct ShardTree;
  void become_root(Module& module);
  void enter_forward(bool begins);
  void close_round();
  void before_backward(PrefetchOrder::Call call, bool is_first);
  void prefetch(const std::vector<ShardGroup*>& listed, ShardGroup* expected) const;
  static void end_backward(const std::shared_ptr<ShardTree>& tree);

  std::vector<Module*> modules_;
  MixedPrecision policy_;
  std::shared_ptr<ShardTree> tree_;
  std::optional<bool> reshard_after_forward_;
  PrefetchOrder::Call forward_call_, backward_call_;  // the last that began
  std::vector<Module*> awaited_;                      // of the list: those that have not run since the first did
  bool is_root_ = false;
  bool prefetches_ = true;
};

void ShardTree::drop_unused() const {
  for (FullyShardHook* hook : hooks)
    if (hook->group) hook->group->drop_unused();
}

void ShardTree::close_rounds() const {
  for (FullyShardHook* hook : hooks)
    if (!hook->awaited_.empty()) hook->close_round();
}

// Called when the backward of `next` begins, before its group is gathered.
void ShardTree::leave_backward_before(const FullyShardHook& next, PrefetchOrder::Call call) {
  std::erase_if(in_backward, [&](FullyShardHook* hook) {
    if (hook == &next || !PrefetchOrder::is_over(hook->backward_call_, call)) return false;
    if (hook->group->is_unsharded()) hook->group->reshard();
    return true;
  });
}

void ShardTree::abandon(std::string_view reason) noexcept {
  order.end_forward();
  order.end_backward();
  in_backward.clear();
  end_queued = false;
  for (FullyShardHook* hook : hooks) {
    hook->awaited_.clear();
    if (hook->group) hook->group->abandon(reason);
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
  check(hook != nullptr, "module \"{}\" is not wrapped by fully_shard", module.path());
  return *hook;
}

std::string label(const Module& module) { return module.path().empty() ? "(model)" : module.path(); }

// The group that owns a parameter and is its gradient sink. Null if it is plain, or tensor parallel only.
ShardGroup* group_of(const Parameter& parameter) { return dynamic_cast<ShardGroup*>(&parameter.sink()); }

// Parameters used below `module` that no group owns yet, each once.
void collect_free(Module& module, std::set<Parameter*>& seen, std::vector<Parameter*>& out) {
  for (const Module::NamedParameter& p : module.own_parameters())
    if (!group_of(*p.parameter) && seen.insert(p.parameter).second) out.push_back(p.parameter);
  for (const auto& child : module.children())
    if (!hook_of(*child)) collect_free(*child, seen, out);
}

// A tied parameter must be gathered wherever it is used: the innermost wrapped module of each user must own it.
void check_tied(Module& module, ShardGroup* group) {
  if (FullyShardHook* hook = hook_of(module)) group = hook->group.get();
  for (const Module::NamedParameter& p : module.own_parameters()) {
    const ShardGroup* owner = group_of(*p.parameter);
    check(!owner || owner == group,
          "parameter \"{}\" is used by module \"{}\", whose fully_shard group \"{}\" does not own it: tied weights "
          "need both users in "
          "one group; wrap their common parent instead of one of them",
          p.parameter->name(), label(module), group ? group->name() : "none");
  }
  for (const auto& child : module.children()) check_tied(*child, group);
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

}  // namespace

void FullyShardHook::become_root(Module& module) {
  check_materialized(module);
  check_tied(module, nullptr);
  auto tree = std::make_shared<ShardTree>();
  module.for_each_module([&](Module& m) {
    FullyShardHook* hook = hook_of(m);
    if (!hook || std::find(tree->hooks.begin(), tree->hooks.end(), hook) != tree->hooks.end()) return;
    check(
        hook->tree_ == nullptr,
        "fully_shard: module \"{}\" ran by itself before \"{}\", so it is a root of its own; run the whole model first",
        label(m), label(module));
    tree->hooks.push_back(hook);
  });
  for (FullyShardHook* hook : tree->hooks) hook->tree_ = tree;
  is_root_ = true;
}

void FullyShardHook::before_forward(Module& module) {
  if (!tree_) become_root(module);
  const bool begins = awaited_.empty();
  try {
    enter_forward(begins);
  } catch (...) {
    tree_->abandon(current_exception_text());
    throw;
  }
  if (begins) awaited_ = modules_;
}

void FullyShardHook::enter_forward(bool begins) {
  if (begins && is_root_ && !in_backward()) {
    tree_->end_queued = false;
    tree_->order.begin_forward();
    tree_->close_rounds();  // of modules that were called by themselves
    for (FullyShardHook* hook : tree_->hooks)
      if (hook->group) hook->group->discard_pending();  // left by a backward that failed
  }
  if (group) group->unshard();
  if (begins) forward_call_ = tree_->order.begin();
  if (begins) prefetch(forward_prefetch, group ? tree_->order.enter(group.get()) : nullptr);
}

// Without grad mode there is no backward that would reshard later.
void FullyShardHook::close_round() {
  awaited_.clear();
  if (group && (reshards() || !RankContext::current().grad_enabled)) group->reshard();
}

// Submitted before the module computes, so that it runs beside it.
void FullyShardHook::prefetch(const std::vector<ShardGroup*>& listed, ShardGroup* expected) const {
  for (ShardGroup* next : listed) next->prefetch();
  if (listed.empty() && prefetches_ && expected) expected->prefetch();
}

void FullyShardHook::after_forward(Module& module, const std::function<void(const TensorVisitor&)>& visit_outputs) {
  std::erase(awaited_, &module);
  const bool is_done = awaited_.empty();
  if (is_done) {
    close_round();
    if (is_root_ && !in_backward()) {
      tree_->order.end_forward();
      tree_->close_rounds();  // the rest of their lists does not run
      tree_->drop_unused();
    }
  }
  if (!RankContext::current().grad_enabled) return;
  const PrefetchOrder::Call call =
      group && is_done ? tree_->order.leave(group.get(), forward_call_) : PrefetchOrder::Call{};
  const auto is_first = std::make_shared<bool>(true);  // of several outputs
  const std::weak_ptr<FullyShardHook> weak = weak_from_this();
  visit_outputs([&](const Tensor& t) {
    if (!t.requires_grad() || t.grad_node()->kind != Node::Kind::op) return;
    register_grad_hook(t,
                       [weak, call, is_first](const Tensor&) {
                         if (const auto self = weak.lock())
                           self->before_backward(call, std::exchange(*is_first, false));
                         return Tensor();
                       },
                       {.capturable = true});  // gathers are rows: replay issues them without the hook
  });
}

void FullyShardHook::before_backward(PrefetchOrder::Call call, bool is_first) {
  if (!tree_->end_queued) {
    tree_->end_queued = true;
    at_end_of_backward([tree = tree_] { end_backward(tree); });
  }
  if (is_first && call.epoch > 0) {
    tree_->leave_backward_before(*this, call);
    backward_call_ = call;
    if (std::find(tree_->in_backward.begin(), tree_->in_backward.end(), this) == tree_->in_backward.end())
      tree_->in_backward.push_back(this);
  }
  if (group) group->unshard();
  if (is_first) prefetch(backward_prefetch, tree_->order.enter_backward(call));
}

void FullyShardHook::end_backward(const std::shared_ptr<ShardTree>& tree) {
  tree->end_queued = false;
  tree->order.end_backward();
  tree->in_backward.clear();
  for (auto hook = tree->hooks.rbegin(); hook != tree->hooks.rend(); ++hook) {
    (*hook)->awaited_.clear();
    if ((*hook)->group) (*hook)->group->finish_backward();
  }
}

void fully_shard(const std::vector<Module*>& modules, const DeviceMesh& mesh, const FullyShardOptions& options) {
  check(!modules.empty(), "fully_shard: the list of modules is empty");
  check_policy(options.mp_policy);
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
    collect_free(*module, seen, parameters);
    name += (name.empty() ? "" : "+") + label(*module);
  }
  auto hook = std::make_shared<FullyShardHook>(modules, mesh, options);
  if (!parameters.empty())
    hook->group = std::make_unique<ShardGroup>(name, mesh, std::move(parameters), options.mp_policy);
  for (Module* module : modules) module->add_hook(hook);
}

void fully_shard(Module& module, const DeviceMesh& mesh, const FullyShardOptions& options) {
  fully_shard(std::vector<Module*>{&module}, mesh, options);
}

void fully_shard(Module& module, const FullyShardOptions& options) {
  fully_shard(module, DeviceMesh::world(), options);
}

bool is_fully_sharded(const Module& module) { return hook_of(module) != nullptr; }

void unshard(Module& module) {
  if (ShardGroup* group = wrapped(module).group.get()) group->unshard();
}

UnshardHandle unshard_async(Module& module) {
  unshard(module);
  return UnshardHandle(wrapped(module).shared_from_this());
}

void UnshardHandle::wait() const {
  if (hook_->group) hook_->group->wait();
}

void reshard(Module& module) {
  if (ShardGroup* group = wrapped(module).group.get()) group->reshard();
}

void set_gradient_divide_factor(Module& module, double factor) {
  check(factor > 0, "the gradient divide factor must be above 0, got {}", factor);
  if (ShardGroup* group = wrapped(module).group.get()) group->set_divide_factor(factor);
}

void set_requires_all_reduce(Module& module, bool on, bool recurse) {
  if (ShardGroup* group = wrapped(module).group.get()) group->set_all_reduces(on);
  if (!recurse) return;
  for (ShardGroup* group : shard_groups(module)) group->set_all_reduces(on);
}

void set_reshard_after_forward(Module& module, bool reshard, bool recurse) {
  wrapped(module).set_reshards(reshard);
  if (!recurse) return;
  module.for_each_module([&](Module& m) {
    if (FullyShardHook* hook = hook_of(m)) hook->set_reshards(reshard);
  });
}

namespace {
std::vector<ShardGroup*> groups_of(const std::vector<Module*>& modules) {
  std::vector<ShardGroup*> groups;
  for (Module* module : modules)
    if (ShardGroup* group = wrapped(*module).group.get()) groups.push_back(group);
  return groups;
}
}  // namespace

void set_modules_to_forward_prefetch(Module& module, const std::vector<Module*>& modules) {
  wrapped(module).forward_prefetch = groups_of(modules);
}

void set_modules_to_backward_prefetch(Module& module, const std::vector<Module*>& modules) {
  wrapped(module).backward_prefetch = groups_of(modules);
}

void set_reduce_scatter_max_input_buffers(Module& root, int count) {
  check(count >= 1, "at least one gradient buffer must be allowed to be in reduction, got {}", count);
  for (ShardGroup* group : shard_groups(root)) group->set_max_reductions(count);
}

void reset_after_error(Module& root) {
  const FullyShardHook& hook = wrapped(root);
  check(hook.is_root() || !hook.tree(),
        "reset_after_error: module \"{}\" is not the root of its fully_shard tree; reset the module whose forward is "
        "called",
        label(root));
  RankContext::current().drain_queues();
  if (hook.tree()) {
    hook.tree()->order.forget();
    hook.tree()->in_backward.clear();
    hook.tree()->end_queued = false;
  }
  std::set<ProcessGroup*> reset;
  for (ShardGroup* group : shard_groups(root)) {
    group->discard_pending();
    group->discard_unsummed();
    group->reshard();
    if (reset.insert(&group->process_group()).second) group->process_group().reset();
  }
}

ShardGroup* shard_group(Module& module) { return wrapped(module).group.get(); }

std::vector<ShardGroup*> shard_groups(Module& root) {
  std::vector<ShardGroup*> groups;
  root.for_each_module([&](Module& m) {
    FullyShardHook* hook = hook_of(m);
    if (hook && hook->group && std::find(groups.begin(), groups.end(), hook->group.get()) == groups.end())
      groups.push_back(hook->group.get());
  });
  return groups;
}

}  // namespace sherd::nn
