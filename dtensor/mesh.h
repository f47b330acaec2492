#pragma once
// DeviceMesh: the ranks of a job as a named grid, row-major, slowest axis first. Slices and flattened axes are meshes
// too, and share the process groups of their root mesh.
//
//   mesh(dp=2,tp=3)     ranks  0 1 2      mesh["tp"]  of rank 4: ranks 3 4 5, coordinate 1
//                              3 4 5      mesh["dp"]  of rank 4: ranks 1 4,   coordinate 1
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/group/process_group.h"
#include "runtime/op/core/distributed.h"

namespace sherd {

class SpecTable;

/// A cheap value handle. Making the first one installs the distributed layer of the dispatcher. Two handles are equal
/// if they have the same axes over the same group.
class DeviceMesh {
 public:
  struct Axis {
    std::string name;
    int size = 1;
    friend bool operator==(const Axis&, const Axis&) = default;
  };

  /// One axis over the ranks of `group`.
  explicit DeviceMesh(std::shared_ptr<ProcessGroup> group, std::string axis = "dp");
  /// Named axes over the ranks of `group`, slowest first; their product must be its size, names must differ. Collective
  /// over the group if there are two axes or more: each axis gets a group of its own. While a handle of an equal mesh
  /// lives, this returns that mesh without communication: keep handles equally long on all ranks. Destroying the last
  /// handle waits for work in flight. Error if a ghost rank gives a real group, or the reverse.
  DeviceMesh(std::shared_ptr<ProcessGroup> group, std::vector<Axis> axes);
  /// One axis "dp" over all ranks of the job; connects to the launcher's peers on first use.
  static DeviceMesh world();
  /// Named axes over all ranks of the job.
  static DeviceMesh from_launcher(std::vector<Axis> axes);

  int ndim() const { return static_cast<int>(impl_->axes.size()); }
  const std::vector<Axis>& axes() const { return impl_->axes; }
  const std::string& axis_name(int axis = 0) const { return impl_->axes[index(axis)].name; }
  /// Index of the axis of that name; Error that lists the axes if there is none.
  int axis(std::string_view name) const;
  bool has_axis(std::string_view name) const;
  /// Ranks along an axis. Without an argument the mesh must have one axis, as for coordinate() and group().
  int size() const { return size(only_axis("size()")); }
  int size(int axis) const { return impl_->axes[index(axis)].size; }
  /// Number of ranks of the mesh.
  int num_ranks() const;
  /// This rank's coordinate along an axis.
  int coordinate() const { return coordinate(only_axis("coordinate()")); }
  int coordinate(int axis) const { return impl_->coordinates[index(axis)]; }
  std::span<const int> coordinates() const { return impl_->coordinates; }
  /// Coordinates of rank `rank` of this mesh, numbered row-major.
  std::vector<int> coordinates_of(int rank) const;
  /// The group of the ranks that differ from this one in the coordinate along `axis` only.
  ProcessGroup& group() const { return group(only_axis("group()")); }
  ProcessGroup& group(int axis) const { return *impl_->groups[index(axis)]; }
  ProcessGroup& group(std::string_view axis_name) const { return group(axis(axis_name)); }
  /// The group of the ranks that differ along the given axes only, numbered row-major in that order; null if there is
  /// none (all axes in mesh order have one, other lists after flatten()). Local.
  ProcessGroup* joint_group(std::span<const int> axes) const;

  /// The sub-mesh of some axes, named in this mesh's order: shares their groups. All axes give this mesh. Local.
  DeviceMesh slice(std::span<const std::string> names) const;
  DeviceMesh slice(std::initializer_list<std::string> names) const {
    return slice(std::span(names.begin(), names.size()));
  }
  DeviceMesh operator[](const std::string& name) const { return slice({name}); }
  /// Several axes joined into one, as a mesh of one axis. Default name: theirs joined by "_". Collective over the root
  /// mesh at the first call with these axes. Error if another axis has the name.
  DeviceMesh flatten(std::span<const std::string> names, std::string name = {}) const;
  DeviceMesh flatten(std::initializer_list<std::string> names, std::string name = {}) const {
    return flatten(std::span(names.begin(), names.size()), std::move(name));
  }
  DeviceMesh flatten() const;
  /// One axis split into several, slowest first; their sizes must multiply to its. The new axes stand in its place, and
  /// the mesh has a root of its own: its tensors do not mix with this mesh's. The other axes and the ranks of the whole
  /// axis, which goes by its old name in slices, keep their groups; those of the new axes are divided from the latter,
  /// and take over its deadline and the shape of its link. Of a flattened axis the result is a slice of this mesh's
  /// root, and `parts` must be the axes it was made of. Collective over the group of the axis at the first call with
  /// these parts, unless the axis is flattened. Error if another axis has one of the names.
  DeviceMesh unflatten(std::string_view axis, std::vector<Axis> parts) const;
  /// The mesh of all axes of several meshes of one root, which share no axis and are named in the root's order: shares
  /// their groups. Local.
  static DeviceMesh concatenate(std::span<const DeviceMesh> meshes);
  static DeviceMesh concatenate(std::initializer_list<DeviceMesh> meshes) {
    return concatenate(std::span(meshes.begin(), meshes.size()));
  }
  /// The mesh that this one is a slice of; itself if it is not a slice.
  DeviceMesh root() const;
  /// Axes of the root mesh that make up `axis`: one, or several if it is flattened.
  std::span<const int> root_axes(int axis) const { return impl_->root_axes[index(axis)]; }
  /// This mesh's ranks, row-major, as the root's group numbers them.
  std::vector<int> ranks() const;
  /// Whether the ranks of both are numbered by one group.
  bool shares_group(const DeviceMesh& other) const;

  /// Unique within the process; equal handles share it.
  std::uint64_t id() const { return impl_->id; }
  /// "mesh(dp=2,tp=3)".
  std::string describe() const;
  /// Layouts of that name() of the meshes that are there on this rank; see find_layouts().
  static std::vector<LayoutRef> layouts_called(std::string_view name);
  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b) { return a.impl_ == b.impl_; }

 private:
  friend class Spec;
  friend class SpecTable;
  struct Root;
  struct KnownRoots;
  struct Impl {
    std::uint64_t id = 0;
    Root* root = nullptr;  // owns this
    std::vector<Axis> axes;
    std::vector<std::vector<int>> root_axes;            // per axis
    std::vector<std::shared_ptr<ProcessGroup>> groups;  // per axis
    std::vector<int> coordinates;                       // per axis
    std::shared_ptr<SpecTable> layouts;
  };
  explicit DeviceMesh(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  static std::shared_ptr<const Impl> mesh_over(Root& root, const std::vector<Axis>& axes,
                                               const std::vector<std::vector<int>>& root_axes);
  DeviceMesh with_parts(int axis, const std::vector<Axis>& parts) const;
  std::size_t index(int axis) const;
  int only_axis(const char* what) const;
  std::shared_ptr<const Impl> impl_;  // keeps the root: layouts of a slice live as long as any mesh of its root
};

}  // namespace sherd
