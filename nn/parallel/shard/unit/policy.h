#pragma once
// What a call of fully_shard() is told, as one value, and the strategies that people know by name as presets of it.
//
//                         parameters   gradients, optimizer
//   no_shard, replicate   whole        whole       gradients are averaged: data parallelism
//   shard_optimizer       whole        1/d         ZeRO-1's state: gathered once per update, reduced in each backward
//   shard_grad_op         1/d          1/d         ZeRO-2: gathered once per forward and backward
//   full_shard            1/d          1/d         ZeRO-3: gathered for forward, again for backward
//   hybrid_shard, hybrid_shard_grad_op: the last two over the axis that shards, on a mesh with replicas of the shards
//   hybrid_shard_state: the same parameters as in hybrid_shard; each replica has 1/o of their gradients and state
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "nn/parallel/data_mesh.h"
#include "nn/parallel/mixed_precision.h"
#include "runtime/op/copy/offload.h"

namespace sherd::nn {

/// After forward: free the gathered parameters (true), keep them until backward has used them (false), or reshard to
/// k consecutive ranks of the axis that shards: each keeps 1/k of what was gathered, and backward gathers among them.
/// On one rank they stay for backward, whatever is asked, unless shards are offloaded: what would be gathered again is a
/// cast of what is there. A forward that no backward follows frees them under GradMode off.
/// k = 1 means false, k = all ranks that parameters are sharded over means true.
class ReshardAfterForward {
 public:
  template <class T>
    requires(std::is_same_v<T, bool> || std::is_same_v<T, int>)
  ReshardAfterForward(T value)  // NOLINT: {.reshard_after_forward = false}
      : value_(static_cast<int>(value)), is_bool_(std::is_same_v<T, bool>) {}
  /// From "true", "false" or "2"; Error for other text.
  explicit ReshardAfterForward(std::string_view text);
  std::string text() const;
  /// The number k that was told; nothing for true and false.
  std::optional<int> ranks() const { return is_bool_ ? std::nullopt : std::optional(value_); }
  /// Whether the gathered parameters are freed, where there are `ranks` shards; Error unless k divides them.
  bool resolve(int ranks) const;
  /// Over how many ranks parameters are sharded then, if that is neither none nor all of `ranks`; else 0. Error as
  /// above.
  int slices(int ranks) const;
  /// Whether it means false on any number of ranks.
  bool is_off() const { return value_ == (is_bool_ ? 0 : 1); }
  friend bool operator==(const ReshardAfterForward&, const ReshardAfterForward&) = default;

