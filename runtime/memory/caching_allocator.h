#pragma once
// Host memory of one rank. Freed blocks stay in the free list of their size class, so that a steady training
// step neither takes memory from the system nor gives any back (first touch of fresh pages costs more than the
// kernels that use them). Large blocks are mapped with huge pages. What peers read, parameters and gradients, comes
// from memory that they can read in place if the rank's group offers some.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime/memory/accounting.h"

namespace sherd {

/// One per rank context; only the rank's thread allocates. release() from another thread parks the block until
/// the owner's next allocation. Lives until its context has let go and every block has come back.
class CachingAllocator {
 public:
  static constexpr std::size_t kAlignment = 64;

  CachingAllocator() = default;
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// `bytes` > 0, aligned to 64. Throws OutOfMemory over the limit, naming what was asked, the limit and the
  /// largest owners by category, and leaves everything as it was.
  void* allocate(std::int64_t bytes, MemoryCategory category);
  void release(void* block, std::int64_t bytes, MemoryCategory category) noexcept;

  Accounting& accounting() { return accounting_; }
  /// Limit on bytes in use by this rank; 0 = none.
  void set_limit(std::int64_t bytes) { limit_ = bytes; }
  std::int64_t limit() const { return limit_; }
  /// Fills released memory with 0xCB so that a use after release shows at once.
  void set_poison(bool on) { poison_ = on; }
  /// Parameters and gradients allocated from now on lie in `memory`, which the allocator divides; other memory serves
  /// when it is used up. No-op when it is in use already. Aligned to 2 MiB.
  void use_shared_heap(std::shared_ptr<std::byte> memory, std::size_t bytes);
  /// Bytes taken from the system so far, and how often: both stand still in a steady step.
  std::int64_t reserved_bytes() const { return reserved_bytes_; }
  std::int64_t system_calls() const { return system_calls_; }

  /// The context lets go. Frees itself once every block has come back.
  void abandon();

 private:
  ~CachingAllocator();
  // Blocks of one kind of memory: private pages, or a shared heap.
  struct Arena {
    std::vector<std::vector<void*>> free;  // by size class
    std::byte* slab = nullptr;
    std::int64_t slab_left = 0;
    std::shared_ptr<std::byte> heap;  // null: pages come from the system
    std::size_t heap_bytes = 0, heap_used = 0;
  };
  Arena& arena_for(std::size_t size_class, MemoryCategory category);
  Arena& arena_of(const void* block);
  void put_back(void* block, std::int64_t bytes);
  void* take_from_system(Arena& arena, std::int64_t class_bytes);
  void* carve(Arena& arena, std::int64_t class_bytes);
  void* map_chunk(Arena& arena, std::int64_t bytes);
  void* map_pages(std::int64_t bytes);
  [[noreturn]] void fail_system_memory(std::int64_t bytes) const;
  void drain_foreign();
  std::int64_t live_blocks_ = 0;
  struct Foreign {
    void* block;
    std::int64_t bytes;
    MemoryCategory category;
  };

  Arena private_;
  std::vector<Arena> shared_;  // the last one serves new blocks
  std::vector<std::pair<void*, std::size_t>> chunks_;
  Accounting accounting_;
  std::int64_t limit_ = 0, reserved_bytes_ = 0, system_calls_ = 0;
  bool poison_ = false, abandoned_ = false;
  std::atomic<bool> has_foreign_{false};
  std::mutex foreign_mutex_;
  std::vector<Foreign> foreign_;
};

/// Size class of a request: multiples of 64 up to 1 KiB, then four steps per power of two.
int size_class(std::int64_t bytes);
std::int64_t size_class_bytes(int index);

}  // namespace sherd
