// Size classes keep waste under 25 % and make reuse exact: a step that asks for the same sizes finds its own
// blocks again. Small classes are carved from 2 MiB slabs, larger ones get a mapping of their own.
#include "runtime/memory/caching_allocator.h"

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
constexpr std::int64_t kCarveLimit = 1 << 18;  // larger classes are mapped alone
constexpr std::size_t kPage = 4096;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

bool is_read_by_peers(MemoryCategory category) {
  return category == MemoryCategory::parameters || category == MemoryCategory::gradients;
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
  const auto index = static_cast<std::size_t>(size_class(bytes));
  Arena& arena = arena_for(index, category);
  if (index >= arena.free.size()) [[unlikely]]
    arena.free.resize(index + 1);
  if (auto& list = arena.free[index]; !list.empty()) {
    void* block = list.back();
    list.pop_back();
    return block;
  }
  return take_from_system(arena, size_class_bytes(static_cast<int>(index)));
}

void CachingAllocator::poison(void* block, std::int64_t bytes) noexcept {
  std::memset(block, 0xCB, static_cast<std::size_t>(bytes));
}

void CachingAllocator::use_shared_heap(std::shared_ptr<std::byte> memory, std::size_t bytes) {
  if (memory == nullptr || (!shared_.empty() && shared_.back().heap == memory)) return;
  shared_.emplace_back();
  shared_.back().heap = std::move(memory);
  shared_.back().heap_bytes = bytes;
}

CachingAllocator::Arena& CachingAllocator::arena_for(std::size_t size_class, MemoryCategory category) {
  if (shared_.empty() || !is_read_by_peers(category)) [[likely]]
    return private_;
  Arena& arena = shared_.back();
  if (size_class < arena.free.size() && !arena.free[size_class].empty()) return arena;
  const std::int64_t bytes = size_class_bytes(static_cast<int>(size_class));
  if (bytes <= arena.slab_left) return arena;
  return arena.heap_bytes - arena.heap_used >= round_up(static_cast<std::size_t>(bytes), kSlabBytes) ? arena : private_;
}

// A block's category may have changed since it was allocated; its address has not.
CachingAllocator::Arena& CachingAllocator::arena_of(const void* block) {
  for (Arena& arena : shared_) {
    const auto offset = reinterpret_cast<std::uintptr_t>(block) - reinterpret_cast<std::uintptr_t>(arena.heap.get());
    if (offset < arena.heap_bytes) return arena;
  }
  return private_;
}

void CachingAllocator::put_back(void* block, std::int64_t bytes) noexcept {
  Arena& arena = shared_.empty() ? private_ : arena_of(block);
  arena.free[static_cast<std::size_t>(size_class(bytes))].push_back(block);
}

void* CachingAllocator::take_from_system(Arena& arena, std::int64_t class_bytes) {
  return class_bytes <= kCarveLimit ? carve(arena, class_bytes) : map_chunk(arena, class_bytes);
}

void* CachingAllocator::carve(Arena& arena, std::int64_t class_bytes) {
  if (arena.slab_left < class_bytes) {  // the rest of the old slab is lost: at most one block of the largest class
    arena.slab = static_cast<std::byte*>(map_chunk(arena, kSlabBytes));
    arena.slab_left = kSlabBytes;
  }
  void* block = arena.slab;
  arena.slab += class_bytes;
  arena.slab_left -= class_bytes;
  return block;
}

void* CachingAllocator::map_chunk(Arena& arena, std::int64_t bytes) {
  void* block;
  if (arena.heap) {
    const std::size_t size = round_up(static_cast<std::size_t>(bytes), bytes >= kSlabBytes ? kSlabBytes : kPage);
    block = arena.heap.get() + arena.heap_used;
    // Pages come now, where a lack of memory can be reported. Systems that do not know how get them at first touch.
    if (::madvise(block, size, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) fail_system_memory(bytes);
    arena.heap_used += size;
  } else {
    block = map_pages(bytes);
    chunks_.emplace_back(block, static_cast<std::size_t>(bytes));
  }
  reserved_bytes_ += bytes;
  ++system_calls_;
  return block;
}

void CachingAllocator::fail_system_memory(std::int64_t bytes) {
  throw OutOfMemory(fmt::format("out of memory: the system refused {}; {} are in use\n  owners  {}",
                                format_bytes(bytes), format_bytes(accounting().total()),
                                describe(accounting().current())));
}

void* CachingAllocator::map_pages(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  // Huge pages need 2 MiB alignment: map more, keep the aligned part.
  const bool huge = bytes >= kSlabBytes;
  const std::size_t extra = huge ? static_cast<std::size_t>(kSlabBytes) : 0;
  void* raw = ::mmap(nullptr, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) fail_system_memory(bytes);
  auto address = reinterpret_cast<std::uintptr_t>(raw);
  if (huge) {
    const std::uintptr_t aligned = (address + extra - 1) & ~(static_cast<std::uintptr_t>(kSlabBytes) - 1);
    if (aligned > address) ::munmap(raw, aligned - address);
    const std::uintptr_t end = address + size + extra, used = aligned + ((size + 4095) & ~std::size_t{4095});
    if (end > used) ::munmap(reinterpret_cast<void*>(used), end - used);
    address = aligned;
    ::madvise(reinterpret_cast<void*>(address), size, MADV_HUGEPAGE);
  }
  return reinterpret_cast<void*>(address);
}

CachingAllocator::~CachingAllocator() {
  for (auto [block, size] : chunks_) ::munmap(block, size);
}

}  // namespace sherd
