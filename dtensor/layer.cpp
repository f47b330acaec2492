#include "dtensor/layer.h"

#include "dtensor/redistribute.h"
#include "runtime/op/dispatch.h"

namespace sherd {

namespace {

Tensors distributed_layer(OpCall& call) {
  if (call.op.traits.placement) return run_placement_row(call);
  for (const Tensor& out : call.into)
    check(!out.is_distributed(), "{} into the distributed tensor {} has no sharding rule: write to its local() part",
          call.op.name, describe(out));
  check(
      call.op.traits.local_extents,
      "{} on a distributed tensor has no sharding rule: gather it with full_tensor(), work on its local() part, or let "
      "fully_shard gather the parameter around the module's forward",
      call.op.name);
  SmallVec<Tensor, 4> local;
  for (const Tensor& t : call.in) local.push_back(t.defined() ? t.local() : t);
  OpCall below{call.op, {local.data(), local.size()}, call.attrs, call.into, call.accumulate};
  return call_below_dist(below);
}

}  // namespace

void install_distributed_layer() { install_dist_layer(distributed_layer); }

}  // namespace sherd
