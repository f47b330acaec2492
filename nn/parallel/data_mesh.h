#pragma once
// How fully_shard lays out a parameter. The last axis of its mesh shards a dim of the parameter's local tensor, dim 0
// unless its plan says otherwise (shard_plan.h); an axis before it replicates the shards (HSDP), or divides them once
// more, along dim 0: then each replica owns a part of the shard, whose values it updates. A strategy may shard over no
// axis, or over all of them. The parameter may be distributed by tensor parallelism already:
//
//   mesh(dp=2)                 f32[8,4]           f32[8,4]{0: dp}            gathered: plain
//            sharded over none                    f32[8,4]{}                 plain
//   mesh(replicate=2,dp=2)     f32[8,4]           f32[8,4]{0: dp}            gathered: plain
//            sharded over all                     f32[8,4]{0: replicate,dp}  gathered: plain
//            over shards, owned over all          f32[8,4]{0: dp,replicate}  its shard: f32[8,4]{0: dp}
//   mesh(dp=2,tp=2)["dp"]      f32[8,4]{0: tp}    f32[8,4]{0: tp,dp}         gathered: f32[8,4]{0: tp}
//                              f32[8,4]{1: tp}    f32[8,4]{0: dp; 1: tp}     gathered: f32[8,4]{1: tp}
//                              f32[8]{}           f32[8]{0: dp}              gathered: f32[8]{}
//
// When sharded, the last three are tensors on the root mesh(dp=2,tp=2).
#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/spec.h"
#include "nn/module.h"
#include "nn/parallel/shard_plan.h"

namespace sherd::nn {

/// Which of the axes with data of their own shard something: none of them, the last one, or every one, replicas too.
enum class ShardedOver : std::uint8_t { none, shards, all };

/// The axes of a mesh that have data of their own, by name; those of a list count as one axis. None to shard over:
/// every rank has whole parameters.
struct DataAxes {
  std::vector<std::string> shard{}, replicate{};
};

/// The mesh of these axes of `mesh`, for DataMesh: one axis, or replicas and shards. Lists of several are flattened
/// under their names joined by "_": collectively over the root mesh at the first call with them (DeviceMesh::flatten).
/// Where both lists are given there may be no group of all their ranks; some policies need one (join_for, policy.h).
/// Error if both lists are empty, an axis is unknown or named twice, those of a list are not in the mesh's order, or
/// one that replicates does not come before all that shard.
DeviceMesh mesh_of_data(const DeviceMesh& mesh, const DataAxes& axes);

/// Layouts of one parameter.
struct ShardPlacement {
  SpecRef sharded;                ///< between steps
  SpecRef gathered;               ///< while its module computes; null: a plain tensor
  Shape shape;                    ///< global, of `sharded`: the parameter's, or with leading dims merged
  Shape full_shape, local_shape;  ///< of the local tensor when gathered, and of this rank's shard of it
  Shape used_shape;               ///< full_shape, as modules see it: with the dims that the plan merges
  int dim = 0;                    ///< that the data axes shard
  /// Rows of the gathered local tensor per rank of the shard group, where the chunk rule does not say the same.
  std::vector<std::int64_t> row_counts;
  Spec::Range rows;  ///< those that are this rank's shard
  /// Where replicas divide the shards: of dim 0 of this rank's, what it owns. `sharded` and `local_shape` are of that.
  Spec::Range owned{};
};

/// Group of all ranks of the mesh that `mesh` is a slice of: they fail together.
ProcessGroup& root_group_of(const DeviceMesh& mesh);

/// The mesh that a unit is sharded over.
class DataMesh {
 public:
  /// Parameters are sharded `over` these axes; values that the optimizer updates are `owned_over` more, or as many.
  /// Error unless it has one axis, or two: replicas, then shards. Error naming flatten() of axes of the root mesh if
  /// both axes shard, or none does, and there is no group of their ranks.
  explicit DataMesh(const DeviceMesh& mesh, ShardedOver over = ShardedOver::shards,
                    ShardedOver owned_over = ShardedOver::none);

  int num_shards() const { return num_shards_; }
  int num_replicas() const { return num_ranks() / num_shards(); }
  int num_ranks() const { return mesh_.num_ranks(); }
  int shard() const { return shard_; }
  /// Among the replicas of this rank's shard.
  int replica() const { return replica_; }
  /// Whether each replica owns a part of the shard.
  bool divides_shards() const { return divides_shards_; }
  /// Only if num_shards() > 1.
  ProcessGroup& shard_group() const { return *shard_group_; }
  /// The ranks with replicas of this rank's shard; only if num_replicas() > 1.
  ProcessGroup& replica_group() const { return *replica_group_; }
  /// All ranks of the mesh that this one is a slice of: they fail together.
  ProcessGroup& root_group() const { return *root_group_; }
  const DeviceMesh& mesh() const { return mesh_; }

  /// The plan's dim alone counts on a mesh that shards nothing. Error naming the parameter if it is 0-d, Partial, or
  /// distributed over axes of this mesh, over a mesh of another root, over flattened axes or in shards of listed sizes;
  /// and where the plan does not fit: it has no such dim, there is no such shard to own it, or the rows are not one
  /// number for each shard that add up to those of the local tensor, on every rank of the other axes.
  ShardPlacement place(const Parameter& parameter, const ShardPlan& plan = {}) const;
  /// Where replicas divide the shards: makes the placement of a shard that of what this rank owns of it. Returns how
  /// many rows of dim 0 each replica owns, where the chunk rule does not say the same.
  std::vector<std::int64_t> divide(ShardPlacement& placement, const Parameter& parameter) const;

 private:
  ProcessGroup* group_over(const std::vector<int>& axes) const;
  int index_on(const std::vector<int>& axes) const;
  std::vector<std::int64_t> listed_rows(const ShardPlan& plan, const Parameter& parameter, std::int64_t rows) const;
  void place_plain(ShardPlacement& to, const Shape& shape) const;
  void place_distributed(ShardPlacement& to, const Parameter& parameter) const;
  DeviceMesh mesh_;
  std::vector<int> sharding_, replicating_;  // axes of mesh_
  int num_shards_ = 1, shard_ = 0, replica_ = 0;
  bool divides_shards_ = false;
  ProcessGroup *root_group_, *shard_group_ = nullptr, *replica_group_ = nullptr;
};

}  // namespace sherd::nn
