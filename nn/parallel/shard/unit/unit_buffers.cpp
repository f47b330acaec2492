#include "nn/parallel/shard/unit/unit_buffers.h"

#include <utility>

#include "runtime/autograd/autograd.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/unit.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

// This rank's rows of a full local tensor.
Tensor own_part(const UnitPieces& pieces, std::size_t piece, const Tensor& value) {
  const ShardPlacement& at = pieces.placement(piece);
  const Tensor own = narrow(view(contiguous(value), at.full_shape), at.dim, at.rows.begin, at.rows.size());
  return pieces.owned() ? narrow(own, 0, at.owned.begin, at.owned.size()) : own;
}

Tensor shard_of(const Parameter& p) { return p.sharded_value().local().detach(); }

}  // namespace

UnitBuffers::UnitBuffers(PlacedUnit unit, const std::vector<Parameter*>& parameters,
                         const std::optional<ShardOffload>& offload)
    : pieces_(std::move(unit), parameters), levels_(pieces_, *this, offload), slots_(pieces_, levels_, *this) {
  if (parameters.empty() || parameters[0]->value().local().is_meta()) {
    slots_.show_meta();
    return;
  }
  std::vector<Tensor> values;  // of this rank
  for (const Parameter* p : parameters) values.push_back(p->value().local().detach());
  materialize(values[0].device());
  const GradMode off(false);
  for (const std::size_t i : indices(values)) copy_into(shard_of(*parameters[i]), own_part(pieces_, i, values[i]));
  leave_memory(levels_.shards());
}

bool UnitBuffers::is_read_by_tape() const {
  return levels_.has_readers() || (levels_.slices() && levels_.slices()->has_readers());
}

void UnitBuffers::leave_to_tape(const DataMesh& data) {
  unit_ = nullptr;
  if (!is_read_by_tape()) return;
  slots_.leave();
  pieces_.forget_parameters();
  orphan_.emplace(shared_from_this(), data);
}

void UnitBuffers::last_saved_dropped(Storage&) noexcept {
  if (!orphan_ || is_read_by_tape()) return;
  const auto last = std::exchange(orphan_, {});  // this ends here
}

void UnitBuffers::materialize(Device device) {
  if (!levels_.is_meta()) return;
  levels_.materialize(device);
  slots_.attach();
}

void UnitBuffers::cast_to(const UnitLayoutPtr& layout) {
  if (layout.get() == &pieces_.layout()) return;
  reshard();
  const bool is_meta = levels_.is_meta();
  const Device device = levels_.device();
  std::vector<std::pair<Parameter*, Tensor>> values;
  for (Parameter* p : pieces_.parameters()) values.emplace_back(p, shard_of(*p));
  pieces_.set_layout(layout);
  levels_.layout_changed();
  slots_.forget_slices();
  if (is_meta) return slots_.show_meta();
  materialize(device);
  const GradMode off(false);
  for (const auto& [p, value] : values) {
    copy_into(shard_of(*p), value);
    leave_memory(value);
  }
  leave_memory(levels_.shards());
}

void UnitBuffers::unshard() {
  check(!is_summoned(),
        "fully_shard: unit \"{}\" has its full parameters summoned: end the scope of FullParameters before a forward "
        "or unshard()",
        pieces_.layout().name);
  if (is_unsharded() && !levels_.is_shard_full() && !levels_.needs_gather()) return;
  levels_.start();
  levels_.finish();
  slots_.show_gathered();
}

void UnitBuffers::set_slices(const std::optional<DeviceMesh>& split) {
  if (slots_.shown() == UnitSlots::Level::slices) slots_.show_shards();
  levels_.set_slices(split);
  slots_.forget_slices();
}

// Also where slices are shown, which are freed.
void UnitBuffers::show_shards() {
  slots_.show_shards();
  if (levels_.slices()) levels_.slices()->release();
}

void UnitBuffers::reshard_after_forward() {
  if (!levels_.slices() || keeps_gathered_ || !is_unsharded() || !levels_.is_current()) return reshard();
  slots_.show_slices();
  drop_unused();
}

void UnitBuffers::reshard() {
  show_shards();
  drop_unused();
}

void UnitBuffers::drop_unused() {
  if (is_unsharded()) return;
  levels_.cancel();
  if (!keeps_gathered_ || !levels_.is_current()) levels_.release();
}

void UnitBuffers::shards_written() {
  reshard();
  levels_.release();
  levels_.forget_replicas();
}

void UnitBuffers::drop() {
  show_shards();
  levels_.drop();
}

void UnitBuffers::ensure_present(Storage& storage) {
  if (storage.is_borrowed()) return;  // the home of gradients, which is always there
  if (is_unsharded() && levels_.is_there()) return;
  ++late_gathers_;
  unshard();
}

void UnitBuffers::begin_replay(Storage&) {
  slots_.show_shards();
  levels_.cancel();
}

void UnitBuffers::abandon_replay(Storage&, std::string_view reason) noexcept {
  if (unit_) return unit_->abandon(reason);
  if (!orphan_) return;
  if (ProcessGroup& all = orphan_->data.root_group(); all.size() > 1) all.abort(reason);
  drop();
}

}  // namespace sherd::nn
