#pragma once
// The ranks of a training run as a mesh: `--mesh dp=2,tp=2`.
//
//   replicate x dp    ranks with data of their own; dp shards parameters, replicate copies the shards
//   tp                ranks that compute one batch together: each has a part of every matrix
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtensor/mesh.h"
#include "runtime/comm/group/host_group.h"

namespace sherd {

struct TrainConfig;

/// "replicate=2,dp=2,tp=2", slowest axis first; "" is dp over all of `ranks`. dp comes in with size 1 where it is not
/// named. Throws Error for other text, unknown or repeated axes, replicate anywhere but right before dp.
std::vector<DeviceMesh::Axis> parse_mesh(std::string_view text, int ranks);
/// The ranks that such a mesh is for: the product of its sizes, `ranks` for "".
std::int64_t count_ranks(std::string_view text, int ranks);
/// As parse_mesh(); Error naming both numbers and the ways out unless count_ranks() is `ranks`.
std::vector<DeviceMesh::Axis> mesh_of(std::string_view text, int ranks);
/// The text of a mesh for a strategy that has replicas of its shards, on `ranks` ranks of `hosts` hosts, numbered host
/// by host: `text` if it names replicate; else replicate over the hosts, and the axes of `text` within a host, "" being
/// dp over its ranks. Throws Error that names the strategy: on one host; if hosts have different numbers of ranks; if
/// `text` is not for those of a host, or another axis than dp is the slowest one there. Else as parse_mesh().
std::string mesh_with_replicas(std::string_view text, int ranks, int hosts, std::string_view strategy);
/// Ranks with data of their own: all but those that differ along tp only.
int count_data_ranks(const std::vector<DeviceMesh::Axis>& axes);
/// Sequences of a rank in a step. Error if the batch does not divide into micro-batches of all data ranks.
std::int64_t local_batch(const TrainConfig& config, std::int64_t data_ranks);

/// A link to measure with, of one axis.
struct AxisLink {
  std::string axis;  ///< empty: of every axis
  LinkShape shape;
};
/// `--link`: "2e9,20e-6" shapes all axes, "dp=2e9,0;replicate=2e8,0" each its own; "" none. Throws Error for other
/// text, for an axis that no mesh has, or that is named twice.
std::vector<AxisLink> parse_links(std::string_view text);
/// What a group over these axes communicates on: the slowest of their links, as a ring passes them all. Axes of one
/// rank have none. Nothing if no link is shaped.
std::optional<LinkShape> link_over(std::span<const AxisLink> links, std::span<const DeviceMesh::Axis> axes);

/// A cheap value handle, as DeviceMesh. `group` and its deadline are those of the job; groups of axes take it over when
/// the mesh is made.
class JobMesh {
 public:
  /// Mesh of the ranks of `group`, laid out by `text` as mesh_of() reads it. Collective if there are several axes.
  /// `links` shapes the groups of the mesh (parse_links()), before their first call. Errors, the same on every rank, as
  /// mesh_of(), as parse_links(), and for the link of an axis that the mesh does not have.
  JobMesh(std::string_view text, std::shared_ptr<ProcessGroup> group, std::string_view links = {});

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
  void shape_links(std::string_view text) const;
  std::shared_ptr<ProcessGroup> group_;
  DeviceMesh root_, data_;
  std::optional<DeviceMesh> tensor_, flat_data_;
  ProcessGroup* data_group_;
};

}  // namespace sherd
