#include "nn/parallel/shard/unit/unit_pieces.h"

#include <utility>

#include "runtime/comm/group/group_names.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

UnitPieces::UnitPieces(PlacedUnit unit, const std::vector<Parameter*>& parameters)
    : layout_(std::move(unit.layout)), owned_(std::move(unit.owned)) {
  for (const std::size_t i : indices(parameters))
    pieces_.push_back({NodeRef(parameters[i]->leaf()), std::move(unit.placements[i])});
}

void UnitPieces::set_layout(const UnitLayoutPtr& layout) {
  layout_ = layout;
  if (owned_) owned_ = owned_parts(*owned_, *layout);
}

Parameter* UnitPieces::parameter(std::size_t piece) const {
  const NodeRef& leaf = pieces_[piece].leaf;
  return leaf ? static_cast<Parameter*>(static_cast<const Leaf*>(leaf.get())->slot) : nullptr;
}

std::vector<Parameter*> UnitPieces::parameters() const {
  std::vector<Parameter*> living;
  for (std::size_t i = 0; i < size(); ++i)
    if (Parameter* p = parameter(i)) living.push_back(p);
  return living;
}

void UnitPieces::forget_parameters() {
  for (Piece& piece : pieces_) piece.leaf = {};
}

std::vector<ProcessGroup*> UnitPieces::groups_of(std::size_t piece) const {
  std::vector<ProcessGroup*> groups;
  if (layout_->shards > 1) groups.push_back(&group_named(layout_->shard_axis));
  if (layout_->replicas > 1) groups.push_back(&group_named(layout_->replica_axis));
  if (const Spec* const gathered = pieces_[piece].at.gathered) {
    const DeviceMesh theirs = gathered->mesh();
    for (int axis = 0; axis < theirs.ndim(); ++axis)
      if (theirs.size(axis) > 1) groups.push_back(&theirs.group(axis));
  }
  return groups;
}

Tensor UnitPieces::as_gathered(std::size_t piece, const Tensor& local) const {
  const Spec* const spec = pieces_[piece].at.gathered;
  return spec ? Tensor::distributed(parameter(piece)->shape(), spec, local) : local;
}

// A view that changes nothing would go through the dispatcher all the same.
Tensor UnitPieces::as_used(std::size_t piece, const Tensor& full) const {
  const Shape& shape = pieces_[piece].at.used_shape;
  return full.shape() == shape ? full : view(full, shape);
}

Tensor UnitPieces::as_sharded(std::size_t piece, const Tensor& used) const {
  const Shape& shape = pieces_[piece].at.full_shape;
  return used.shape() == shape ? used : view(used, shape);
}

}  // namespace sherd::nn
