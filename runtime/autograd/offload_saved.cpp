// Backward reads what forward has saved in about the opposite order. So the youngest stay in memory and are read there;
// an older one leaves when enough has been saved after it; and each use of one fetches those before it, as many as have
// room beside what is there and not used yet.
#include "runtime/autograd/offload_saved.h"

#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "runtime/autograd/saved_tensor.h"
#include "runtime/memory/allocator.h"
#include "runtime/op/copy/offload_homes.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

namespace {
// What a fetch reads takes no memory of the rank.
constexpr int kUnbounded = std::numeric_limits<int>::max();
}  // namespace

/// A storage that the tape keeps, for as long as a packed tensor over it is there.
class OffloadSaved::Bytes : public std::enable_shared_from_this<Bytes>, NoCopy {
 public:
  enum class Place : std::uint8_t {
    young,   // in memory, and will leave when enough is saved after it
    away,    // at home
    coming,  // fetched, and not used yet
    used,    // in memory until its last reader has had its turn
  };
  Bytes(std::shared_ptr<Saves> saves, std::uint64_t index, std::int64_t counted, const Ref<Storage>& from)
      : of(std::move(saves)),
        order(index),
        storage(from->id()),
        saved_version(from->version()),
        size(counted),
        here(bytes_over(from)) {}
  ~Bytes();

  const std::shared_ptr<Saves> of;
  const std::uint64_t order;    // in which they were saved
  const std::uint64_t storage;  // that was saved, and its version
  const std::uint32_t saved_version;
  const std::int64_t size;  // as all ranks count it
  Tensor here;              // u8, undefined while it is away
  Tensor home;
  std::uint32_t version = saved_version;  // of what is here
  Place place = Place::young;

  bool is_written() const { return here.storage()->version() != version; }
};

class OffloadSaved::Saves : public std::enable_shared_from_this<Saves> {
 public:
  Saves(OffloadSavedOptions options, BytesPerRank count)
      : options_(std::move(options)), half_(options_.bytes_in_flight / 2), count_(count) {
    check(options_.least_bytes >= 1 && half_ >= options_.least_bytes,
          "offload: {} bytes of activations in flight are too few for two tensors of the {} bytes from which on they "
          "are offloaded; give at least {}",
          options_.bytes_in_flight, options_.least_bytes, 2 * std::max<std::int64_t>(options_.least_bytes, 1));
    if (!options_.folder.empty()) homes_.emplace(Device::cpu(), options_.folder);
  }

  bool moves(const Tensor& tensor) {
    const Ref<Storage>& storage = SavedTensor::bytes_of(tensor);
    if (!storage || storage->owner || storage->is_borrowed() || storage->device().is_meta() ||
        storage->category() != MemoryCategory::activations || bytes_per_rank(tensor) < options_.least_bytes)
      return false;
    if (!homes_ || storage->device() != Device::cpu()) ready_for(storage->device());
    return homes_->store().device() == storage->device();
  }

  std::shared_ptr<Bytes> keep(const Tensor& tensor) {
    const Ref<Storage>& storage = SavedTensor::bytes_of(tensor);
    if (const auto known = by_storage_.find(storage->id());
        known != by_storage_.end() && known->second->saved_version == storage->version())
      return known->second->shared_from_this();
    auto bytes = std::make_shared<Bytes>(shared_from_this(), ++saved_, bytes_per_rank(tensor), storage);
    by_storage_[storage->id()] = bytes.get();
    young_.emplace(bytes->order, bytes.get());
    young_bytes_ += bytes->size;
    while (young_bytes_ > half_) evict_oldest();
    return bytes;
  }

  /// The bytes, which somebody reads now; those that are read next are fetched.
  const Tensor& use(Bytes& bytes) {
    if (bytes.place == Bytes::Place::away) fetch(bytes);
    leave(bytes);
    bytes.place = Bytes::Place::used;
    for (auto next = away_.lower_bound(bytes.order); next != away_.begin();) {
      Bytes& before = *std::prev(next)->second;
      const std::int64_t there = young_bytes_ + coming_bytes_;
      if (there > 0 && there + before.size > half_) break;
      fetch(before);
      next = away_.lower_bound(bytes.order);
    }
    return bytes.here;
  }

  void forget(const Bytes& bytes) {
    leave(bytes);
    if (const auto known = by_storage_.find(bytes.storage); known != by_storage_.end() && known->second == &bytes)
      by_storage_.erase(known);
  }

  std::int64_t home_bytes() const { return homes_ ? homes_->store().bytes() : 0; }

