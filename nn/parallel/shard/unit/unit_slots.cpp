#include "nn/parallel/shard/unit/unit_slots.h"

#include <utility>

#include "runtime/op/unit/buffer_views.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

void UnitSlots::show_meta() const {
  for (const std::size_t i : indices(pieces_)) {
    Parameter* const p = pieces_.parameter(i);
    if (!p) continue;
    const ShardPlacement& at = pieces_.placement(i);
    p->set(Tensor::distributed(at.shape, at.sharded,
                               Tensor::empty(at.local_shape, pieces_.layout().pieces[i].dtype, Device::meta())));
    keeper_.keep(*p, {});
  }
}

void UnitSlots::attach(std::size_t piece, Parameter& p) {
  const ShardPlacement& placement = pieces_.placement(piece);
  const UnitPiece& at = pieces_.layout().pieces[piece];
  const UnitLayout* const owned = pieces_.owned();
  const std::int64_t offset = owned ? owned->pieces[piece].shard_offset : at.shard_offset;
  const Tensor local = view_at(levels_.shards(), placement.local_shape, offset, at.dtype);
  keeper_.keep(p, p.attach(Tensor::distributed(placement.shape, placement.sharded, local)));
  const Tensor gathered = view_at(levels_.gathered(), placement.used_shape, at.full_offset, at.full_dtype);
  views_[piece].gathered = p.attach(pieces_.as_gathered(piece, gathered));
}

void UnitSlots::attach() {
  show(Level::shards, [this](std::size_t i, Parameter& p) {
    attach(i, p);
    return p.sharded_value();
  });
}

void UnitSlots::show(Level level, const auto& view_of) {
  shown_ = level;
  for (const std::size_t i : indices(pieces_))
    if (Parameter* const p = pieces_.parameter(i)) p->present(view_of(i, *p));
}

// Freezing or thawing since the last time changes whether the tensors point to the leaf.
void UnitSlots::show_gathered() {
  show(Level::gathered, [this](std::size_t i, Parameter& p) -> const Tensor& {
    if (views_[i].gathered.requires_grad() != p.requires_grad()) attach(i, p);
    return views_[i].gathered;
  });
}

void UnitSlots::show_shards() {
  if (shown_ == Level::shards) return;
  show(Level::shards, [this](std::size_t i, Parameter& p) -> const Tensor& {
    if (p.sharded_value().requires_grad() != p.requires_grad()) attach(i, p);
    return p.sharded_value();
  });
}

void UnitSlots::show_slices() {
  levels_.slices()->cut(levels_.gathered());
  show(Level::slices, [this](std::size_t i, Parameter& p) -> const Tensor& {
    Tensor& slice = views_[i].slice;
    if (!slice.defined() || slice.requires_grad() != p.requires_grad())
      slice = p.attach(levels_.slices()->slice(i, pieces_.placement(i).shape));
    return slice;
  });
}

void UnitSlots::forget_slices() {
  for (Views& views : views_) views.slice = Tensor();
}

void UnitSlots::leave() const {
  for (Parameter* p : pieces_.parameters()) ShardKeeper::release(*p);
}

}  // namespace sherd::nn
