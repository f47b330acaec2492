#pragma once
// The ranks of a job as the meshes that parts of a plan take.
#include <memory>
#include <optional>
#include <string>

#include "nn/plan/mesh_axes.h"

namespace sherd::nn {

/// A cheap value handle, as DeviceMesh. `group` and its deadline are those of the job; groups of axes take it over when
/// the mesh is made.
class JobMesh {
 public:
  /// Mesh of the ranks of `group`, laid out by `axes`. Collective if there are several axes. Error, the same on every
  /// rank, as MeshAxes::of().
  JobMesh(const MeshAxes& axes, std::shared_ptr<ProcessGroup> group);

  /// All ranks.
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  const DeviceMesh& root() const { return root_; }
  /// What fully_shard takes: dp, or replicate and dp.
  const DeviceMesh& data() const { return data_; }
  /// What parallelize() takes; nothing if the mesh names no tp.
  const std::optional<DeviceMesh>& tensor() const { return tensor_; }
  /// The ranks that differ in their data only, this one's number among them, and how many they are.
  ProcessGroup& data_group() const { return *data_group_; }
  int data_rank() const { return data_group_->rank(); }
  int num_data_ranks() const { return data_group_->size(); }
  /// "rank 3 of 4 (dp 1, tp 1)"; of one axis "rank 3 of 4".
  std::string rank_text() const;

 private:
  std::shared_ptr<ProcessGroup> group_;
  DeviceMesh root_, data_;
  std::optional<DeviceMesh> tensor_, flat_data_;
  ProcessGroup* data_group_;
};

}  // namespace sherd::nn
