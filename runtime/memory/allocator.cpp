#include "runtime/memory/allocator.h"

#include "runtime/tensor/error.h"

namespace sherd {

// Once abandoned, blocks are only counted: their memory goes with the allocator.
void Allocator::park(Foreign f) noexcept {
  bool destroy = false;
  {
    std::lock_guard lock(foreign_mutex_);
    foreign_.push_back(f);
    has_foreign_.store(true, std::memory_order_release);
    destroy = abandoned_ && live_blocks_ == static_cast<std::int64_t>(foreign_.size());
  }
  if (destroy) delete this;
}

void Allocator::drain_foreign() {
  std::lock_guard lock(foreign_mutex_);
  for (const Foreign& f : foreign_) take_back(f);
  foreign_.clear();
  has_foreign_.store(false, std::memory_order_relaxed);
}

void* Allocator::allocate_watched(std::int64_t bytes, MemoryCategory category) {
  void* block = nullptr;
  try {
    block = take(bytes, category);
  } catch (const OutOfMemory&) {
    watcher_->refused(bytes, category);
    throw;
  }
  ++live_blocks_;
  accounting_.add(category, bytes);
  watcher_->taken(block, bytes, category);
  return block;
}

void Allocator::keep_limit(std::int64_t bytes, MemoryCategory category) {
  if (ask_last_resort() && accounting_.total() + bytes <= limit_) return;
  if (watcher_) watcher_->refused(bytes, category);
  throw OutOfMemory(
      fmt::format("out of memory: {} asked for {}, {} of the limit of {} are in use\n  owners  {}\n  peak    {}",
                  format_bytes(bytes), name(category), format_bytes(accounting_.total()), format_bytes(limit_),
                  describe(accounting_.current()), format_bytes(accounting_.total_peak())));
}

void Allocator::abandon() {
  drain_foreign();
  bool destroy = false;
  {
    std::lock_guard lock(foreign_mutex_);
    abandoned_ = true;
    destroy = live_blocks_ == static_cast<std::int64_t>(foreign_.size());
  }
  if (destroy) delete this;
}

}  // namespace sherd
