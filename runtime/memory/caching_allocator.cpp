// Small blocks have size classes, which keep waste under 25 % and make reuse exact, and are carved from 2 MiB slabs.
// Slabs and large blocks are cut from regions: address ranges reserved without memory, whose pages come as their top
// rises. Lasting blocks have regions of their own: among a step's they would split the free places for good.
#include "runtime/memory/caching_allocator.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>

#include "runtime/tensor/error.h"

namespace sherd {

namespace {
constexpr std::int64_t kFineLimit = 1024, kFineStep = 64;
constexpr int kFineClasses = static_cast<int>(kFineLimit / kFineStep);
constexpr std::int64_t kSlabBytes = 2 << 20;   // one huge page
constexpr std::int64_t kCarveLimit = 1 << 18;  // larger blocks are whole pages
constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kRegionBytes = std::int64_t{1} << 30;  // of addresses
constexpr std::int64_t kMostBytes = std::int64_t{1} << 47;    // more than any address space here

bool is_read_by_peers(MemoryCategory category) {
  return category == MemoryCategory::parameters || category == MemoryCategory::gradients ||
         category == MemoryCategory::communication;
}
bool is_lasting(MemoryCategory category) {
  return category == MemoryCategory::parameters || category == MemoryCategory::optimizer;
}

// Addresses without memory, aligned to huge pages; null if the system has none.
std::byte* reserve(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes), align = static_cast<std::size_t>(kSlabBytes);
  void* raw = ::mmap(nullptr, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* first = static_cast<std::byte*>(raw);
  const std::size_t before = (align - reinterpret_cast<std::uintptr_t>(raw) % align) % align;
  if (before > 0) ::munmap(first, before);
  ::munmap(first + before + size, align - before);
  ::madvise(first + before, size, MADV_HUGEPAGE);
  return first + before;
}
}  // namespace

int size_class(std::int64_t bytes) {
  if (bytes <= kFineLimit) return static_cast<int>((bytes + kFineStep - 1) / kFineStep) - 1;
  const auto u = static_cast<std::uint64_t>(bytes - 1);
  const int octave = static_cast<int>(std::bit_width(u)) - 1;      // 2^octave <= bytes-1 < 2^(octave+1)
  const int quarter = static_cast<int>((u >> (octave - 2)) & 3u);  // which quarter of the octave
  return kFineClasses + (octave - 10) * 4 + quarter;
}

std::int64_t size_class_bytes(int index) {
  if (index < kFineClasses) return (index + 1) * kFineStep;
  const int octave = 10 + (index - kFineClasses) / 4;
  const int quarter = (index - kFineClasses) % 4;
  return (std::int64_t{1} << octave) + (quarter + 1) * (std::int64_t{1} << (octave - 2));
}

void* CachingAllocator::take(std::int64_t bytes, MemoryCategory category) {
  if (!shared_.empty() && is_read_by_peers(category))
    if (void* block = take_from(shared_.back(), bytes)) return block;
  return take_from(is_lasting(category) ? lasting_ : step_, bytes);
}

void CachingAllocator::poison(void* block, std::int64_t bytes) noexcept {
  std::memset(block, 0xCB, static_cast<std::size_t>(bytes));
}

void CachingAllocator::use_shared_heap(std::shared_ptr<std::byte> memory, std::size_t bytes) {
  if (memory == nullptr || (!shared_.empty() && shared_.back().heap == memory)) return;
  Arena& arena = shared_.emplace_back();
  const auto size = static_cast<std::int64_t>(bytes);
  arena.regions.push_back({memory.get(), size, Extents(size)});
  arena.heap = std::move(memory);
}

// By address: a block's category may have changed since it was allocated.
std::pair<CachingAllocator::Arena*, CachingAllocator::Region*> CachingAllocator::place_of(const void* block) {
  const auto find = [block](Arena& arena) -> Region* {
    for (Region& region : arena.regions)
      if (reinterpret_cast<std::uintptr_t>(block) - reinterpret_cast<std::uintptr_t>(region.base) <
          static_cast<std::uintptr_t>(region.bytes))
        return &region;
    return nullptr;
  };
  if (Region* region = find(step_)) return {&step_, region};
  if (Region* region = find(lasting_)) return {&lasting_, region};
  for (Arena& arena : shared_)
    if (Region* region = find(arena)) return {&arena, region};
  return {};
}

void CachingAllocator::put_back(void* block, std::int64_t bytes) noexcept {
  const auto [arena, region] = place_of(block);
  if (bytes <= kCarveLimit) arena->free[static_cast<std::size_t>(size_class(bytes))].push_back(block);
  else region->extents.give(static_cast<std::byte*>(block) - region->base, round_up(bytes, kPage));
}

// Null if the arena is a heap that is used up.
void* CachingAllocator::take_from(Arena& arena, std::int64_t bytes) {
  if (bytes > kMostBytes) fail_system_memory(bytes);
  if (bytes > kCarveLimit) return take_pages(arena, round_up(bytes, kPage));
  const int index = size_class(bytes);
  auto& list = arena.free[static_cast<std::size_t>(index)];
  if (list.empty()) return carve(arena, size_class_bytes(index));
  void* block = list.back();
  list.pop_back();
  return block;
}

void* CachingAllocator::carve(Arena& arena, std::int64_t class_bytes) {
  if (arena.slab_left < class_bytes) {  // the rest of the old slab is lost: at most one block of the largest class
    void* slab = take_pages(arena, kSlabBytes);
    if (slab == nullptr) return nullptr;
    arena.slab = static_cast<std::byte*>(slab);
    arena.slab_left = kSlabBytes;
  }
  void* block = arena.slab;
  arena.slab += class_bytes;
  arena.slab_left -= class_bytes;
  return block;
}

void* CachingAllocator::take_pages(Arena& arena, std::int64_t bytes) {
  const auto from = [&](Region& region) -> void* {
    const std::int64_t offset = region.extents.take(bytes);
    if (offset == Extents::kNone) return nullptr;
    try {
      commit(arena, region, offset + bytes);
    } catch (...) {
      region.extents.give(offset, bytes);
      if (region.committed == 0 && !arena.heap) {  // the one just added
        ::munmap(region.base, static_cast<std::size_t>(region.bytes));
        arena.regions.pop_back();
      }
      throw;
    }
    return region.base + offset;
  };
  for (Region& region : arena.regions)
    if (void* block = from(region)) return block;
  return arena.heap ? nullptr : from(add_region(arena, bytes));
}

// Pages for everything below `end`. Those of a heap come now, where a lack of memory can be reported; systems that do
// not know how bring them at first touch, as those of private memory.
void CachingAllocator::commit(Arena& arena, Region& region, std::int64_t end) {
  if (end <= region.committed) return;
  const std::int64_t more = std::min(round_up(end, kSlabBytes), region.bytes) - region.committed;
  std::byte* first = region.base + region.committed;
  const auto size = static_cast<std::size_t>(more);
  if (arena.heap ? ::madvise(first, size, MADV_POPULATE_WRITE) != 0 && errno != EINVAL
                 : ::mprotect(first, size, PROT_READ | PROT_WRITE) != 0)
    fail_system_memory(more);
  region.committed += more;
  reserved_bytes_ += more;
  ++system_calls_;
}

CachingAllocator::Region& CachingAllocator::add_region(Arena& arena, std::int64_t bytes) {
  std::int64_t size = std::max(round_up(bytes, kSlabBytes), kRegionBytes);
  std::byte* base = reserve(size);
  if (base == nullptr) base = reserve(size = round_up(bytes, kSlabBytes));  // addresses may be limited, too
  if (base == nullptr) fail_system_memory(bytes);
  return arena.regions.emplace_back(Region{base, size, Extents(size)});
}

void CachingAllocator::fail_system_memory(std::int64_t bytes) {
  throw OutOfMemory(fmt::format("out of memory: the system refused {}; {} are in use\n  owners  {}",
                                format_bytes(bytes), format_bytes(accounting().total()),
                                describe(accounting().current())));
}

CachingAllocator::~CachingAllocator() {
  for (const Arena* arena : {&step_, &lasting_})
    for (const Region& region : arena->regions) ::munmap(region.base, static_cast<std::size_t>(region.bytes));
}

}  // namespace sherd
