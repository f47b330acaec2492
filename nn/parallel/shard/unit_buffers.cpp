#include "nn/parallel/shard/unit_buffers.h"

#include <algorithm>

#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/buffer_views.h"
#include "runtime/op/capture_sink.h"
#include "runtime/op/ops.h"
#include "runtime/op/unit.h"

namespace sherd::nn {

namespace {
Tensor bytes_over(Ref<Storage> storage) {
  const Shape shape{storage->bytes()};
  return Tensor::over(std::move(storage), shape, contiguous_strides(shape), 0, DType::u8);
}
}  // namespace

UnitBuffers::UnitBuffers(PlacedUnit unit, const std::vector<Parameter*>& parameters)
    : layout_(unit.layout), is_shard_full_(unit.layout->shards == 1 && !casts(*unit.layout)) {
  std::vector<Tensor> values;  // of this rank
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    pieces_.push_back({NodeRef(parameters[i]->leaf()), std::move(unit.placements[i])});
    by_leaf_.emplace(parameters[i]->leaf(), i);
    values.push_back(parameters[i]->value().local().detach());
  }
  if (std::ranges::any_of(values, [](const Tensor& t) { return !t.is_meta(); })) {
    for (std::size_t i = 0; i < values.size(); ++i)
      check(!values[i].is_meta(),
            "fully_shard: parameter \"{}\" is on meta but others of its group have values; materialize all or none",
            parameters[i]->name());
    materialize(values[0].device());
    take_values(values);
    return;
  }
  for (std::size_t i = 0; i < pieces_.size(); ++i) put_on_meta(i);
}

void UnitBuffers::put_on_meta(std::size_t index) {
  Parameter* const p = parameter(index);
  if (!p) return;
  const ShardPlacement& at = pieces_[index].at;
  p->set(Tensor::distributed(p->shape(), at.sharded,
                             Tensor::empty(at.local_shape, layout_->pieces[index].dtype, Device::meta())));
  p->keep_shard({}, this);
}

UnitBuffers::~UnitBuffers() {
  for (const Piece& piece : pieces_)
    if (Parameter* p = parameter_of(piece)) p->keep_shard({}, nullptr);
  drop_gathered();
}

void UnitBuffers::drop_gathered() {
  if (!gathered_.defined() || is_shard_full_) return;
  gathered_.storage()->owner = nullptr;
  gathered_.storage()->release_data();
}

std::vector<Parameter*> UnitBuffers::parameters() const {
  std::vector<Parameter*> living;
  for (const Piece& piece : pieces_)
    if (Parameter* p = parameter_of(piece)) living.push_back(p);
  return living;
}

void UnitBuffers::materialize(Device device) {
  if (shards_.defined()) return;
  check_groups(*layout_, device);
  shards_ = bytes_over(Storage::allocate(layout_->shard_bytes, MemoryCategory::parameters, device));
  fill_into(shards_, 0);
  if (is_shard_full_) {
    gathered_ = shards_;
  } else {
    Ref<Storage> storage = Storage::released(layout_->full_bytes, MemoryCategory::unsharded, device);
    storage->owner = this;
    gathered_ = bytes_over(std::move(storage));
    gathered_name_ = name_storage(label_of(*layout_) + " full", gathered_.storage());
  }
  attach_all();
  for (const Piece& piece : pieces_)
    if (Parameter* p = parameter_of(piece)) p->present(p->sharded_value());
}

void UnitBuffers::cast_to(const UnitLayout& layout) {
  if (&layout == layout_) return;
  reshard();
  std::vector<Tensor> values;
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    values.push_back(parameter(i) ? parameter(i)->sharded_value().local().detach() : Tensor());
  drop_gathered();
  layout_ = &layout;
  is_shard_full_ = layout.shards == 1 && !casts(layout);
  if (is_meta()) {
    for (std::size_t i = 0; i < pieces_.size(); ++i) put_on_meta(i);
    return;
  }
  const Device device = shards_.device();
  shards_ = gathered_ = Tensor();
  materialize(device);
  const GradMode off(false);
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    if (values[i].defined()) copy_into(parameter(i)->sharded_value().local().detach(), values[i]);
}

void UnitBuffers::attach(Piece& piece, std::size_t index) {
  Parameter* const p = parameter_of(piece);
  if (!p) return;
  const UnitPiece& at = layout_->pieces[index];
  const Tensor local = view_at(shards_, piece.at.local_shape, at.shard_offset, at.dtype);
  p->keep_shard(p->attach(Tensor::distributed(p->shape(), piece.at.sharded, local)), this);
  piece.gathered = p->attach(as_gathered(index, view_at(gathered_, at.shape, at.full_offset, at.full_dtype)));
}

