#pragma once
// DeviceMesh: the ranks of a job as a named grid. Today a line of ranks; the types are those of the n-D mesh.
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/process_group.h"

namespace sherd {

/// A cheap value handle. Making the first one installs the distributed layer of the dispatcher.
class DeviceMesh {
 public:
  struct Axis {
    std::string name;
    int size = 1;
  };

  /// One axis over the ranks of `group`.
  explicit DeviceMesh(std::shared_ptr<ProcessGroup> group, std::string axis = "dp");
  /// Named axes over the ranks of `group`, slowest first; their product must be its size. More than one axis is
  /// refused by name: n-D meshes come with tensor parallelism.
  DeviceMesh(std::shared_ptr<ProcessGroup> group, std::vector<Axis> axes);
  /// One axis "dp" over all ranks of the job; connects to the launcher's peers on first use.
  static DeviceMesh world();

  int ndim() const { return static_cast<int>(impl_->axes.size()); }
  const std::string& axis_name(int axis = 0) const { return impl_->axes[static_cast<std::size_t>(axis)].name; }
  int size(int axis = 0) const { return impl_->axes[static_cast<std::size_t>(axis)].size; }
  /// This rank's coordinate along an axis.
  int coordinate(int axis = 0) const { return impl_->coordinates[static_cast<std::size_t>(axis)]; }
  ProcessGroup& group(int axis = 0) const;
  /// Unique within the process; equal handles share it.
  std::uint64_t id() const { return impl_->id; }
  /// "mesh(dp=4)".
  std::string describe() const;
  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b) { return a.impl_ == b.impl_; }

 private:
  friend class Spec;
  struct Impl {
    std::uint64_t id;
    std::shared_ptr<ProcessGroup> group;
    std::vector<Axis> axes;
    std::vector<int> coordinates;
  };
  explicit DeviceMesh(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace sherd
