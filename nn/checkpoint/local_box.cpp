#include "nn/checkpoint/local_box.h"

#include <algorithm>

#include "dtensor/spec.h"

namespace sherd::nn {

Box local_box(const Tensor& value) {
  if (!value.is_distributed()) return whole_box(value.shape());
  const Spec& spec = Spec::from(value);
  check(!spec.is_partial(), "checkpoint: {} is Partial, so no rank has its values; redistribute() it first",
        describe(value));
  return {spec.local_offset(value.shape()), spec.local_shape(value.shape())};
}

bool saves_box(const Tensor& value, int rank) {
  if (!value.is_distributed()) return rank == 0;
  const Spec& spec = Spec::from(value);
  const DeviceMesh mesh = spec.mesh(), root = mesh.root();
  std::vector<bool> shards(static_cast<std::size_t>(root.ndim()), false);  // by root axis
  for (int a = 0; a < mesh.ndim(); ++a)
    if (spec.placement(a).is_shard())
      for (const int r : mesh.root_axes(a)) shards[static_cast<std::size_t>(r)] = true;
  for (int r = 0; r < root.ndim(); ++r)
    if (!shards[static_cast<std::size_t>(r)] && root.coordinate(r) != 0) return false;
  return true;
}

}  // namespace sherd::nn
