#include "runtime/tensor/storage.h"

#include "runtime/exec/context.h"
#include "runtime/tensor/pool.h"

namespace sherd {

Ref<Storage> Storage::released(std::int64_t bytes, MemoryCategory category) {
  RankContext& context = RankContext::current();
  Ref<Storage> storage = Ref<Storage>::fresh(Pool<Storage>::make());
  storage->bytes_ = bytes;
  storage->category_ = category;
  storage->allocator_ = &context.allocator();
  storage->id_ = context.next_id();
  return storage;
}

Ref<Storage> Storage::allocate(std::int64_t bytes, MemoryCategory category) {
  Ref<Storage> storage = released(bytes, category);
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
  if (!allocator_ || !data_) return;
  allocator_->release(data_, bytes_, category_);
  data_ = nullptr;
}

void Storage::restore_data() {
  if (data_ || bytes_ == 0) return;
  data_ = static_cast<std::byte*>(allocator_->allocate(bytes_, category_));
}

}  // namespace sherd
