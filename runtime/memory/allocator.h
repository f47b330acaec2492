#pragma once
// What every allocator of a rank does: accounts by category, keeps the limit, takes back what other threads drop, and
// lives until its last block has come back. Where blocks come from is the subclass's: host pages (caching_allocator.h),
// the memory of a device (device_allocator.h).
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/memory/accounting.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

/// The least multiple of `unit` that is not below `bytes`.
constexpr std::int64_t round_up(std::int64_t bytes, std::int64_t unit) { return (bytes + unit - 1) / unit * unit; }

class StorageMemory;

/// Told of every change of an allocator's accounts, after it, on the thread that allocates (exec/memory_log.h). Blocks
/// are known by their addresses while they are taken.
class AllocationWatcher {
 public:
  /// `block` is null for bytes that are only charged, fewer of them if `bytes` is negative.
  virtual void taken(const void* block, std::int64_t bytes, MemoryCategory category) noexcept = 0;
  virtual void given_back(const void* block, std::int64_t bytes, MemoryCategory category) noexcept = 0;
  virtual void retagged(const void* block, std::int64_t bytes, MemoryCategory from, MemoryCategory to) noexcept = 0;
  /// The block that was taken last is `storage`'s.
  virtual void is_of(const void* block, const StorageMemory& storage) noexcept = 0;
  /// So many bytes are about to be refused.
  virtual void refused(std::int64_t bytes, MemoryCategory category) noexcept = 0;

 protected:
  ~AllocationWatcher() = default;
};

/// Holds bytes that it can do without, as recordings of device work, and lets go of them when there are no others.
class GivesBack {
 public:
  /// On the thread that allocates. False: it held nothing.
  virtual bool give_back() noexcept = 0;

 protected:
  ~GivesBack() = default;
};

/// Only the thread that made it allocates. release() from another thread parks the block until the owner's next
/// allocation.
class Allocator : NoCopy {
 public:
  /// `bytes` > 0. Throws OutOfMemory over the limit or when there is no more memory, naming what was asked, the limit
  /// and the largest owners by category, and leaves everything as it was.
  void* allocate(std::int64_t bytes, MemoryCategory category) {
    if (has_foreign_.load(std::memory_order_acquire)) [[unlikely]]
      drain_foreign();
    if (limit_ > 0 && accounting_.total() + bytes > limit_) [[unlikely]]
      keep_limit(bytes, category);
    if (watcher_) [[unlikely]]
      return allocate_watched(bytes, category);
    void* block = take(bytes, category);
    ++live_blocks_;
    accounting_.add(category, bytes);
    return block;
  }
  void release(void* block, std::int64_t bytes, MemoryCategory category) noexcept {
    if (std::this_thread::get_id() != owner_ || abandoned_) [[unlikely]]
      return park({block, bytes, category});
    take_back({block, bytes, category});
  }
  /// Moves a block to another account.
  void retag(const void* block, std::int64_t bytes, MemoryCategory from, MemoryCategory to) noexcept {
    accounting_.retag(from, to, bytes);
    if (watcher_) [[unlikely]]
      watcher_->retagged(block, bytes, from, to);
  }
  /// Bytes that come from elsewhere and belong on this account; negative ones leave it. No limit holds for them.
  void charge(MemoryCategory category, std::int64_t bytes) noexcept {
    accounting_.add(category, bytes);
    if (watcher_) [[unlikely]]
      watcher_->taken(nullptr, bytes, category);
  }
  /// Null: nobody. On the thread that allocates.
  void set_watcher(AllocationWatcher* watcher) { watcher_ = watcher; }
  AllocationWatcher* watcher() const { return watcher_; }

  Accounting& accounting() { return accounting_; }
  /// Asked once before an allocation is refused. Null: nobody.
  void set_last_resort(GivesBack* holder) { last_resort_ = holder; }
  /// Limit on bytes in use by this rank; 0 = none.
  void set_limit(std::int64_t bytes) { limit_ = bytes; }
  std::int64_t limit() const { return limit_; }
  /// Fills released memory with 0xCB so that a use after release shows at once.
  void set_poison(bool on) { poison_ = on; }
  /// Bytes taken from the system so far, and how often: both stand still in a steady step.
  std::int64_t reserved_bytes() const { return reserved_bytes_; }
  std::int64_t system_calls() const { return system_calls_; }

  /// The owner lets go. Frees itself once every block has come back.
  void abandon();

 protected:
  virtual ~Allocator() = default;
  /// A block of at least `bytes`, or OutOfMemory.
  virtual void* take(std::int64_t bytes, MemoryCategory category) = 0;
  virtual void put_back(void* block, std::int64_t bytes) noexcept = 0;
  virtual void poison(void* block, std::int64_t bytes) noexcept = 0;
  bool ask_last_resort() noexcept { return last_resort_ && last_resort_->give_back(); }

  std::int64_t reserved_bytes_ = 0, system_calls_ = 0;

 private:
  struct Foreign {
    void* block;
    std::int64_t bytes;
    MemoryCategory category;
  };
  void take_back(Foreign f) noexcept {
    if (poison_) [[unlikely]]
      poison(f.block, f.bytes);
    put_back(f.block, f.bytes);
    --live_blocks_;
    accounting_.add(f.category, -f.bytes);
    if (watcher_) [[unlikely]]
      watcher_->given_back(f.block, f.bytes, f.category);
  }
  void* allocate_watched(std::int64_t bytes, MemoryCategory category);
  void park(Foreign f) noexcept;
  void drain_foreign();
  void keep_limit(std::int64_t bytes, MemoryCategory category);

  Accounting accounting_;
  std::int64_t limit_ = 0, live_blocks_ = 0;
  AllocationWatcher* watcher_ = nullptr;
  GivesBack* last_resort_ = nullptr;
  bool poison_ = false, abandoned_ = false;
  const std::thread::id owner_ = std::this_thread::get_id();
  std::atomic<bool> has_foreign_{false};
  std::mutex foreign_mutex_;
  std::vector<Foreign> foreign_;
};

}  // namespace sherd
