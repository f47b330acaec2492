#pragma once
// fully_shard(): FSDP2's per-module sharding. Apply it bottom-up, block by block and then the root; each call makes one
// unit of the parameters that no inner call has taken: they are gathered, released and reduced together. The model file
// does not change.
//
//   parallelize(model, mesh["tp"], plan);                                  // or not: tensor_parallel.h
//   for (Module* block : model.blocks()) fully_shard(*block, mesh["dp"]);  // or with a strategy: policy.h
//   UnitHandle root = fully_shard(model, mesh["dp"]);                      // settings of a unit: root.set_...()
//   model.materialize(Seed{42});
//   AdamW opt(model.parameters(), {...});
//
// Between steps parameters are distributed tensors, sharded along dim 0 of each rank's local tensor, or as
// UnitPolicy::placement says; inside a wrapped forward they are unsharded: plain tensors, or distributed over the axis
// of tensor parallelism. Plain gradients, and those of tensor-parallel parameters, count as averages over the data axes
// (local batches); gradients on the data axes themselves are reduced by their Partial op.
#include <memory>
#include <string>
#include <vector>

#include "dtensor/mesh.h"
#include "nn/module.h"
#include "nn/parallel/shard/gather/unit_gather.h"
#include "nn/parallel/shard/unit/policy.h"
#include "runtime/op/unit/unit_layout.h"

namespace sherd::nn {

class Wrap;
class UnshardHandle;

/// The unit that a call of fully_shard() has made. A value: copies speak of the same unit. It does not keep the unit
/// alive, which goes with its modules; then every call but is_alive() is an Error.
class UnitHandle {
 public:
  explicit UnitHandle(const std::shared_ptr<Wrap>& wrap);
  friend bool operator==(const UnitHandle& a, const UnitHandle& b) { return a.wrap_.lock() == b.wrap_.lock(); }

  bool is_alive() const { return !wrap_.expired(); }
  /// Path of its module, "(model)" for a root; those of several joined by "+".
  const std::string& name() const;
  /// Whether any parameters are its own. The calls from here to late_gathers() are an Error if none are.
  bool has_parameters() const;
  std::vector<Parameter*> parameters() const;
  /// Parameters that are gathered and reduced together.
  struct Part {
    UnitLayoutPtr layout;
    std::vector<Parameter*> parameters;
    int slices = 0;         ///< ranks that it reshards to after forward; 0: as all or none of them
    bool reshards = false;  ///< after forward: not what a strategy keeps until the optimizer has written the shards
  };
  /// The first has all its parameters, but those on another mesh and those that stay replicated.
  std::vector<Part> parts() const;
  /// The ways that gradients of a part take if a pass ends as things stand (reduce/route.h), each with how many
  /// parameters: "2 parameters: scatter arrival>shard, keep shard>grad".
  std::vector<std::string> routes(std::size_t part) const;
  /// Layout of the first part.
  const UnitLayout& layout() const;
  /// Bytes of all its gathered parameters on this rank.
  std::int64_t gathered_bytes() const;
  /// Whether the gathered tensors are registered; whether they are there or on their way, as prefetched ones are
  /// before they are registered. On one shard without casts the shards are the full tensors: never gathered.
  bool is_unsharded() const;
  bool is_gathered() const;
  /// Whether the first part reshards after forward.
  bool reshards_after_forward() const;
  /// When it ran in the last forward of its root, counted from 0 with the calls of all units, and of wrapped modules
  /// that use a parameter of one; each call. Empty before the first.
  std::vector<int> order_in_forward() const;
  /// Gathers that started only when backward asked for a saved tensor, because no module hook had run before.
  int late_gathers() const;