void UnitBuffers::attach_all() {
  for (std::size_t i = 0; i < pieces_.size(); ++i) attach(pieces_[i], i);
}

Tensor UnitBuffers::as_gathered(std::size_t piece, const Tensor& local) const {
  const Spec* const spec = pieces_[piece].at.gathered;
  return spec ? Tensor::distributed(parameter(piece)->shape(), spec, local) : local;
}

void UnitBuffers::take_values(const std::vector<Tensor>& values) {
  GradMode off(false);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const ShardPlacement& at = pieces_[i].at;
    copy_into(parameter(i)->sharded_value().local().detach(), narrow(values[i], at.dim, at.rows.begin, at.rows.size()));
  }
}

bool UnitBuffers::is_current() const {
  if (custom_) return has_full() && custom_->is_current(shards_, gathered_);
  return has_full() && gathered_.storage()->version() == shards_.storage()->version();
}

// A captured step gathers what it uses even if it is gathered at the time: in replay it may be released.
bool UnitBuffers::needs_gather() const {
  if (is_shard_full_) return false;
  const CaptureSink* capture = RankContext::current().capture;
  return !is_current() || (capture && !capture->has_seen(*gathered_.storage()));
}

void UnitBuffers::set_gather(std::shared_ptr<UnitGather> gather) {
  check(!has_gathered_,
        "fully_shard: unit \"{}\" has been gathered already, and captured steps go on as they were recorded; set its "
        "gather before the first forward",
        layout_->name);
  custom_ = gather && layout_->shards > 1 ? std::make_unique<CustomGather>(std::move(gather)) : nullptr;
}

void UnitBuffers::prefetch() {
  check(!is_meta(), "fully_shard: group \"{}\" has no values to gather; call model.materialize(seed) first",
        layout_->name);
  if (!needs_gather()) return;
  has_gathered_ = true;
  if (custom_) custom_->start(*layout_, shards_, gathered_);
  else start_gather(*layout_, shards_, gathered_);
}

void UnitBuffers::unshard() {
  check(!is_summoned,
        "fully_shard: group \"{}\" has its full parameters summoned: end the scope of FullParameters before a forward "
        "or unshard()",
        layout_->name);
  if (is_unsharded_ && !is_shard_full_ && !needs_gather()) return;
  prefetch();
  if (custom_ && needs_gather()) custom_->finish(*layout_, shards_, gathered_);
  is_unsharded_ = true;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    Piece& piece = pieces_[i];
    Parameter* const p = parameter_of(piece);
    if (!p) continue;
    // Freezing or thawing since the last time changes whether the tensors point to the leaf.
    if (piece.gathered.requires_grad() != p->requires_grad()) attach(piece, i);
    p->present(piece.gathered);
  }
}

void UnitBuffers::wait() {
  if (has_full()) gathered_.storage()->wait_to_read();
}

void UnitBuffers::register_shards() {
  if (!is_unsharded_) return;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    Parameter* const p = parameter(i);
    if (!p) continue;
    if (p->sharded_value().requires_grad() != p->requires_grad()) attach(pieces_[i], i);
    p->present(p->sharded_value());
  }
  is_unsharded_ = false;
}

void UnitBuffers::reshard() {
  register_shards();
  drop_unused();
}

void UnitBuffers::drop_unused() {
  if (is_unsharded_) return;
  if (custom_) custom_->cancel();
  if (!has_full()) return;
  if (!keeps_gathered_ || !is_current()) release_unit(*layout_, gathered_);
}

void UnitBuffers::drop() {
  register_shards();
  if (custom_) custom_->drop();
  if (has_full()) release_unit(*layout_, gathered_);
}

void UnitBuffers::ensure_present(Storage&) {
  if (is_unsharded_ && has_full()) return;
  ++late_gathers_;
  unshard();
}

void UnitBuffers::begin_replay(Storage&) {
  register_shards();
  if (custom_) custom_->cancel();
}

// The sink of the parameters knows what else a step leaves behind.
void UnitBuffers::abandon_replay(Storage&, std::string_view reason) noexcept {
  const auto living = std::ranges::find_if(pieces_, [&](const Piece& piece) { return parameter_of(piece) != nullptr; });
  if (living == pieces_.end()) return;
  Parameter& p = *parameter_of(*living);
  p.sink().abandon(p, reason);
}

}  // namespace sherd::nn
