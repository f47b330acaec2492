#include "nn/parallel/shard/wrap/fully_shard.h"

#include <set>

#include "nn/optim/agree_on_updates.h"
#include "nn/parallel/shard/wrap/unit_table.h"
#include "nn/parallel/shard/wrap/wrap.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/exec/left_steps.h"

namespace sherd::nn {

UnitHandle fully_shard(const std::vector<Module*>& modules, const DeviceMesh& mesh, const UnitPolicy& policy) {
  check(
      !policy.offload || policy.offload->bytes_in_memory == 0,
      "fully_shard: offload with {} bytes in memory is a budget of all units: call shard_units(), or choose here which "
      "units are offloaded",
      policy.offload ? policy.offload->bytes_in_memory : 0);
  UnitTable table;
  table.add(modules, mesh, policy);
  return table.wrap().front();
}

UnitHandle fully_shard(Module& module, const DeviceMesh& mesh, const UnitPolicy& policy) {
  return fully_shard(std::vector<Module*>{&module}, mesh, policy);
}

UnitHandle fully_shard(Module& module, const UnitPolicy& policy) {
  return fully_shard(module, DeviceMesh::world(), policy);
}

bool is_fully_sharded(const Module& module) { return wrap_of(module) != nullptr; }

UnitHandle unit_of(Module& module) { return UnitHandle(wrapped(module).shared_from_this()); }

namespace {

const Wrap& root_wrap(Module& root, std::string_view call) {
  const Wrap& wrap = wrapped(root);
  wrap.check_is_root(call);
  return wrap;
}

}  // namespace

Units finalize_backward(Module& root) {
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
  return units(root);
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
    each->use.leave();  // of a list of modules that was left between two of them
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