  /// The calls of the same name below, for this unit alone.
  void unshard() const;
  UnshardHandle unshard_async() const;
  void reshard() const;
  void set_gradient_divide_factor(double factor) const;
  void set_requires_all_reduce(bool on) const;
  void set_requires_gradient_sync(bool on) const;
  void set_reshard_after_forward(ReshardAfterForward reshard) const;
  void set_reduce_unused(bool on) const;
  void set_reshard_after_backward(bool reshard) const;
  void set_keep_unsharded_storage(bool keep) const;
  void set_max_reductions(int count) const;
  /// Instead of the unit that the recorded order suggests, gather these while its modules compute forward (backward).
  /// An empty list restores the default; units that are gone by then are left out.
  void set_forward_prefetch(const std::vector<UnitHandle>& units) const;
  void set_backward_prefetch(const std::vector<UnitHandle>& units) const;
  /// Communication of the user's own (unit_gather.h); null: the usual one. A gather, or a transform in its place, is
  /// set before the unit is first gathered, the others between steps: a captured step with another one is not replayed.
  /// Parameters that stay replicated are reduced as ever, and are one more reduction for the hook. Local; on all ranks
  /// alike. Error if the unit's parameters lie on several meshes; of a gather, if it reshards to some of its ranks
  /// after forward; for a transform as of TransformedGather.
  void set_custom_gather(std::shared_ptr<UnitGather> gather) const;
  void set_gather_transform(GatherTransform transform) const;
  void set_custom_reduce(UnitReduce reduce) const;
  void set_all_reduce_hook(AllReduceHook hook) const;

 private:
  Wrap& wrap() const;
  static std::vector<std::weak_ptr<Wrap>> wraps_of(const std::vector<UnitHandle>& units);
  std::weak_ptr<Wrap> wrap_;
  std::string name_;  // for the error when it is gone
};

/// Shards the parameters of `module` over `mesh`: of two axes the first replicates (HSDP), gradients are then averaged
/// over both. Of a mesh of more axes UnitPolicy::data_axes names these. Parameters distributed over other axes of the
/// same root mesh are sharded further, see data_mesh.h.
/// Errors, on every rank: a container without a forward, a module that is wrapped already, named twice or below one
/// that has taken its parameters, a 0-d parameter, a mesh of three axes, those of check_policy() (policy.h), an ignored
/// parameter that a unit has. No communication, but where data_axes or a number of ranks to reshard to need groups that
/// are new: values are made by materialize(), or each rank keeps its rows of existing values (which must be equal on
/// all ranks). Calls that ranks do not make alike are an Error on all of them before units communicate, in a forward
/// for example, which names the first unit and setting that differ (unit_agreement.h).
UnitHandle fully_shard(Module& module, const DeviceMesh& mesh, const UnitPolicy& options = {});
/// Over all ranks of the job.
UnitHandle fully_shard(Module& module, const UnitPolicy& options = {});
/// Several modules as one unit: gathered before the first that runs, resharded after the last.
UnitHandle fully_shard(const std::vector<Module*>& modules, const DeviceMesh& mesh, const UnitPolicy& options = {});

bool is_fully_sharded(const Module& module);
/// The module's unit. Error unless wrapped.
UnitHandle unit_of(Module& module);
/// Units of the subtree that have parameters of their own, in module order.
std::vector<UnitHandle> units(Module& root);

/// Result of unshard_async(). As a UnitHandle it does not keep the unit alive.
class UnshardHandle {
 public:
  explicit UnshardHandle(const std::shared_ptr<Wrap>& wrap) : wrap_(wrap) {}
  /// Blocks until the parameters are gathered; throws the gather's error. May be called any number of times, or never:
  /// reading a parameter waits too. No-op once the modules were destroyed: that has waited.
  void wait() const;

