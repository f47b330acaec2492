#include "dtensor/mesh.h"

#include <atomic>

#include "dtensor/layer.h"
#include "runtime/comm/world.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {
int ranks_of(const std::shared_ptr<ProcessGroup>& group) {
  check(group != nullptr, "a mesh needs a process group; world_group() is that of all ranks");
  return group->size();
}
}  // namespace

DeviceMesh::DeviceMesh(std::shared_ptr<ProcessGroup> group, std::string axis)
    : DeviceMesh(group, std::vector<Axis>{{std::move(axis), ranks_of(group)}}) {}

DeviceMesh::DeviceMesh(std::shared_ptr<ProcessGroup> group, std::vector<Axis> axes) {
  static std::atomic<std::uint64_t> next_id{1};
  check(!axes.empty(), "a mesh needs at least one axis");
  std::int64_t product = 1;
  for (const Axis& a : axes) {
    check(!a.name.empty(), "a mesh axis needs a name");
    check(a.size >= 1, "mesh axis \"{}\" has size {}", a.name, a.size);
    product *= a.size;
  }
  const int ranks = ranks_of(group);
  check(product == ranks, "the mesh has {} places, the group has {} ranks", product, ranks);
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
