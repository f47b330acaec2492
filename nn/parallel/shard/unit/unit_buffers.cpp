#include "nn/parallel/shard/unit/unit_buffers.h"

#include <algorithm>
#include <utility>

#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/group_names.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/capture_sink.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/op/unit/unit.h"

namespace sherd::nn {

namespace {
constexpr std::uint32_t kNoVersion = ~std::uint32_t{0};  // of bytes that nobody can write so often
}  // namespace

UnitBuffers::UnitBuffers(PlacedUnit unit, const std::vector<Parameter*>& parameters,
                         const std::optional<ShardOffload>& offload)
    : layout_(std::move(unit.layout)),
      owned_(std::move(unit.owned)),
      home_(offload ? std::make_unique<ShardHome>(*offload) : nullptr) {
  is_shard_full_ = is_plain() && !home_;
  std::vector<Tensor> values;  // of this rank
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    pieces_.push_back({NodeRef(parameters[i]->leaf()), std::move(unit.placements[i])});
    values.push_back(parameters[i]->value().local().detach());
  }
  if (!values.empty() && !values[0].is_meta()) {
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
  p->set(Tensor::distributed(at.shape, at.sharded,
                             Tensor::empty(at.local_shape, layout_->pieces[index].dtype, Device::meta())));
  p->keep_shard({}, this);
}

UnitBuffers::~UnitBuffers() {
  forget_parameters();
  drop_gathered();
}

void UnitBuffers::forget_parameters() {
  for (Piece& piece : pieces_) {
    if (Parameter* p = parameter_of(piece)) p->keep_shard({}, nullptr);
    piece.leaf = {};
  }
}

bool UnitBuffers::is_read_by_tape() const { return has_readers() || (slices_ && slices_->has_readers()); }

void UnitBuffers::leave_to_tape(const DataMesh& data) {
  unit_ = nullptr;
  if (!is_read_by_tape()) return;
  forget_parameters();
  orphan_.emplace(shared_from_this(), data);
}

void UnitBuffers::last_saved_dropped(Storage&) noexcept {
  if (!orphan_ || is_read_by_tape()) return;
  const auto last = std::exchange(orphan_, {});  // this ends here
}

void UnitBuffers::drop_gathered() {
  if (!gathered_.defined() || is_shard_full_) return;
  gathered_.storage()->owner = nullptr;
  gathered_.storage()->set_keeps_memory(false);
  gathered_.storage()->release_data();
  if (shard_version_.defined()) shard_version_.storage()->owner = nullptr;
}

std::vector<Parameter*> UnitBuffers::parameters() const {
  std::vector<Parameter*> living;
  for (const Piece& piece : pieces_)
    if (Parameter* p = parameter_of(piece)) living.push_back(p);
  return living;
}

std::vector<ProcessGroup*> UnitBuffers::groups_of(std::size_t piece) const {
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

void UnitBuffers::materialize(Device device) {
  if (shards_.defined()) return;
  check_groups(*layout_, device);
  device_ = device;
  names_.clear();
  if (home_) {
    shards_ = home_->allocate(layout_->shard_bytes, device);
  } else {
    shards_ = bytes_over(Storage::allocate(layout_->shard_bytes, MemoryCategory::parameters, device));
    fill_into(shards_, 0);
  }
  if (is_shard_full_) {
    gathered_ = shards_;
  } else {
    gathered_ = add_place(layout_->full_bytes, " full");
    gathered_.storage()->set_keeps_memory(keeps_memory_);
  }
  if (owned_) {
    shard_version_ = add_place(0, " shards");
    shard_version_.storage()->set_version(kNoVersion);
  }
  if (slices_) slices_->materialize(*this, device);
  attach_all();
  for (const Piece& piece : pieces_)
    if (Parameter* p = parameter_of(piece)) p->present(p->sharded_value());
}

void UnitBuffers::cast_to(const UnitLayoutPtr& layout) {
  if (layout == layout_) return;
  reshard();
  std::vector<Tensor> values;
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    values.push_back(parameter(i) ? parameter(i)->sharded_value().local().detach() : Tensor());
  drop_gathered();
  layout_ = layout;
  if (owned_) owned_ = owned_parts(*owned_, *layout);
  is_shard_full_ = is_plain() && !home_;
  if (slices_) set_slices(slices_->split());
  if (is_meta()) {
    for (std::size_t i = 0; i < pieces_.size(); ++i) put_on_meta(i);
    return;
  }
  const Device device = device_;
  shards_ = gathered_ = shard_version_ = Tensor();
  materialize(device);
  const GradMode off(false);
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    if (values[i].defined()) {
      copy_into(parameter(i)->sharded_value().local().detach(), values[i]);
      leave_memory(values[i]);
    }
  leave_memory(shards_);
}

void UnitBuffers::set_keeps_memory(bool on) {
  keeps_memory_ = on;
  if (gathered_.defined() && !is_shard_full_) gathered_.storage()->set_keeps_memory(on);
}

// A storage without bytes that a step may name.
Tensor UnitBuffers::add_place(std::int64_t bytes, std::string_view what) {
  Ref<Storage> storage = Storage::released(bytes, MemoryCategory::unsharded, device());
  storage->owner = this;
  names_.push_back(name_storage(fmt::format("{}{}", label_of(*layout_), what), storage));
  return bytes_over(std::move(storage));
}

void UnitBuffers::attach(Piece& piece, std::size_t index) {
  Parameter* const p = parameter_of(piece);
  if (!p) return;
  const UnitPiece& at = layout_->pieces[index];
  const std::int64_t offset = owned_ ? owned_->pieces[index].shard_offset : at.shard_offset;
  const Tensor local = view_at(shards_, piece.at.local_shape, offset, at.dtype);
  p->keep_shard(p->attach(Tensor::distributed(piece.at.shape, piece.at.sharded, local)), this);
  const Tensor gathered = view_at(gathered_, piece.at.used_shape, at.full_offset, at.full_dtype);
  piece.gathered = p->attach(as_gathered(index, gathered));
}

void UnitBuffers::attach_all() {
  for (std::size_t i = 0; i < pieces_.size(); ++i) attach(pieces_[i], i);
}

Tensor UnitBuffers::as_gathered(std::size_t piece, const Tensor& local) const {
  const Spec* const spec = pieces_[piece].at.gathered;
  return spec ? Tensor::distributed(parameter(piece)->shape(), spec, local) : local;
}

// A view that changes nothing would go through the dispatcher all the same.
Tensor UnitBuffers::as_used(std::size_t piece, const Tensor& full) const {
  const Shape& shape = pieces_[piece].at.used_shape;
  return full.shape() == shape ? full : view(full, shape);
}

Tensor UnitBuffers::as_sharded(std::size_t piece, const Tensor& used) const {
  const Shape& shape = pieces_[piece].at.full_shape;
  return used.shape() == shape ? used : view(used, shape);
}

void UnitBuffers::take_values(const std::vector<Tensor>& values) {
  GradMode off(false);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const ShardPlacement& at = pieces_[i].at;
    Tensor own = narrow(view(contiguous(values[i]), at.full_shape), at.dim, at.rows.begin, at.rows.size());
    if (owned_) own = narrow(own, 0, at.owned.begin, at.owned.size());
    copy_into(parameter(i)->sharded_value().local().detach(), std::move(own));
  }
  leave_memory(shards_);
}

bool UnitBuffers::is_of_shards(const Tensor& bytes) const {
  return bytes.storage()->is_present() && bytes.storage()->version() == shards_.storage()->version();
}

bool UnitBuffers::is_current() const {
  if (custom_) return has_full() && custom_->is_current(shards_, gathered_);
  return has_full() && is_of_shards(gathered_);
}

// A captured step gathers what it uses even if it is gathered at the time: in replay it may be released, or older.
bool UnitBuffers::is_known(const Tensor& bytes) {
  const CaptureSink* capture = RankContext::current().capture;
  return !capture || capture->has_seen(*bytes.storage());
}

bool UnitBuffers::needs_gather() const { return !is_shard_full_ && !(is_current() && is_known(gathered_)); }
bool UnitBuffers::may_use(const Tensor& level) const { return is_of_shards(level) && is_known(level); }

void UnitBuffers::set_gather(std::shared_ptr<UnitGather> gather) {
  check(!has_gathered_,
        "fully_shard: unit \"{}\" has been gathered already, and captured steps go on as they were recorded; set its "
        "gather before the first forward",
        layout_->name);
  check(!gather || !home_,
        "fully_shard: unit \"{}\" is offloaded, and a gather of the user's own reads shards that are in memory: leave "
        "out "
        "one of them",
        layout_->name);
  check(!gather || !slices_,
        "fully_shard: unit \"{}\" reshards to {} ranks after forward, and a gather of the user's own is one of all "
        "ranks: reshard to all, or to none",
        layout_->name, slices());
  custom_ = gather && layout_->shards > 1 ? std::make_unique<CustomGather>(std::move(gather)) : nullptr;
}

// From the nearest level that is there: the slices that forward has left, or the shards, of which each replica may have
// updated a part only.
void UnitBuffers::prefetch() {
  check(!is_meta(), "fully_shard: group \"{}\" has no values to gather; call model.materialize(seed) first",
        layout_->name);
  if (!needs_gather()) return;
  has_gathered_ = true;
  if (slices_ && may_use(slices_->bytes())) return slices_->gather(gathered_);
  if (owned_ && !may_use(shard_version_)) start_gather(*owned_, shards_, shard_version_);
  if (custom_) custom_->start(*layout_, shards_, gathered_);
  else if (home_) home_->start(*layout_, shards_, gathered_);
  else start_gather(*layout_, shards_, gathered_);
}

void UnitBuffers::unshard() {
  check(!is_summoned(),
        "fully_shard: group \"{}\" has its full parameters summoned: end the scope of FullParameters before a forward "
        "or unshard()",
        layout_->name);
  if (is_unsharded() && !is_shard_full_ && !needs_gather()) return;
  prefetch();
  if (custom_ && needs_gather()) custom_->finish(*layout_, shards_, gathered_);
  if (home_ && needs_gather()) home_->finish(*layout_, shards_, gathered_);
  registered_ = Registered::full;
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
  if (registered_ == Registered::shards) return;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    Parameter* const p = parameter(i);
    if (!p) continue;
    if (p->sharded_value().requires_grad() != p->requires_grad()) attach(pieces_[i], i);
    p->present(p->sharded_value());
  }
  registered_ = Registered::shards;
}