 private:
  std::weak_ptr<Wrap> wrap_;
};

/// Registers the unsharded parameters of this module's unit only. Collective; returns before the gather is done, the
/// first read of a parameter waits for it.
void unshard(Module& module);
/// The same, with a handle to wait without reading.
UnshardHandle unshard_async(Module& module);
/// Registers the shards of this module's unit only and frees the unsharded parameters. Local. Writes to the unsharded
/// parameters are lost.
void reshard(Module& module);
/// Divides summed gradients of this module's unit by `factor` instead of the number of ranks, replicas included.
/// Error unless it is above 0 and f32 holds it and its reciprocal, by which sums are multiplied.
void set_gradient_divide_factor(Module& module, double factor);
/// HSDP: off, backward passes reduce over the shard axis only and accumulate apart from grad(); the next pass with it
/// on all-reduces the accumulated sum over replicas. For all but the last micro-batch of a step: clearing a gradient
/// drops what waits for it, and an optimizer's step() while something waits is an Error that names the parameter.
void set_requires_all_reduce(Module& module, bool on, bool recurse = true);
/// Off, for all but the last micro-batch of a step: backward passes reduce nothing. Their full gradients add up in the
/// type of the reduction, apart from grad(), in memory accounted as gradients, until a pass with it on reduces the sum,
/// over replicas too unless set_requires_all_reduce() is off; so m micro-batches cost the reductions of one. A unit
/// that such a pass does not use is reduced at its end. A sum over the axes of tensor parallelism is not put off.
/// Clearing a gradient drops what waits for it, as reset_after_error() does; an optimizer's step() while something
/// waits is an Error that names the parameter. A captured step may leave gradients to another.
/// UnitPolicy::gradients makes it accumulate shards instead.
void set_requires_gradient_sync(Module& module, bool on, bool recurse = true);
/// Means what UnitPolicy::reshard_after_forward does, a number of ranks too: then the groups of ranks are made at the
/// first call with it, collectively over the axis that shards. Between steps. Error as there.
void set_reshard_after_forward(Module& module, ReshardAfterForward reshard, bool recurse = true);
/// As UnitPolicy::reduce_unused. Then grad() of a trainable parameter is there after every backward pass, zero
/// where no rank has used it. On all ranks alike.
void set_reduce_unused(Module& module, bool on, bool recurse = true);
/// Off: parameters stay gathered after backward, until the optimizer has written their shards, or reshard(). With
/// reshard_after_forward off too, a step of m micro-batches gathers each unit once.
void set_reshard_after_backward(Module& module, bool reshard, bool recurse = true);
/// On: resharding keeps the memory of gathered parameters, so that they come back at the same address, for who has
/// noted it (a graph of a device). It stays accounted as unsharded; what is kept is not read as values: each gather
/// fills it again. Of other levels (slices) nothing is kept. Off: what is kept is freed, now or at the next reshard.
/// Between steps; a step that was captured holds either way: a device records it again where it had used what is freed.
/// Local.
void set_keep_unsharded_storage(Module& module, bool keep, bool recurse = true);
/// Off: backward passes leave the recorded order of calls to the next one, which may be that of an earlier forward.
/// Error on a module that is not the root of its tree, as of finalize_backward().
void set_is_last_backward(Module& root, bool is_last);

/// Result of finalize_backward().
class GradientReduction {
 public:
  explicit GradientReduction(std::vector<UnitHandle> units) : units_(std::move(units)) {}
  /// Blocks until the gradients are reduced; throws the reduction's error. May be called any number of times, or never:
  /// reading a gradient waits too. Units that are gone by then are left out.
  void wait() const;

 private:
  std::vector<UnitHandle> units_;
};

/// Ends several backward passes by hand, those with set_requires_gradient_sync() off and set_is_last_backward() off: as
/// the end of a last pass does, it reshards, forgets the recorded order, reduces what waits in units whose gradients
/// are to be synchronised, and runs their gradient hooks. Collective; returns before the reductions are done. Nothing
/// to do is no error. Error within a backward pass.
GradientReduction finalize_backward(Module& root);
/// While `module` computes its forward (backward), gather the units of these modules, instead of the one that the
/// recorded order suggests. Takes effect within one forward or backward; an empty list restores the default.
/// Error if a module is not wrapped. Two and more need memory for as many gathered units.
void set_modules_to_forward_prefetch(Module& module, const std::vector<Module*>& modules);
void set_modules_to_backward_prefetch(Module& module, const std::vector<Module*>& modules);
/// How many full gradient buffers may be in reduction at a time, for all units of the subtree; initially 1. A further
/// one waits for the oldest. Error if `count` < 1.
void set_reduce_scatter_max_input_buffers(Module& root, int count);
/// After an exception in a step: waits for work in flight, drops pending gradients, reshards, and resets the process
/// groups. Then ranks compare their optimizers of these parameters (agree_on_updates.h): if a step was left between the
/// first update of the first rank and the last of the last one, steps and saves are refused on all until a checkpoint
/// is loaded. What grad() holds stays: clear it. Captured steps start over: a call runs eagerly, the next one records.
/// Random rows of the rank go back to the last set_step() or update, so that the step that is made again is the same.
/// Collective. Error on a module that is not the root of its tree.
void reset_after_error(Module& root);

}  // namespace sherd::nn
