#pragma once
// fully_shard(): FSDP2's per-module sharding. Apply it bottom-up, block by block and then the root; each call makes one
// unit of the parameters that no inner call has taken: they are gathered, released and reduced together. The model file
// does not change.
//
//   parallelize(model, mesh["tp"], plan);                                  // or not: tensor_parallel.h
//   for (Module* block : model.blocks()) fully_shard(*block, mesh["dp"]);  // or with a strategy: policy.h
//   fully_shard(model, mesh["dp"]);                                        // settings: unit_handle.h
//   model.materialize(Seed{42});
//   AdamW opt(model.parameters(), {...});
//
//   parameters between steps   distributed, sharded along dim 0 of each rank's local tensor, or as
//                              UnitPolicy::placement
//   in a wrapped forward       unsharded: plain, or distributed over the axis of tensor parallelism
//   gradients                  plain ones, and those of tensor-parallel parameters, count as averages over the data
//                              axes (local batches); those on the data axes are reduced by their Partial op
#include <utility>
#include <vector>

#include "dtensor/mesh.h"
#include "nn/module.h"
#include "nn/parallel/shard/unit/policy.h"
#include "nn/parallel/shard/wrap/unit_handle.h"

namespace sherd::nn {

/// Shards the parameters of `module` over `mesh`.
///
///   mesh of one axis    it shards
///   of two              the first replicates (HSDP): gradients are averaged over both
///   of more             UnitPolicy::data_axes names these
///   parameters          distributed over other axes of the same root mesh: sharded further (data_mesh.h)
///   values              made by materialize(); existing ones must be equal on all ranks, and each keeps its rows
///   communication       none, but where data_axes, or a number of ranks to reshard to, need groups that are new
///
/// Errors, on every rank, with nothing changed:
/// - a container without a forward, a module that is wrapped already, named twice, or below one that has its parameters
/// - a 0-d parameter, an ignored parameter that a unit has, a mesh of three axes, those of check_policy() (policy.h)
/// - later, before units communicate: calls that ranks have not made alike, with the first unit and setting that differ
///   (unit_agreement.h)
UnitHandle fully_shard(Module& module, const DeviceMesh& mesh, const UnitPolicy& policy = {});
/// Over all ranks of the job.
UnitHandle fully_shard(Module& module, const UnitPolicy& policy = {});
/// Several modules as one unit: gathered before the first that runs, resharded after the last.
UnitHandle fully_shard(const std::vector<Module*>& modules, const DeviceMesh& mesh, const UnitPolicy& policy = {});

bool is_fully_sharded(const Module& module);
/// The module's unit. Error unless wrapped.
UnitHandle unit_of(Module& module);
/// Units of the subtree that have parameters of their own, in module order.
inline Units units(Module& root) { return Units(root); }
/// Ends several backward passes by hand, those with set_requires_gradient_sync() off and set_is_last_backward() off: as
/// the end of a last pass does, it reshards, forgets the recorded order, reduces what waits in units whose gradients
/// are to be synchronised, and runs their gradient hooks. Returns the units of the root, before the reductions are
/// done. Nothing to do is no error. Collective. Error within a backward pass, and on a module that is not the root of
/// its tree.
Units finalize_backward(Module& root);
/// After an exception in a step, makes the model ready for the next:
/// - waits for work in flight, drops pending gradients, reshards, and resets the process groups
/// - ranks compare their optimizers of these parameters (agree_on_updates.h): if a step was left between the first
///   update of the first rank and the last of the last one, steps and saves are refused on all until a checkpoint is
///   loaded
/// - grad() holds what it held: clear it
/// - captured steps start over: a call runs eagerly, the next one records
/// - random rows of the rank go back to the last set_step() or update, so that the step that is made again is the same
/// Collective. Error on a module that is not the root of its tree.
void reset_after_error(Module& root);

}  // namespace sherd::nn
