// Wiring: which hook does what when. The data movement is ShardGroup's.
//
//   before forward   first module to run becomes the root of the tree; gather, register full tensors
//   after forward    reshard as configured; hook the outputs' gradients
//   output gradient  (the module's backward begins) gather again if it was resharded
//   last gradient    of the group: reshard, reduce
//   end of backward  whatever did not complete: reduce what is there, reshard everything
#include "nn/parallel/fully_shard.h"

#include <algorithm>
#include <set>

#include "nn/module_list.h"
#include "nn/parallel/shard_group.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"

namespace sherd::nn {

bool ReshardAfterForward::resolve(int ranks) const {
  if (is_bool_) return value_ != 0;
  check(value_ >= 1 && value_ <= ranks && ranks % value_ == 0,
        "reshard_after_forward = {}: it must divide the {} ranks of the mesh and lie in 1..{}", value_, ranks, ranks);
  check(value_ == 1 || value_ == ranks,
        "reshard_after_forward = {} keeps shards of {} ranks after forward, which needs 2-D meshes: a later version "
        "has them; use true or false",
        value_, value_);
  return value_ == ranks && ranks > 1;
}

// All wrapped modules below one root share this.
struct ShardTree {
  std::vector<FullyShardHook*> hooks;  // in module order
  bool end_queued = false;             // the end-of-backward callback of the running pass
};

class FullyShardHook final : public ModuleHook, public std::enable_shared_from_this<FullyShardHook> {
 public:
  FullyShardHook(std::vector<Module*> modules, const DeviceMesh& mesh, const FullyShardOptions& options)
      : modules_(std::move(modules)) {
    if (options.reshard_after_forward) reshard_after_forward_ = options.reshard_after_forward->resolve(mesh.size());
  }

  void before_forward(Module& module) override;
  void after_forward(Module& module, const std::function<void(const TensorVisitor&)>& visit_outputs) override;
  void abandon_forward(Module&) noexcept override {
    entered_ = 0;
    if (group) group->reshard();
  }
  void before_materialize(Module&) override {
    if (group) group->materialize();
  }

  bool reshards() const { return reshard_after_forward_.value_or(!is_root_); }
  void set_reshards(bool value) { reshard_after_forward_ = value; }
  Module& module() const { return *modules_[0]; }

  std::unique_ptr<ShardGroup> group;

 private:
  void become_root(Module& module);
  void before_backward();
  static void end_backward(const std::shared_ptr<ShardTree>& tree);

  std::vector<Module*> modules_;
  std::shared_ptr<ShardTree> tree_;
  std::optional<bool> reshard_after_forward_;
  std::size_t entered_ = 0;  // modules of the list that have run in this forward
  bool is_root_ = false;
};

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

// Parameters used below `module` that no wrapped module has taken, each once.
void collect_free(Module& module, std::set<Parameter*>& seen, std::vector<Parameter*>& out) {
  for (const Module::NamedParameter& p : module.own_parameters())
    if (!p.parameter->value().is_distributed() && seen.insert(p.parameter).second) out.push_back(p.parameter);
  for (const auto& child : module.children())
    if (!hook_of(*child)) collect_free(*child, seen, out);
}

// A tied parameter must be gathered wherever it is used: every user below the same wrapped module as its group.
void check_tied(Module& module, ShardGroup* group) {
  if (FullyShardHook* hook = hook_of(module)) group = hook->group.get();
  for (const Module::NamedParameter& p : module.own_parameters()) {
    const auto* members = group ? &group->parameters() : nullptr;
    const bool here = members && std::find(members->begin(), members->end(), p.parameter) != members->end();
    check(here || !p.parameter->value().is_distributed(),
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
  if (is_root_ && !in_backward()) {
    tree_->end_queued = false;
    for (FullyShardHook* hook : tree_->hooks)
      if (hook->group) hook->group->discard_pending();  // left by a backward that failed
  }
  if (entered_++ == 0 && group) group->unshard();
}

void FullyShardHook::after_forward(Module&, const std::function<void(const TensorVisitor&)>& visit_outputs) {
  const bool recording = RankContext::current().grad_enabled;
  if (entered_ == modules_.size()) {
    entered_ = 0;
    // Without a backward to come nothing will reshard later.
    if (group && (reshards() || !recording)) group->reshard();
  }
  if (!recording) return;
  const std::weak_ptr<FullyShardHook> weak = weak_from_this();
  visit_outputs([&](const Tensor& t) {
    if (!t.requires_grad() || t.grad_node()->kind != Node::Kind::op) return;
    register_grad_hook(t,
                       [weak](const Tensor&) {
                         if (const auto self = weak.lock()) self->before_backward();
                         return Tensor();
                       },
                       {.capturable = true});  // gathers are rows: replay issues them without the hook
  });
}

void FullyShardHook::before_backward() {
  if (!tree_->end_queued) {
    tree_->end_queued = true;
    at_end_of_backward([tree = tree_] { end_backward(tree); });
  }
  if (group) group->unshard();
}

void FullyShardHook::end_backward(const std::shared_ptr<ShardTree>& tree) {
  tree->end_queued = false;
  for (auto hook = tree->hooks.rbegin(); hook != tree->hooks.rend(); ++hook)
    if ((*hook)->group) (*hook)->group->finish_backward();
}

void fully_shard(const std::vector<Module*>& modules, const DeviceMesh& mesh, const FullyShardOptions& options) {
  check(!modules.empty(), "fully_shard: the list of modules is empty");
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
  if (!parameters.empty()) hook->group = std::make_unique<ShardGroup>(name, mesh, std::move(parameters));
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

void reshard(Module& module) {
  if (ShardGroup* group = wrapped(module).group.get()) group->reshard();
}

void set_gradient_divide_factor(Module& module, double factor) {
  check(factor > 0, "the gradient divide factor must be above 0, got {}", factor);
  if (ShardGroup* group = wrapped(module).group.get()) group->set_divide_factor(factor);
}

void set_reshard_after_forward(Module& module, bool reshard, bool recurse) {
  wrapped(module).set_reshards(reshard);
  if (!recurse) return;
  module.for_each_module([&](Module& m) {
    if (FullyShardHook* hook = hook_of(m)) hook->set_reshards(reshard);
  });
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
