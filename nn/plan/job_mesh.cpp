#include "nn/plan/job_mesh.h"

#include <utility>

namespace sherd::nn {

JobMesh::JobMesh(const MeshAxes& axes, std::shared_ptr<ProcessGroup> group)
    : group_(std::move(group)),
      root_(group_, axes.of(group_->size())),
      data_(root_.has_axis("replicate") ? root_.slice({"replicate", "dp"}) : root_["dp"]),
      tensor_(root_.has_axis("tp") ? std::optional(root_["tp"]) : std::nullopt) {
  if (data_.ndim() > 1) flat_data_ = root_.flatten({"replicate", "dp"});
  data_group_ = flat_data_ ? &flat_data_->group() : &data_.group();
}

std::string JobMesh::rank_text() const {
  if (root_.ndim() == 1) return fmt::format("rank {} of {}", group_->rank(), group_->size());
  std::string coordinates;
  for (int axis = 0; axis < root_.ndim(); ++axis)
    coordinates +=
        fmt::format("{}{} {}", coordinates.empty() ? "" : ", ", root_.axis_name(axis), root_.coordinate(axis));
  return fmt::format("rank {} of {} ({})", group_->rank(), group_->size(), coordinates);
}

}  // namespace sherd::nn