 private:
  std::int64_t bytes_per_rank(const Tensor& tensor) const {
    return count_ && tensor.is_distributed() ? count_(tensor) : SavedTensor::bytes_of(tensor)->bytes();
  }

  // Throws what a store says of a device with a folder, and of the host without.
  void ready_for(Device device) {
    if (!homes_) homes_.emplace(device, options_.folder);
    else if (!options_.folder.empty()) OffloadStore(device, options_.folder);
  }

  void leave(const Bytes& bytes) {
    if (bytes.place == Bytes::Place::young) young_.erase(bytes.order), young_bytes_ -= bytes.size;
    else if (bytes.place == Bytes::Place::away) away_.erase(bytes.order);
    else if (bytes.place == Bytes::Place::coming) coming_bytes_ -= bytes.size;
  }

  void evict_oldest() {
    Bytes& bytes = *young_.begin()->second;
    if (bytes.is_written()) {  // an Error of backward: nobody wants what is there now
      leave(bytes);
      bytes.place = Bytes::Place::used;
      return;
    }
    bytes.home = homes_->take(bytes.here.numel());
    evict({&bytes.home, 1}, bytes.here,
          {.device = bytes.here.device(), .in_flight = room_for(bytes.size), .activations = true});
    leave(bytes);
    bytes.here = Tensor();
    bytes.place = Bytes::Place::away;
    away_.emplace(bytes.order, &bytes);
  }

  // How many items may hold their bytes when this one is submitted: as many of the last ones as have room beside it,
  // and itself. Fetches count as well, so fewer may be left.
  int room_for(std::int64_t bytes) {
    while (!leaving_.empty() && leaving_bytes_ + bytes > half_) {
      leaving_bytes_ -= leaving_.front();
      leaving_.pop_front();
    }
    leaving_.push_back(bytes);
    leaving_bytes_ += bytes;
    return static_cast<int>(leaving_.size());
  }

  void fetch(Bytes& bytes) {
    const OffloadAttrs attrs{.device = homes_->store().device(), .in_flight = kUnbounded, .activations = true};
    Tensor here = sherd::fetch({&bytes.home, 1}, attrs, MemoryCategory::activations);
    leave(bytes);
    bytes.here = std::move(here);
    bytes.version = bytes.here.storage()->version();
    bytes.place = Bytes::Place::coming;
    coming_bytes_ += bytes.size;
  }

  const OffloadSavedOptions options_;
  const std::int64_t half_;
  const BytesPerRank count_;
  std::optional<OffloadHomes> homes_;
  std::uint64_t saved_ = 0;
  std::unordered_map<std::uint64_t, Bytes*> by_storage_;
  std::map<std::uint64_t, Bytes*> young_, away_;  // by order
  std::int64_t young_bytes_ = 0, coming_bytes_ = 0, leaving_bytes_ = 0;
  std::deque<std::int64_t> leaving_;  // sizes of the last evictions
};

OffloadSaved::Bytes::~Bytes() { of->forget(*this); }

class OffloadSaved::Packed final : public SavedPolicy::Packed {
 public:
  Packed(std::shared_ptr<Bytes> bytes, const Tensor& tensor)
      : bytes_(std::move(bytes)), meta_(tensor.local().meta()), shape_(tensor.shape()), layout_(tensor.layout()) {}

  Tensor unpack() override {
    const Tensor& here = bytes_->of->use(*bytes_);
    check(
        !bytes_->is_written(),
        "{} was saved for backward and has been written since (version {}, now {}): run backward before the optimizer "
        "step",
        meta_, bytes_->version, here.storage()->version());
    const Tensor local =
        Tensor::make(here.storage(), meta_.shape, meta_.strides, meta_.offset, meta_.dtype, here.device());
    return layout_ ? Tensor::distributed(shape_, layout_, local) : local;
  }

 private:
  const std::shared_ptr<Bytes> bytes_;
  const TensorMeta meta_;  // of the local tensor
  const Shape shape_;
  const LayoutRef layout_;  // null: it is plain
};

OffloadSaved::OffloadSaved(OffloadSavedOptions options, BytesPerRank count)
    : saves_(std::make_shared<Saves>(std::move(options), count)) {}
OffloadSaved::~OffloadSaved() = default;

std::unique_ptr<SavedPolicy::Packed> OffloadSaved::pack(const Tensor& tensor) {
  if (!saves_->moves(tensor)) return nullptr;
  return std::make_unique<Packed>(saves_->keep(tensor), tensor);
}

std::int64_t OffloadSaved::home_bytes() const { return saves_->home_bytes(); }

}  // namespace sherd
