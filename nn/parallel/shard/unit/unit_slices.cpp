#include "nn/parallel/shard/unit/unit_slices.h"

#include <algorithm>
#include <utility>

#include "nn/parallel/shard/unit/unit_layout.h"
#include "runtime/comm/group/group_names.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/op/unit/unit.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

int last_axis(const DeviceMesh& mesh) { return mesh.ndim() - 1; }

// Spec of a slice of a gathered tensor that is distributed already. It is on the root of `split`, whose other axes have
// the same names as those of the tensor's own root. The slice is the innermost split of dim 0.
const Spec* spec_on_root(const DeviceMesh& split, const Spec& gathered) {
  const DeviceMesh root = split.root(), theirs = gathered.mesh();
  const auto at = [&](int axis) { return root.axis(theirs.root().axis_name(theirs.root_axes(axis)[0])); };
  std::vector<Placement> placements(static_cast<std::size_t>(root.ndim()), Replicate());
  std::vector<int> order;
  for (const int axis : up_to(theirs.ndim())) placements[static_cast<std::size_t>(at(axis))] = gathered.placement(axis);
  for (const int axis : gathered.order()) order.push_back(at(axis));
  const int inner = split.root_axes(last_axis(split))[0];
  placements[static_cast<std::size_t>(inner)] = Shard(0);
  order.push_back(inner);
  return Spec::of(root, placements, order);
}

const Spec* spec_of(const DeviceMesh& split, const Spec* gathered) {
  if (gathered) return spec_on_root(split, *gathered);
  std::vector<Placement> placements(static_cast<std::size_t>(split.ndim()), Replicate());
  placements.back() = Shard(0);
  return Spec::of(split, placements);
}

}  // namespace

DeviceMesh split_for_slices(const DeviceMesh& data, int k) {
  const int axis = last_axis(data);
  const std::string& name = data.axis_name(axis);
  check(k >= 1 && data.size(axis) % k == 0,
        "reshard_after_forward = {} over {}: groups of {} consecutive ranks need an axis \"{}\" that they divide, and "
        "it has {} ranks",
        k, data.describe(), k, name, data.size(axis));
  check(data.root_axes(axis).size() == 1,
        "reshard_after_forward = {} over {}: axis \"{}\" is flattened from several, so it has no groups of {} ranks; "
        "use true or false, or an axis of the mesh itself",
        k, data.describe(), name, k);
  return data.unflatten(name, {{name + "_outer", data.size(axis) / k}, {name + "_inner", k}});
}

UnitSlices::UnitSlices(const UnitLayout& unit, std::span<const Spec* const> gathered, DeviceMesh split)
    : split_(std::move(split)) {
  const int axis = last_axis(split_), ranks = split_.size(axis), own = split_.coordinate(axis);
  UnitLayout cut{.name = unit.name, .shard_bytes = unit.full_bytes};
  UnitLayout gather{.name = unit.name, .shards = ranks, .shard = own, .full_bytes = unit.full_bytes};
  if (ranks > 1) gather.shard_axis = name_of_group(split_.group(axis));
  for (std::size_t i = 0; i < unit.pieces.size(); ++i) {
    specs_.push_back(spec_of(split_, gathered[i]));
    UnitPiece& whole = gather.pieces.emplace_back(unit.pieces[i]);
    whole.dtype = whole.wire = whole.full_dtype;
    whole.grad_dtype.reset();
    whole.dim = 0;  // of what is gathered, however shards lie
    whole.rows.clear();
    whole.shard_offset = gather.shard_bytes;
    UnitPiece& part = cut.pieces.emplace_back(whole);
    const Spec::Range rows = chunk_range(whole.shape[0], ranks, own);
    part.shape[0] = rows.size();
    part.shard_offset = whole.full_offset + rows.begin * row_bytes(whole.shape, whole.dtype);
    part.full_offset = gather.shard_bytes;
    gather.shard_bytes += align(numel(part.shape) * byte_size(part.dtype));
  }
  // Never none, so that whether there are slices is the same on all ranks.
  cut.full_bytes = gather.shard_bytes = std::max(gather.shard_bytes, kBufferAlign);
  cut_ = UnitLayout::intern(std::move(cut));
  gather_ = UnitLayout::intern(std::move(gather));
}

UnitSlices::~UnitSlices() {
  if (!bytes_.defined()) return;
  bytes_.storage()->owner = nullptr;
  bytes_.storage()->release_data();
}

void UnitSlices::materialize(StorageOwner& owner, Device device) {
  if (bytes_.defined()) return;
  if (gather_->shards > 1) check_groups(*gather_, device);
  Ref<Storage> storage = Storage::released(cut_->full_bytes, MemoryCategory::unsharded, device);
  storage->owner = &owner;
  bytes_ = bytes_over(std::move(storage));
  name_ = name_storage(cut_->name + " slices", bytes_.storage());
}

void UnitSlices::cut(const Tensor& gathered) const { start_gather(*cut_, gathered, bytes_); }
void UnitSlices::gather(const Tensor& gathered) const { start_gather(*gather_, bytes_, gathered); }

void UnitSlices::release() const {
  if (bytes_.defined() && bytes_.storage()->is_present()) release_unit(*cut_, bytes_);
}

Tensor UnitSlices::slice(std::size_t piece, const Shape& shape) const {
  const UnitPiece& at = cut_->pieces[piece];
  return Tensor::distributed(shape, specs_[piece], view_at(bytes_, at.shape, at.full_offset, at.full_dtype));
}

}  // namespace sherd::nn
