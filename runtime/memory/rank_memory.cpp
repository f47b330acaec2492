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

std::uint64_t RankMemory::first_id() {
  static std::atomic<std::uint64_t> ranks{0};
  return ranks++ << kIdBits;
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