 private:
  int value_;
  bool is_bool_;
};

/// Shards that lie outside of memory between their uses: in a file where they are of the host, else in memory of the
/// host. A gather fetches them first and drops them after; the optimizer brings them, their gradients and its state in
/// pieces, to the same bits. Parameter::sharded_value() is their home: a tensor of the host, in no account of memory.
struct ShardOffload {
  /// Folder of the file; empty for a device.
  std::string folder{};
  /// Reduced gradients of passes that are complete lie there too; what is not summed over replicas, and full gradients
  /// that wait for a reduction, stay in memory.
  bool gradients = false;
  /// Most bytes in memory at a time of what is used in pieces.
  std::int64_t bytes_in_flight = kOffloadBytesInFlight;
  /// Most bytes of shards, and of their gradients if these are offloaded too, that stay in memory: those of the
  /// smallest units of shard_units() (kept_in_memory()), by the bytes of the rank that has most. Error in a call of
  /// fully_shard(), which knows one unit.
  std::int64_t bytes_in_memory = 0;
};

/// Over one axis `shards` and `all` say the same, and either is taken.
struct UnitPolicy {
  /// Between updates: `none` keeps what was gathered until the optimizer has written the shards.
  ShardedOver parameters = ShardedOver::shards;
  /// Sharding of the values that the optimizer updates (masters), of grad() and of the optimizer's state.
  ShardedOver optimizer = ShardedOver::shards;
  /// Where gradients of passes with set_requires_gradient_sync(false) add up: `none` keeps full gradients and
  /// communicates nothing; `shards` reduces every pass over the shard axis all the same, for 1/s of the memory; `all`
  /// over replicas too, for that of grad(). Small replicated parameters (replicate_below_bytes) keep full ones anyway.
  ShardedOver gradients = ShardedOver::none;
  /// Full gradients that add up do so as a balanced tree (sum_order.h), in the type of the reduction, and averages are
  /// scaled once all is summed: M passes of one rank, M a power of two, have the bits of one pass on M ranks, where
  /// set_gradient_divide_factor() is told M times the ranks. A sum waits for each binary digit of the passes so far.
  /// Error where shards add up, for a narrower reduce_dtype with replicas of shards, gathers and reductions of the
  /// program's own, set_requires_all_reduce(false) and gradients that are sums over the data ranks.
  bool sums_in_tree = false;
  /// Passes of a step that leave their full gradients to a later one (set_requires_gradient_sync(false)), where that is
  /// known: the places for their sums are there from the beginning, as a step that was captured elsewhere wants them.
  /// Else the first such passes make them.
  int passes_that_wait = 0;
  /// An Error on a mesh of one axis: the strategy is about replicas.
  bool needs_replicas = false;
  /// Default: true, but false for the root, whose parameters backward needs first. Where parameters are sharded over
  /// none, gathered ones stay whatever it says.
  std::optional<ReshardAfterForward> reshard_after_forward{};
  /// Dtypes to compute and reduce in; unset: the parameters' own.
  MixedPrecision mp_policy{};
  /// Shards outside of memory. What is replicated (replicate_below_bytes) stays in it. Error where replicas divide the
  /// shards (hybrid_shard_state): a gather among them writes the shards.
  std::optional<ShardOffload> offload{};
  /// While this module computes, gather the unit that ran after it in the last forward (in backward: the next one in
  /// reverse order). Off: every unit is gathered when it is needed.
  bool prefetch = true;
  /// Ranks may use different parameters: those that a rank's backward does not reach count as zero in the average, and
  /// every pass reduces this unit. Off: ranks that use different ones raise CommError with their names. Units are to be
  /// reached by the passes of all ranks alike, by some parameter: they are gathered and reduced in that order. Zeros go
  /// into an average: a parameter whose gradient is Partial(sum) over the data axes goes into a sum, and is to be used
  /// by all ranks alike; else they raise CommError.
  bool reduce_unused = false;
  /// Parameters that take fewer bytes (of a rank's full tensor, in the parameter's dtype) stay replicated where the
  /// mesh shards: they are never gathered, their gradients and state are whole on every rank, and gradients are
  /// averaged over all ranks in one launch for those of a unit.
  std::int64_t replicate_below_bytes = 0;
  /// Which axes of the call's mesh have data of their own, by name, where it has others too; unset: all have. Is as
  /// the call with mesh_of_data(), joined by join_for(). None to shard over is no_shard, whatever is said above.
  std::optional<DataAxes> data_axes{};
  /// The mesh of a parameter, where it is not that of the call: those of each mesh are gathered and reduced together.
  /// The same on all ranks.
  std::function<std::optional<DeviceMesh>(const Parameter&)> mesh_of{};
  /// Which part of a parameter each rank has (shard_plan.h); unset: an equal share of dim 0. Shards of an inner dim
  /// cost no copy, but their communication is a run of bytes for each index of the dims before it.
  ShardPlanner placement{};
  /// Left as they are: no unit takes them, their gradients stay on this rank, materialize() gives them values where
  /// they have none. The caller keeps them equal on all ranks. Checkpoints save what is plain from rank 0. May name
  /// parameters that are not of the module; Error if a unit has one of them already.
  std::vector<const Parameter*> ignored{};
};

/// The preset of that name. Error naming the nearest for an unknown one.
UnitPolicy strategy(std::string_view name);
/// Names of all presets.
std::span<const std::string> strategy_names();
/// The preset that shards parameters and optimizer state like `policy` and reshards like it; "" if none
/// does. Of a mesh with `replicas` the names are those of hybrid strategies.
std::string_view strategy_name(const UnitPolicy& policy, bool has_replicas);

/// The policy on the mesh of its data_axes alone, which has none to name any more. Error if it shards over none of them
/// and needs replicas of shards.
UnitPolicy on_data_axes(UnitPolicy policy);

/// The policy on a mesh of one axis, over which `all` is `shards`; else as it is.
UnitPolicy on_axes_of(UnitPolicy policy, const DeviceMesh& mesh);

/// Makes the group of all ranks of `data`, a mesh_of_data(), if `policy` needs one and there is none: for what is whole
/// on all of them (`none`, replicate_below_bytes), or sharded over all of them. Then it is collective over the root
/// mesh (DeviceMesh::flatten).
void join_for(const UnitPolicy& policy, const DeviceMesh& data);

/// Throws Error, the same on every rank, for dtypes as check_policy(MixedPrecision); unless the optimizer is sharded
/// over as much as parameters and gradients, or more; and for a strategy of replicas on a mesh of one axis.
void check_policy(const UnitPolicy& policy, const DeviceMesh& mesh);
/// How a unit of that policy lies on `mesh`. Errors of DataMesh.
DataMesh data_mesh(const DeviceMesh& mesh, const UnitPolicy& policy);

}  // namespace sherd::nn
