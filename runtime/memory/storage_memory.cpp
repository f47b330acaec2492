#include "runtime/memory/storage_memory.h"

#include <utility>

#include "runtime/memory/rank_memory.h"
#include "runtime/memory/residency.h"
#include "runtime/tensor/error.h"

namespace sherd {

StorageMemory::StorageMemory(std::int64_t bytes, MemoryCategory category, Device device, RankMemory& rank)
    : guard_(static_cast<std::uint8_t>(kReleased | (rank.is_ghost() ? kGhost : 0))),
      category_(category),
      device_(device),
      bytes_(bytes),
      allocator_(&rank.allocator(device)),
      id_(rank.next_id()) {}

StorageMemory::StorageMemory(void* data, std::int64_t bytes, std::uint64_t id, std::function<void()> release)
    : data_(static_cast<std::byte*>(data)), bytes_(bytes), id_(id) {
  if (release) on_release_ = std::make_unique<std::function<void()>>(std::move(release));
}

StorageMemory::~StorageMemory() {
  keeps_memory_ = false;
  give_back_data();
  if (kept_) give_back_kept();
  if (on_release_) (*on_release_)();
}

void StorageMemory::retag(MemoryCategory category) {
  if (allocator_ && (data_ || kept_)) allocator_->retag(data_ ? data_ : kept_, bytes_, category_, category);
  category_ = category;
}

void StorageMemory::take_data() {
  if (bytes_ > 0) {
    data_ = static_cast<std::byte*>(allocator_->allocate(bytes_, category_));
    if (AllocationWatcher* const watcher = allocator_->watcher()) [[unlikely]]
      watcher->is_of(data_, *this);
  }
  guard_ &= static_cast<std::uint8_t>(~kReleased);
}

void StorageMemory::give_back_data() {
  if (!allocator_) return;
  guard_ |= kReleased;
  if (!data_) return;
  if (keeps_memory_) kept_ = data_;
  else allocator_->release(data_, bytes_, category_);
  data_ = nullptr;
}

void StorageMemory::give_back_kept() {
  if (std::byte* const memory = std::exchange(kept_, nullptr)) allocator_->release(memory, bytes_, category_);
}

void StorageMemory::set_keeps_memory(bool on) {
  keeps_memory_ = on;
  if (!on) give_back_kept();
}

void StorageMemory::restore_data() {
  if (is_present()) return;
  if (kept_) {
    data_ = std::exchange(kept_, nullptr);
    guard_ &= static_cast<std::uint8_t>(~kReleased);
    return;
  }
  // While a graph is recorded, memory of the device comes from the graph.
  if (bytes_ > 0 && device_.kind != Device::Kind::cpu) allocator_ = &RankMemory::current().allocator(device_);
  take_data();
}

// Only what has an owner comes and goes, and only units are owners.
void StorageMemory::refuse_released() const {
  fail(
      "{} is {}: was a gathered parameter kept past its reshard? Gather it by unshard(), or read the sharded parameter",
      describe(*this), name(is_ghost() ? Residency::ghost : Residency::released));
}

std::string describe(const StorageMemory& storage) {
  const RankMemory* const rank = RankMemory::current_or_null();
  const std::string known = rank && rank->storage_name ? rank->storage_name(storage) : std::string();
  return fmt::format("storage {} ({}{}{} of {})", storage.id(), known, known.empty() ? "" : ", ",
                     format_bytes(storage.bytes()), name(storage.category()));
}

}  // namespace sherd