void UnitBuffers::set_slices(const std::optional<DeviceMesh>& split) {
  check(!split || !custom_,
        "fully_shard: unit \"{}\" has a gather of the user's own, which is one of all ranks: reshard after forward to "
        "all of them, or to none",
        layout_->name);
  drop_slices();
  slices_.reset();
  for (Piece& piece : pieces_) piece.slice = Tensor();
  if (!split) return;
  std::vector<const Spec*> gathered;
  for (const Piece& piece : pieces_) gathered.push_back(piece.at.gathered);
  slices_ = std::make_unique<UnitSlices>(*layout_, gathered, *split);
  if (!is_meta()) slices_->materialize(*this, device());
}

void UnitBuffers::drop_slices() {
  if (registered_ == Registered::slices) register_shards();
  if (slices_) slices_->release();
}

void UnitBuffers::reshard_after_forward() {
  if (!slices_ || keeps_gathered_ || !is_unsharded() || !is_current()) return reshard();
  slices_->cut(gathered_);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    Parameter* const p = parameter(i);
    if (!p) continue;
    Tensor& slice = pieces_[i].slice;
    if (!slice.defined() || slice.requires_grad() != p->requires_grad())
      slice = p->attach(slices_->slice(i, pieces_[i].at.shape));
    p->present(slice);
  }
  registered_ = Registered::slices;
  drop_unused();
}

