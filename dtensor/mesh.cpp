#include "dtensor/mesh.h"

#include <atomic>

#include "dtensor/layer.h"
#include "runtime/comm/world.h"
#include "runtime/tensor/error.h"

namespace sherd {

DeviceMesh::DeviceMesh(std::shared_ptr<ProcessGroup> group, std::string axis)
    : DeviceMesh(group, std::vector<Axis>{{std::move(axis), group->size()}}) {}

DeviceMesh::DeviceMesh(std::shared_ptr<ProcessGroup> group, std::vector<Axis> axes) {
  static std::atomic<std::uint64_t> next_id{1};
  check(!axes.empty(), "a mesh needs at least one axis");
  std::int64_t product = 1;
  for (const Axis& a : axes) {
    check(!a.name.empty(), "a mesh axis needs a name");
    check(a.size >= 1, "mesh axis \"{}\" has size {}", a.name, a.size);
    product *= a.size;
  }
  check(product == group->size(), "the mesh has {} places, the group has {} ranks", product, group->size());
  check(axes.size() == 1,
        "a mesh of {} axes: this version shards over one axis only (2-D meshes and HYBRID_SHARD come with tensor "
        "parallelism)",
        axes.size());
  const std::vector<int> coordinates{group->rank()};
  impl_ = std::make_shared<const Impl>(Impl{next_id++, std::move(group), std::move(axes), coordinates});
  install_distributed_layer();
}

DeviceMesh DeviceMesh::world() { return DeviceMesh(world_group(), "dp"); }

ProcessGroup& DeviceMesh::group(int axis) const {
  check(axis >= 0 && axis < ndim(), "axis {} of {}", axis, describe());
  return *impl_->group;
}

std::string DeviceMesh::describe() const {
  std::string text;
  for (const Axis& a : impl_->axes) text += fmt::format("{}{}={}", text.empty() ? "" : ",", a.name, a.size);
  return fmt::format("mesh({})", text);
}

}  // namespace sherd
