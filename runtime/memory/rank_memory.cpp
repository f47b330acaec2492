#include "runtime/memory/rank_memory.h"

#include <atomic>

#include "runtime/memory/ghost_allocator.h"

namespace sherd {

namespace {
Allocator* make_allocator(RankOptions options) {
  if (options.ghost) return new GhostAllocator;
  return new CachingAllocator;
}
}  // namespace

void RankMemory::take_block() {
  static std::atomic<std::uint64_t> taken{0};
  const std::uint64_t block = taken++;
  check(block <= kLastOfBlock, "this process has made 2^32 ranks: make a RankScope once per thread, not per step");
  last_id_ = block * (kLastOfBlock + 1) + 1;
  blocks_.push_back(last_id_ & ~kLastOfBlock);
}

RankMemory::RankMemory(RankOptions options) : is_ghost_(options.ghost), allocator_(make_allocator(options)) {}

RankMemory::~RankMemory() {
  allocator_->abandon();
  for (const auto& [device, allocator] : ghost_devices_) allocator->abandon();
}

Allocator& RankMemory::ghost_allocator(Device device) {
  for (const auto& [known, allocator] : ghost_devices_)
    if (known == device) return *allocator;
  return *ghost_devices_.emplace_back(device, new GhostAllocator).second;
}

}  // namespace sherd