void UnitBuffers::reshard() {
  register_shards();
  drop_slices();
  drop_unused();
}

void UnitBuffers::cancel_gather() {
  if (custom_) custom_->cancel();
  if (home_) home_->cancel();
}

void UnitBuffers::drop_unused() {
  if (is_unsharded()) return;
  cancel_gather();
  if (!has_full()) return;
  if (!keeps_gathered_ || !is_current()) release_unit(*layout_, gathered_);
}

void UnitBuffers::shards_written() {
  reshard();
  if (has_full()) release_unit(*layout_, gathered_);
  if (shard_version_.defined()) shard_version_.storage()->set_version(kNoVersion);
}

// A gather that failed may have left the other replicas' part of the shards wrong: it is gathered again. Their own part
// is whole.
void UnitBuffers::drop() {
  register_shards();
  drop_slices();
  if (custom_) custom_->drop();
  if (home_) home_->cancel();
  if (has_full()) release_unit(*layout_, gathered_);
  if (!shard_version_.defined()) return;
  shards_.storage()->settle();
  shard_version_.storage()->settle();
  shard_version_.storage()->set_version(kNoVersion);
}

void UnitBuffers::ensure_present(Storage& storage) {
  if (storage.is_borrowed()) return;  // the home of gradients, which is always there
  if (is_unsharded() && has_full()) return;
  ++late_gathers_;
  unshard();
}

void UnitBuffers::begin_replay(Storage&) {
  register_shards();
  cancel_gather();
}

void UnitBuffers::abandon_replay(Storage&, std::string_view reason) noexcept {
  if (unit_) return unit_->abandon(reason);
  if (!orphan_) return;
  if (ProcessGroup& all = orphan_->data.root_group(); all.size() > 1) all.abort(reason);
  drop();
}

}  // namespace sherd::nn
