#pragma once
// Where fully_shard puts a parameter. The last axis of its mesh cuts dim 0 of what this rank has of the parameter; an
// axis before it replicates the parts (HSDP). Tensor parallelism may have cut the parameter before:
//
//   mesh(dp=2)                 f32[8,4]           f32[8,4]{0: dp}            gathered: plain
//   mesh(replicate=2,dp=2)     f32[8,4]           f32[8,4]{0: dp}            gathered: plain
//   mesh(dp=2,tp=2)["dp"]      f32[8,4]{0: tp}    f32[8,4]{0: tp,dp}         gathered: f32[8,4]{0: tp}
//                              f32[8,4]{1: tp}    f32[8,4]{0: dp; 1: tp}     gathered: f32[8,4]{1: tp}
//                              f32[8]{}           f32[8]{0: dp}              gathered: f32[8]{}
//
// The last three are tensors on the whole mesh(dp=2,tp=2).
#include <cstdint>
#include <vector>

#include "dtensor/spec.h"
#include "nn/module.h"

namespace sherd::nn {

/// How one parameter lies.
struct ShardPlacement {
  const Spec* sharded = nullptr;     ///< between steps
  const Spec* gathered = nullptr;    ///< while its module computes; null: a plain tensor
  Shape full_shape, local_shape;     ///< of this rank's part of the gathered tensor, and of its shard of that
  std::vector<std::int64_t> counts;  ///< elements per rank of the shard group
  Spec::Range rows;                  ///< of the part of the gathered tensor that the shard is
};

/// The mesh that a group is sharded over.
class DataMesh {
 public:
  /// Error unless it has one axis, or two: replicas, then shards.
  explicit DataMesh(const DeviceMesh& mesh);

  int num_shards() const { return mesh_.size(shard_axis()); }
  int num_replicas() const { return num_ranks() / num_shards(); }
  int num_ranks() const { return mesh_.num_ranks(); }
  ProcessGroup& shard_group() const { return mesh_.group(shard_axis()); }
  /// The ranks that hold the same shard; only if there are several.
  ProcessGroup& replica_group() const { return mesh_.group(0); }
  /// All ranks of the mesh that this one is a slice of: they fail together.
  ProcessGroup& root_group() const { return *root_group_; }
  const DeviceMesh& mesh() const { return mesh_; }

  /// Error naming the parameter if it is 0-d, or lies on axes of this mesh, on a mesh of another root, on flattened
  /// axes or as Partial.
  ShardPlacement place(const Parameter& parameter) const;

 private:
  int shard_axis() const { return mesh_.ndim() - 1; }
  void place_plain(ShardPlacement& to, const Shape& shape) const;
  void place_distributed(ShardPlacement& to, const Parameter& parameter) const;
  DeviceMesh mesh_;
  ProcessGroup* root_group_;
};

}  // namespace sherd::nn
