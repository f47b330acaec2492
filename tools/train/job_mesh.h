#pragma once
// The ranks of a training run as a mesh: `--mesh dp=2,tp=2`.
//
//   replicate x dp    ranks with data of their own; dp shards parameters, replicate copies the shards
//   tp                ranks that compute one batch together: each has a part of every matrix
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "dtensor/mesh.h"

namespace sherd {

/// "replicate=2,dp=2,tp=2", slowest axis first; "" is dp over all of `ranks`. dp comes in with size 1 where it is not
/// named. Throws Error for other text, unknown or repeated axes, replicate anywhere but right before dp.
std::vector<DeviceMesh::Axis> parse_mesh(std::string_view text, int ranks);
/// As parse_mesh(); Error naming both unless the axes' product is `ranks`.
std::vector<DeviceMesh::Axis> mesh_of(std::string_view text, int ranks);
/// Ranks with data of their own: all but those that differ along tp only.
int count_data_ranks(const std::vector<DeviceMesh::Axis>& axes);

/// A cheap value handle, as DeviceMesh. `group` and its deadline and link shape are those of the job; groups of several
/// axes take them over when the mesh is made.
class JobMesh {
 public:
  /// Of the ranks of `group`, laid out by `text` as mesh_of() reads it. Collective if there are several axes. Errors,
  /// the same on every rank, as mesh_of().
  JobMesh(std::string_view text, std::shared_ptr<ProcessGroup> group);

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

}  // namespace sherd
