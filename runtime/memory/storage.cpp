#include "runtime/memory/storage.h"

#include "runtime/exec/context.h"
#include "runtime/exec/hazards.h"
#include "runtime/exec/stream.h"
#include "runtime/exec/trace.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/pool.h"

namespace sherd {

Ref<Storage> Storage::released(std::int64_t bytes, MemoryCategory category, Device device) {
  if (bytes < 0) [[unlikely]]
    fail("a storage cannot have {} bytes", bytes);
  RankContext& context = RankContext::current();
  Ref<Storage> storage = Ref<Storage>::fresh(Pool<Storage>::make());
  storage->bytes_ = bytes;
  storage->category_ = category;
  storage->device_ = device;
  storage->allocator_ = &context.allocator(device);
  storage->id_ = context.next_id();
  if (context.hazards) storage->guard_ = kWatched;
  return storage;
}

Ref<Storage> Storage::allocate(std::int64_t bytes, MemoryCategory category, Device device) {
  Ref<Storage> storage = released(bytes, category, device);
  storage->restore_data();
  return storage;
}

Ref<Storage> Storage::borrow(void* data, std::int64_t bytes, std::function<void()> release) {
  Ref<Storage> storage = Ref<Storage>::fresh(Pool<Storage>::make());
  storage->data_ = static_cast<std::byte*>(data);
  storage->bytes_ = bytes;
  storage->id_ = RankContext::current().next_id();
  if (release) storage->on_release_ = std::make_unique<std::function<void()>>(std::move(release));
  return storage;
}

void Storage::destroy(Storage* storage) { Pool<Storage>::destroy(storage); }

Storage::~Storage() {
  release_data();
  if (on_release_) (*on_release_)();
}

void Storage::retag(MemoryCategory category) {
  if (allocator_ && data_) allocator_->accounting().retag(category_, category, bytes_);
  category_ = category;
}

void Storage::release_data() {
  if (guard_) settle();
  if (!allocator_ || !data_) return;
  allocator_->release(data_, bytes_, category_);
  data_ = nullptr;
}

// Bytes that are handed on to a reader before anybody has waited for their writer have its error all the same: a
// reader of bytes that failed fails with them.
void Storage::lend(const Event& event, bool writes) {
  lent_ = event;
  guard_ = static_cast<std::uint8_t>(kLent | (writes ? kLentForWriting : 0) | (guard_ & (kLentForWriting | kWatched)));
  if (RankContext::current().hazards) guard_ |= kWatched;
}

void Storage::end_loan() const {
  lent_ = {};
  guard_ &= kWatched;
}

// An access by the rank's thread. A missing edge is reported before the wait that would hide it.
void Storage::touch() const {
  RankContext* context = RankContext::current_or_null();
  if (!context) return lent_.wait();
  HazardChecker* hazards = (guard_ & kWatched) ? context->hazards : nullptr;
  const bool is_removed =
      hazards && is_lent() && hazards->is_removed(StreamEdge::touch, lent_.stream()->kind(), is_lent_for_writing());
  if (is_removed) hazards->touched(*this);
  if (is_lent()) {
    if (is_lent_for_writing()) {
      lent_.wait();  // an error stays with the bytes
      if (context->trace) context->trace->consume(Event::flow(lent_.stream()->kind(), lent_.sequence()));
    } else {
      lent_.settle();
    }
    end_loan();
  }
  if (hazards && !is_removed) hazards->touched(*this);
}

void Storage::settle() noexcept {
  RankContext* context = RankContext::current_or_null();
  HazardChecker* hazards = context && (guard_ & kWatched) ? context->hazards : nullptr;
  const bool is_removed =
      hazards && is_lent() && hazards->is_removed(StreamEdge::release, lent_.stream()->kind(), is_lent_for_writing());
  if (is_removed) hazards->released(*this);
  if (is_lent()) {
    lent_.settle();
    end_loan();
  }
  if (hazards && !is_removed) hazards->released(*this);
}

void Storage::restore_data() {
  if (data_ || bytes_ == 0) return;
  // While a graph is recorded, memory of the device comes from the graph.
  if (device_.kind != Device::Kind::cpu) allocator_ = &RankContext::current().allocator(device_);
  data_ = static_cast<std::byte*>(allocator_->allocate(bytes_, category_));
}

}  // namespace sherd
