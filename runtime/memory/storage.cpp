#include "runtime/memory/storage.h"

#include <algorithm>
#include <utility>

#include "runtime/memory/let_go.h"
#include "runtime/memory/rank_memory.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/pool.h"

namespace sherd {

namespace {
std::byte* take_memory(Allocator& allocator, const Storage& storage) {
  auto* const block = static_cast<std::byte*>(allocator.allocate(storage.bytes(), storage.category()));
  if (AllocationWatcher* const watcher = allocator.watcher()) [[unlikely]]
    watcher->is_of(block, storage);
  return block;
}
}  // namespace

Ref<Storage> Storage::released(std::int64_t bytes, MemoryCategory category, Device device) {
  if (bytes < 0) [[unlikely]]
    fail("a storage cannot have {} bytes", bytes);
  RankMemory& rank = RankMemory::current();
  Allocator& allocator = rank.allocator(device);
  Ref<Storage> storage = Ref<Storage>::fresh(Pool<Storage>::make(bytes, rank.next_id()));
  storage->category_ = category;
  storage->device_ = device;
  storage->allocator_ = &allocator;
  storage->guard_ = kReleased;
  if (rank.watcher) storage->guard_ |= kWatched;
  if (rank.is_ghost()) [[unlikely]]
    storage->guard_ |= kGhost;
  return storage;
}

Ref<Storage> Storage::allocate(std::int64_t bytes, MemoryCategory category, Device device) {
  Ref<Storage> storage = released(bytes, category, device);
  if (bytes > 0) storage->data_ = take_memory(*storage->allocator_, *storage);
  storage->guard_ &= static_cast<std::uint8_t>(~kReleased);
  return storage;
}

Ref<Storage> Storage::borrow(void* data, std::int64_t bytes, std::function<void()> release) {
  Ref<Storage> storage = Ref<Storage>::fresh(Pool<Storage>::make(bytes, RankMemory::current().next_id()));
  storage->data_ = static_cast<std::byte*>(data);
  if (release) storage->on_release_ = std::make_unique<std::function<void()>>(std::move(release));
  return storage;
}

void Storage::destroy(Storage* storage) { Pool<Storage>::destroy(storage); }

Storage::~Storage() {
  keeps_memory_ = false;
  release_data();
  if (kept_) give_back_kept();
  if (on_release_) (*on_release_)();
}

void Storage::retag(MemoryCategory category) {
  if (allocator_ && (data_ || kept_)) allocator_->retag(data_ ? data_ : kept_, bytes_, category_, category);
  category_ = category;
}

void Storage::release_data() {
  if (guard_ & ~kGhost) [[unlikely]] {
    settle();
    if (!is_present()) return;
  }
  if (!allocator_) return;
  guard_ |= kReleased;
  if (!data_) return;
  if (keeps_memory_) kept_ = data_;
  else allocator_->release(data_, bytes_, category_);
  data_ = nullptr;
}

void Storage::give_back_kept() {
  if (std::byte* const memory = std::exchange(kept_, nullptr)) allocator_->release(memory, bytes_, category_);
}

void Storage::set_keeps_memory(bool on) {
  keeps_memory_ = on;
  if (!on) give_back_kept();
}

// A reader does not hide the write before it: bytes that failed to be written raise the error whoever asks for them.
void Storage::lend(const Event& event, bool writes) {
  if (writes) {
    last_write_ = event;
    if (last_reads_) last_reads_->clear();
    guard_ = static_cast<std::uint8_t>(kBeingWritten | (guard_ & kStays));
  } else {
    if (!last_reads_) last_reads_ = std::make_unique<std::vector<Event>>();
    const auto same_queue = std::ranges::find(*last_reads_, event.queue(), &Event::queue);
    if (same_queue != last_reads_->end()) *same_queue = event;
    else last_reads_->push_back(event);
    guard_ |= kBeingRead;
  }
  if (RankMemory::current().watcher) guard_ |= kWatched;
}

void Storage::forget_loans() const {
  last_write_ = {};
  if (last_reads_) last_reads_->clear();
  guard_ &= kStays;
}

void Storage::check_bytes() const {
  if (residency() == Residency::ghost && bytes_ > 0) fail("{} has no bytes: this rank is a ghost", describe(*this));
  check_present();
}

// Only what has an owner comes and goes, and only units are owners.
void Storage::refuse_released() const {
  fail(
      "{} is {}: was a gathered parameter kept past its reshard? Gather it by unshard(), or read the sharded parameter",
      describe(*this), name(residency()));
}

void Storage::prepare_read() const {
  check_bytes();
  wait_to_read();
}

void Storage::prepare_write() const {
  check_bytes();
  wait_to_write();
}

// An access by the rank's thread. A missing edge is reported before the wait that would hide it.
void Storage::await_write() const {
  check_present();
  RankMemory* const rank = RankMemory::current_or_null();
  if (!rank) return last_write_.wait();
  AccessWatcher* const watcher = (guard_ & kWatched) ? rank->watcher : nullptr;
  const bool looks_first = watcher && watcher->looks_before_wait(*this, AccessWatcher::Kind::read);
  if (looks_first) watcher->accessed(*this, AccessWatcher::Kind::read);
  if (guard_ & kBeingWritten) {
    last_write_.consume(device_);  // an error stays with the bytes
    last_write_ = {};
    guard_ &= static_cast<std::uint8_t>(~kBeingWritten);
  }
  if (watcher && !looks_first) watcher->accessed(*this, AccessWatcher::Kind::read);
}

void Storage::await_all() const {
  check_present();
  RankMemory* const rank = RankMemory::current_or_null();
  if (!rank) {
    last_write_.wait();
    for (const Event& read : last_reads()) read.outlast();
    return;
  }
  AccessWatcher* const watcher = (guard_ & kWatched) ? rank->watcher : nullptr;
  const bool looks_first = watcher && watcher->looks_before_wait(*this, AccessWatcher::Kind::write);
  if (looks_first) watcher->accessed(*this, AccessWatcher::Kind::write);
  if (is_lent()) {
    last_write_.consume(device_);
    for (const Event& read : last_reads())
      if (!let_go(read, *this)) read.outlast(device_);
    forget_loans();
  }
  if (watcher && !looks_first) watcher->accessed(*this, AccessWatcher::Kind::write);
}

void Storage::settle() noexcept {
  RankMemory* const rank = RankMemory::current_or_null();
  AccessWatcher* const watcher = rank && (guard_ & kWatched) ? rank->watcher : nullptr;
  const bool looks_first = watcher && watcher->looks_before_wait(*this, AccessWatcher::Kind::release);
  if (looks_first) watcher->released(*this);
  if (is_lent()) {
    last_write_.settle(device_);
    for (const Event& read : last_reads())
      if (!let_go(read, *this)) read.outlast(device_);
    forget_loans();
  }
  if (watcher && !looks_first) watcher->released(*this);
}

void Storage::restore_data() {
  if (is_present()) return;
  if (kept_) {
    data_ = std::exchange(kept_, nullptr);
  } else if (bytes_ > 0) {
    // While a graph is recorded, memory of the device comes from the graph.
    if (device_.kind != Device::Kind::cpu) allocator_ = &RankMemory::current().allocator(device_);
    data_ = take_memory(*allocator_, *this);
  }
  guard_ &= static_cast<std::uint8_t>(~kReleased);
}

std::string describe(const Storage& storage) {
  const RankMemory* const rank = RankMemory::current_or_null();
  const std::string known = rank && rank->storage_name ? rank->storage_name(storage) : std::string();
  return fmt::format("storage {} ({}{}{} of {})", storage.id(), known, known.empty() ? "" : ", ",
                     format_bytes(storage.bytes()), name(storage.category()));
}

}  // namespace sherd
