#pragma once
// fully_shard(): FSDP2's per-module sharding. Apply it bottom-up, block by block and then the root; each call makes one
// communication group of the parameters that no inner call has taken. The model file does not change.
//
//   for (Module* block : model.blocks()) fully_shard(*block, mesh);
//   fully_shard(model, mesh);
//   model.materialize(Seed{42});
//   AdamW opt(model.parameters(), {...});
//
// Between steps parameters are distributed tensors, Shard(0); inside a wrapped forward they are plain full tensors.
// Plain gradients are read as averages over the data axis (local batches); distributed ones by their Partial op.
#include <memory>
#include <optional>
#include <vector>

#include "dtensor/mesh.h"
#include "nn/module.h"

namespace sherd::nn {

class ShardGroup;

/// After forward: free the gathered parameters (true), keep them until backward has used them (false), or reshard to
/// groups of k ranks. k = 1 is false, k = all ranks is true; k in between needs a 2-D mesh and is refused by name.
class ReshardAfterForward {
 public:
  template <class T>
    requires(std::is_same_v<T, bool> || std::is_same_v<T, int>)
  ReshardAfterForward(T value)  // NOLINT: {.reshard_after_forward = false}
      : value_(static_cast<int>(value)), is_bool_(std::is_same_v<T, bool>) {}
  /// The bool it means on `ranks` ranks; Error unless k divides them.
  bool resolve(int ranks) const;

 private:
  int value_;
  bool is_bool_;
};

struct FullyShardOptions {
  /// Default: true, but false for the root, whose parameters backward needs first.
  std::optional<ReshardAfterForward> reshard_after_forward{};
};

/// Shards the parameters of `module` over `mesh`. Errors, on every rank: a container without a forward, a module that
/// is wrapped already, a 0-d parameter. No communication: values come from materialize(), or each rank keeps its rows
/// of what it has (which must be equal on all ranks).
void fully_shard(Module& module, const DeviceMesh& mesh, const FullyShardOptions& options = {});
/// Over all ranks of the job.
void fully_shard(Module& module, const FullyShardOptions& options = {});
/// Several modules as one group: gathered before the first that runs, resharded after the last.
void fully_shard(const std::vector<Module*>& modules, const DeviceMesh& mesh, const FullyShardOptions& options = {});

bool is_fully_sharded(const Module& module);

/// Result of unshard_async(); wait() may be called any number of times.
class UnshardHandle {
 public:
  explicit UnshardHandle(std::shared_ptr<class FullyShardHook> hook) : hook_(std::move(hook)) {}
  void wait() {}  // gathers run in program order: the data is there when unshard_async returns

 private:
  std::shared_ptr<FullyShardHook> hook_;
};

/// Registers full parameters of this module's group only. Collective.
void unshard(Module& module);
UnshardHandle unshard_async(Module& module);
/// Frees them and registers the shards, of this module's group only. Local. What was written to the full tensors is
/// lost.
void reshard(Module& module);
/// Divides summed gradients of this module's group by `factor` instead of the number of ranks.
void set_gradient_divide_factor(Module& module, double factor);
void set_reshard_after_forward(Module& module, bool reshard, bool recurse = true);
/// The module's group; null if it owns no parameters of its own. Error unless wrapped.
ShardGroup* shard_group(Module& module);
/// Groups of the subtree, in module order.
std::vector<ShardGroup*> shard_groups(Module& root);

}  // namespace sherd::nn
