#include "nn/parallel/shard/unit/unit_levels.h"

#include <utility>

#include "runtime/exec/context.h"
#include "runtime/op/core/capture_sink.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/op/unit/unit.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

constexpr std::uint32_t kNoVersion = ~std::uint32_t{0};  // of bytes that nobody can write so often

// A captured step gathers what it uses even if it is gathered at the time: in replay it may be released, or older.
bool is_known(const Tensor& bytes) {
  const CaptureSink* capture = RankContext::current().capture;
  return !capture || capture->has_seen(*bytes.storage());
}

}  // namespace

UnitLevels::UnitLevels(const UnitPieces& pieces, StorageOwner& owner, const std::optional<ShardOffload>& offload)
    : pieces_(pieces),
      owner_(owner),
      home_(offload ? std::make_unique<ShardHome>(*offload) : nullptr),
      is_shard_full_(pieces.is_plain() && !home_) {}

void UnitLevels::leave_owner() const {
  if (!gathered_.defined() || is_shard_full_) return;
  gathered_.storage()->owner = nullptr;
  gathered_.storage()->set_keeps_memory(false);
  gathered_.storage()->release_data();
  if (shard_version_.defined()) shard_version_.storage()->owner = nullptr;
}

void UnitLevels::materialize(Device device) {
  const UnitLayout& layout = pieces_.layout();
  check_groups(layout, device);
  device_ = device;
  names_.clear();
  if (home_) {
    shards_ = home_->allocate(layout.shard_bytes, device);
  } else {
    shards_ = bytes_over(Storage::allocate(layout.shard_bytes, MemoryCategory::parameters, device));
    fill_into(shards_, 0);
  }
  if (is_shard_full_) {
    gathered_ = shards_;
  } else {
    gathered_ = add_place(layout.full_bytes, " full");
    gathered_.storage()->set_keeps_memory(keeps_memory_);
  }
  if (pieces_.owned()) shard_version_ = add_place(0, " shards");
  forget_replicas();
  if (slices_) slices_->materialize(owner_, device);
  if (custom_) custom_->materialize(layout, device);
}

void UnitLevels::layout_changed() {
  leave_owner();
  is_shard_full_ = pieces_.is_plain() && !home_;
  shards_ = gathered_ = shard_version_ = Tensor();
  if (slices_) set_slices(slices_->split());
}

void UnitLevels::set_keeps_memory(bool on) {
  keeps_memory_ = on;
  if (gathered_.defined() && !is_shard_full_) gathered_.storage()->set_keeps_memory(on);
}

// A storage without bytes that a step may name.
Tensor UnitLevels::add_place(std::int64_t bytes, std::string_view what) {
  Ref<Storage> storage = Storage::released(bytes, MemoryCategory::unsharded, device());
  storage->owner = &owner_;
  names_.push_back(name_storage(fmt::format("{}{}", label_of(pieces_.layout()), what), storage));
  return bytes_over(std::move(storage));
}

void UnitLevels::set_gather(std::shared_ptr<UnitGather> gather) {
  const std::string& name = pieces_.layout().name;
  check(!has_gathered_,
        "fully_shard: unit \"{}\" has been gathered already, and captured steps go on as they were recorded; set its "
        "gather before the first forward",
        name);
  check(!gather || !home_,
        "fully_shard: unit \"{}\" is offloaded, and a gather of the user's own reads shards that are in memory: leave "
        "out one of them",
        name);
  check(!gather || !slices_,
        "fully_shard: unit \"{}\" reshards to {} ranks after forward, and a gather of the user's own is one of all "
        "ranks: reshard to all, or to none",
        name, slices_ ? slices_->ranks() : 0);
  custom_ = gather && pieces_.layout().shards > 1 ? std::make_unique<CustomGather>(std::move(gather)) : nullptr;
  if (custom_ && !is_meta()) custom_->materialize(pieces_.layout(), device());
}

void UnitLevels::set_slices(const std::optional<DeviceMesh>& split) {
  check(!split || !custom_,
        "fully_shard: unit \"{}\" has a gather of the user's own, which is one of all ranks: reshard after forward to "
        "all of them, or to none",
        pieces_.layout().name);
  slices_.reset();
  if (!split) return;
  std::vector<const Spec*> gathered;
  for (const std::size_t i : indices(pieces_)) gathered.push_back(pieces_.placement(i).gathered);
  slices_ = std::make_unique<UnitSlices>(pieces_.layout(), gathered, *split);
  if (!is_meta()) slices_->materialize(owner_, device());
}

bool UnitLevels::is_of_shards(const Tensor& bytes) const {
  return bytes.storage()->is_present() && bytes.storage()->version() == shards_.storage()->version();
}

bool UnitLevels::may_use(const Tensor& level) const { return is_of_shards(level) && is_known(level); }

bool UnitLevels::is_current() const {
  return is_there() && (custom_ ? custom_->is_current(shards_, gathered_) : is_of_shards(gathered_));
}

bool UnitLevels::needs_gather() const { return !is_shard_full_ && !(is_current() && is_known(gathered_)); }

// The slices that forward has left, or the shards, of which each replica may have updated a part only.
void UnitLevels::start() {
  const UnitLayout& layout = pieces_.layout();
  check(!is_meta(), "fully_shard: unit \"{}\" has no values to gather; call model.materialize(seed) first",
        layout.name);
  if (!needs_gather()) return;
  has_gathered_ = true;
  if (slices_ && may_use(slices_->bytes())) return slices_->gather(gathered_);
  if (const UnitLayout* owned = pieces_.owned(); owned && !may_use(shard_version_))
    start_gather(*owned, shards_, shard_version_);
  if (custom_) custom_->start(layout, shards_, gathered_);
  else if (home_) home_->start(layout, shards_, gathered_);
  else start_gather(layout, shards_, gathered_);
}

void UnitLevels::finish() {
  if (custom_ && needs_gather()) custom_->finish(pieces_.layout(), shards_, gathered_);
  if (home_ && needs_gather()) home_->finish(pieces_.layout(), shards_, gathered_);
}

void UnitLevels::wait() const {
  if (is_there()) gathered_.storage()->wait_to_read();
}

void UnitLevels::cancel() {
  if (custom_) custom_->cancel();
  if (home_) home_->cancel();
}

void UnitLevels::release() const {
  if (is_there()) release_unit(pieces_.layout(), gathered_);
}

void UnitLevels::forget_replicas() const {
  if (shard_version_.defined()) shard_version_.storage()->set_version(kNoVersion);
}

// A gather that failed may have left the other replicas' part of the shards wrong: it is gathered again. Their own part
// is whole.
void UnitLevels::drop() const {
  if (custom_) custom_->drop();
  if (home_) home_->cancel();
  release();
  if (!shard_version_.defined()) return;
  shards_.storage()->settle();
  shard_version_.storage()->settle();
  forget_replicas();
}

}  // namespace sherd::nn
