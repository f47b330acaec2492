#include "runtime/memory/storage.h"

#include <algorithm>
#include <utility>

#include "runtime/memory/let_go.h"
#include "runtime/memory/rank_memory.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/pool.h"

namespace sherd {

Ref<Storage> Storage::released(std::int64_t bytes, MemoryCategory category, Device device) {
  if (bytes < 0) [[unlikely]]
    fail("a storage cannot have {} bytes", bytes);
  return Ref<Storage>::fresh(Pool<Storage>::make(bytes, category, device, RankMemory::current()));
}

Ref<Storage> Storage::allocate(std::int64_t bytes, MemoryCategory category, Device device) {
  Ref<Storage> storage = released(bytes, category, device);
  storage->take_data();
  return storage;
}

Ref<Storage> Storage::borrow(void* data, std::int64_t bytes, std::function<void()> release) {
  const std::uint64_t id = RankMemory::current().next_id();
  return Ref<Storage>::fresh(Pool<Storage>::make(data, bytes, id, std::move(release)));
}

void Storage::destroy(Storage* storage) { Pool<Storage>::destroy(storage); }

Storage::Storage(std::int64_t bytes, MemoryCategory category, Device device, RankMemory& rank)
    : StorageMemory(bytes, category, device, rank) {
  if (rank.watcher) guard_ |= kWatched;
}

Storage::~Storage() {
  if (guard_ & ~kGhost) [[unlikely]]
    settle();
}

void Storage::release_data() {
  if (guard_ & ~kGhost) [[unlikely]] {
    settle();
    if (!is_present()) return;
  }
  give_back_data();
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
  if (residency() == Residency::ghost && bytes() > 0) fail("{} has no bytes: this rank is a ghost", describe(*this));
  check_present();
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
    last_write_.consume(device());  // an error stays with the bytes
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
    last_write_.consume(device());
    for (const Event& read : last_reads())
      if (!let_go(read, *this)) read.outlast(device());
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
    last_write_.settle(device());
    for (const Event& read : last_reads())
      if (!let_go(read, *this)) read.outlast(device());
    forget_loans();
  }
  if (watcher && !looks_first) watcher->released(*this);
}

}  // namespace sherd
