#include "nn/parallel/shard/wrap/fully_shard.h"

#include <set>

#include "nn/optim/agree_on_updates.h"
#include "nn/parallel/shard/wrap/unit_plan.h"
#include "nn/parallel/shard/wrap/wrap.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/exec/left_steps.h"

namespace sherd::nn {

UnitHandle fully_shard(const std::vector<Module*>& modules, const DeviceMesh& mesh, const UnitPolicy& options) {
  check(
      !options.offload || options.offload->bytes_in_memory == 0,
      "fully_shard: offload with {} bytes in memory is a budget of all units: call shard_units(), or choose here which "
      "units are offloaded",
      options.offload ? options.offload->bytes_in_memory : 0);
  UnitPlans plans;
  plans.add(modules, mesh, options);
  return plans.wrap().front();
}

UnitHandle fully_shard(Module& module, const DeviceMesh& mesh, const UnitPolicy& options) {
  return fully_shard(std::vector<Module*>{&module}, mesh, options);
}

UnitHandle fully_shard(Module& module, const UnitPolicy& options) {
  return fully_shard(module, DeviceMesh::world(), options);
}

bool is_fully_sharded(const Module& module) { return wrap_of(module) != nullptr; }

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
  for (Wrap* wrap : wraps_below(root))
    if (!wrap->units.empty()) handles.emplace_back(wrap->shared_from_this());
  return handles;
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

void set_keep_unsharded_storage(Module& module, bool keep, bool recurse) {
  unit_of(module).set_keep_unsharded_storage(keep);
  if (!recurse) return;
  for (const UnitHandle& unit : units(module)) unit.set_keep_unsharded_storage(keep);
}

void set_reshard_after_forward(Module& module, ReshardAfterForward reshard, bool recurse) {
  unit_of(module).set_reshard_after_forward(reshard);
  if (!recurse) return;
  for (Wrap* wrap : wraps_below(module)) wrap->set_reshard_after_forward(reshard);
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

Wrap& root_wrap(Module& root, std::string_view call) {
  Wrap& wrap = wrapped(root);
  check(wrap.is_root() || !wrap.tree(),
        "{}: module \"{}\" is not the root of its fully_shard tree; name the module whose forward is called", call,
        root.label());
  return wrap;
}

}  // namespace

void set_is_last_backward(Module& root, bool is_last) { root_wrap(root, "set_is_last_backward").set_is_last(is_last); }

GradientReduction finalize_backward(Module& root) {
  check(!in_backward(), "finalize_backward: a backward pass is running; call it after the last one");
  const Wrap& wrap = root_wrap(root, "finalize_backward");
  const GradMode off(false);
  const PhaseScope phase(StepPhase::backward);
  if (wrap.tree()) {
    try {
      wrap.tree()->end_backward(true);
    } catch (...) {  // as one that leaves a backward pass: peers wait in the reductions
      wrap.tree()->abandon(current_exception_text());
      throw;
    }
  }
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
  const Wrap& wrap = root_wrap(root, "reset_after_error");
  RankContext::current().drain_queues();
  if (wrap.tree()) {
    wrap.tree()->schedule.forget();
    wrap.tree()->compare_again();
  }
  std::set<const ProcessGroup*> reset;
  for (Wrap* each : wraps_below(root)) {
    each->compare_again();
    each->leave_round();  // of a list of modules that was left between two of them
    for (const auto& unit : each->units) {
      unit->discard_pending();
      unit->discard_earlier();
      unit->buffers.drop();
      if (reset.insert(&unit->data.root_group()).second) unit->data.root_group().reset();
    }
  }
  count_left_step();
  agree_on_updates(root.parameters(), wrap.root_group());
}

}  // namespace sherd::nn
