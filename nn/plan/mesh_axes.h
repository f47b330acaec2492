#pragma once
// The ranks of a training as named axes, slowest first: "replicate=2,dp=2,tp=2".
//
//   replicate x dp    ranks with data of their own; dp shards parameters, replicate copies the shards
//   tp                ranks that compute one batch together: each has a part of every matrix
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dtensor/mesh.h"
#include "nn/plan/text_value.h"

namespace sherd::nn {

class MeshAxes {
 public:
  using Axis = DeviceMesh::Axis;

  /// dp over all ranks that there are, however many.
  MeshAxes() = default;
  /// "" is the default. Error for other text, unknown or repeated axes, replicate anywhere but right before dp.
  template <Text T>
  MeshAxes(const T& text) : MeshAxes(parse(text)) {}  // NOLINT: {.mesh = "dp=2,tp=2"}
  explicit MeshAxes(std::vector<Axis> axes) : axes_(std::move(axes)) {}

  std::string text() const;
  /// Whether it is dp over all ranks, however many.
  bool is_open() const { return axes_.empty(); }
  bool has(std::string_view name) const { return size(name) > 0; }
  /// Ranks along the axis; 0 if it is not named.
  int size(std::string_view name) const;
  /// The axes where there are `ranks`, who are not counted: dp comes in with size 1 where it is not named.
  std::vector<Axis> over(int ranks) const;
  /// The product of the sizes; `ranks` if the axes are open.
  std::int64_t count(int ranks) const;
  /// As over(); Error naming both numbers and the ways out unless count() is `ranks`.
  std::vector<Axis> of(int ranks) const;
  /// The axes of a strategy that has replicas of its shards, on `ranks` ranks of `hosts` hosts, numbered host by host:
  /// these if they name replicate; else replicate over the hosts, and these within a host. Error that names the
  /// strategy: on one host; if hosts have different numbers of ranks; if these are not for those of a host, or another
  /// axis than dp is the slowest one there.
  MeshAxes with_replicas(int ranks, int hosts, std::string_view strategy) const;

  friend bool operator==(const MeshAxes&, const MeshAxes&) = default;

 private:
  static MeshAxes parse(std::string_view text);
  std::vector<Axis> axes_;
};

/// Ranks with data of their own: all but those that differ along tp only.
int count_data_ranks(const std::vector<DeviceMesh::Axis>& axes);
/// Error unless a mesh may have an axis of that name; `key` and `whole` are the setting that names it.
void check_axis_name(const std::string& name, std::string_view key, std::string_view whole);

}  // namespace sherd::nn
