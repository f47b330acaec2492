#pragma once
// Host memory of one rank. Freed blocks stay in the free list of their size class, so that a steady training
// step neither takes memory from the system nor gives any back (first touch of fresh pages costs more than the
// kernels that use them). Large blocks are mapped with huge pages. What peers read, parameters and gradients, comes
// from memory that they can read in place if the rank's group offers some.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/memory/allocator.h"

namespace sherd {

/// One per rank context. Blocks are aligned to 64.
class CachingAllocator final : public Allocator {
 public:
  static constexpr std::size_t kAlignment = 64;

  CachingAllocator() = default;

  /// Parameters and gradients allocated from now on lie in `memory`, which the allocator divides; other memory serves
  /// when it is used up. No-op when it is in use already. Aligned to 2 MiB.
  void use_shared_heap(std::shared_ptr<std::byte> memory, std::size_t bytes);

 private:
  ~CachingAllocator() override;
  void* take(std::int64_t bytes, MemoryCategory category) override;
  void put_back(void* block, std::int64_t bytes) noexcept override;
  void poison(void* block, std::int64_t bytes) noexcept override;
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
  void* take_from_system(Arena& arena, std::int64_t class_bytes);
  void* carve(Arena& arena, std::int64_t class_bytes);
  void* map_chunk(Arena& arena, std::int64_t bytes);
  void* map_pages(std::int64_t bytes);
  [[noreturn]] void fail_system_memory(std::int64_t bytes);

  Arena private_;
  std::vector<Arena> shared_;  // the last one serves new blocks
  std::vector<std::pair<void*, std::size_t>> chunks_;
};

/// Size class of a request: multiples of 64 up to 1 KiB, then four steps per power of two.
int size_class(std::int64_t bytes);
std::int64_t size_class_bytes(int index);

}  // namespace sherd
