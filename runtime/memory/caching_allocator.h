#pragma once
// Host memory of one rank. What is freed stays here, so that a steady training step neither takes memory from the
// system nor gives any back (first touch of fresh pages costs more than the kernels that use them). Small blocks wait
// in the free list of their size class; large ones are cut from ranges of huge pages, where any freed place serves any
// request that fits. What peers read, parameters, gradients and what collectives work in, comes from memory that they
// can read in place if the rank's group offers some.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/memory/allocator.h"
#include "runtime/memory/extents.h"

namespace sherd {

/// One per rank context. Blocks are aligned to 64.
class CachingAllocator final : public Allocator {
 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr int kNumSmallClasses = 48;  ///< size classes up to 256 KiB

  CachingAllocator() = default;

  /// What peers read and is allocated from now on lies in `memory`, which the allocator divides; other memory serves
  /// when it is used up. No-op when it is in use already. Aligned to 2 MiB.
  void use_shared_heap(std::shared_ptr<std::byte> memory, std::size_t bytes);

 private:
  ~CachingAllocator() override;
  void* take(std::int64_t bytes, MemoryCategory category) override;
  void put_back(void* block, std::int64_t bytes) noexcept override;
  void poison(void* block, std::int64_t bytes) noexcept override;
  // A range of addresses, of which the first bytes have pages.
  struct Region {
    std::byte* base;
    std::int64_t bytes;
    Extents extents;
    std::int64_t committed = 0;
  };
  // One kind of memory: private pages, or a shared heap.
  struct Arena {
    std::vector<Region> regions;
    std::array<std::vector<void*>, kNumSmallClasses> free;  // small blocks, by size class
    std::byte* slab = nullptr;
    std::int64_t slab_left = 0;
    std::shared_ptr<std::byte> heap;  // null: pages come from the system
  };
  void* take_from(Arena& arena, std::int64_t bytes);
  void* carve(Arena& arena, std::int64_t class_bytes);
  void* take_pages(Arena& arena, std::int64_t bytes);
  void commit(Arena& arena, Region& region, std::int64_t end);
  Region& add_region(Arena& arena, std::int64_t bytes);
  std::pair<Arena*, Region*> place_of(const void* block);
  [[noreturn]] void fail_system_memory(std::int64_t bytes);

  Arena step_, lasting_;       // what comes and goes within a step; parameters and optimizer state
  std::vector<Arena> shared_;  // the last one serves new blocks
};

/// Size class of a request: multiples of 64 up to 1 KiB, then four steps per power of two.
int size_class(std::int64_t bytes);
std::int64_t size_class_bytes(int index);

}  // namespace sherd
