// Size classes keep waste under 25 % and make reuse exact: a step that asks for the same sizes finds its own
// blocks again. Small classes are carved from 2 MiB slabs, larger ones get a mapping of their own.
#include "runtime/memory/caching_allocator.h"

#include <bit>
#include <cstring>

#include <sys/mman.h>

#include "runtime/exec/context.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {
constexpr std::int64_t kFineLimit = 1024, kFineStep = 64;
constexpr int kFineClasses = static_cast<int>(kFineLimit / kFineStep);
constexpr std::int64_t kSlabBytes = 2 << 20;   // one huge page
constexpr std::int64_t kCarveLimit = 1 << 18;  // larger classes are mapped alone
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

void* CachingAllocator::allocate(std::int64_t bytes, MemoryCategory category) {
  if (has_foreign_.load(std::memory_order_acquire)) [[unlikely]]
    drain_foreign();
  if (limit_ > 0 && accounting_.total() + bytes > limit_) [[unlikely]]
    throw OutOfMemory(
        fmt::format("out of memory: {} asked for {}, {} of the limit of {} are in use\n  owners  {}\n  peak    {}",
                    format_bytes(bytes), name(category), format_bytes(accounting_.total()), format_bytes(limit_),
                    describe(accounting_.current()), format_bytes(accounting_.total_peak())));
  const auto index = static_cast<std::size_t>(size_class(bytes));
  if (index >= free_.size()) [[unlikely]]
    free_.resize(index + 1);
  void* block;
  if (auto& list = free_[index]; !list.empty()) {
    block = list.back();
    list.pop_back();
  } else {
    block = take_from_system(size_class_bytes(static_cast<int>(index)));
  }
  ++live_blocks_;
  accounting_.add(category, bytes);
  return block;
}

void CachingAllocator::release(void* block, std::int64_t bytes, MemoryCategory category) noexcept {
  if (RankContext::current_or_null() == nullptr || RankContext::current_or_null()->allocator_or_null() != this) {
    bool destroy = false;
    {
      std::lock_guard lock(foreign_mutex_);
      foreign_.push_back({block, bytes, category});
      has_foreign_.store(true, std::memory_order_release);
      destroy = abandoned_ && live_blocks_ == static_cast<std::int64_t>(foreign_.size());
    }
    if (destroy) delete this;
    return;
  }
  if (poison_) [[unlikely]]
    std::memset(block, 0xCB, static_cast<std::size_t>(bytes));
  free_[static_cast<std::size_t>(size_class(bytes))].push_back(block);
  --live_blocks_;
  accounting_.add(category, -bytes);
}

void CachingAllocator::drain_foreign() {
  std::lock_guard lock(foreign_mutex_);
  for (const Foreign& f : foreign_) {
    if (poison_) std::memset(f.block, 0xCB, static_cast<std::size_t>(f.bytes));
    free_[static_cast<std::size_t>(size_class(f.bytes))].push_back(f.block);
    --live_blocks_;
    accounting_.add(f.category, -f.bytes);
  }
  foreign_.clear();
  has_foreign_.store(false, std::memory_order_relaxed);
}

void* CachingAllocator::take_from_system(std::int64_t class_bytes) {
  return class_bytes <= kCarveLimit ? carve(class_bytes) : map_chunk(class_bytes);
}

void* CachingAllocator::carve(std::int64_t class_bytes) {
  if (slab_left_ < class_bytes) {  // the rest of the old slab is lost: at most one block of the largest class
    slab_ = static_cast<std::byte*>(map_chunk(kSlabBytes));
    slab_left_ = kSlabBytes;
  }
  void* block = slab_;
  slab_ += class_bytes;
  slab_left_ -= class_bytes;
  return block;
}

void* CachingAllocator::map_chunk(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  // Huge pages need 2 MiB alignment: map more, keep the aligned part.
  const bool huge = bytes >= kSlabBytes;
  const std::size_t extra = huge ? static_cast<std::size_t>(kSlabBytes) : 0;
  void* raw = ::mmap(nullptr, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED)
    throw OutOfMemory(fmt::format("out of memory: the system refused {}; {} are in use\n  owners  {}",
                                  format_bytes(bytes), format_bytes(accounting_.total()),
                                  describe(accounting_.current())));
  auto address = reinterpret_cast<std::uintptr_t>(raw);
  if (huge) {
    const std::uintptr_t aligned = (address + extra - 1) & ~(static_cast<std::uintptr_t>(kSlabBytes) - 1);
    if (aligned > address) ::munmap(raw, aligned - address);
    const std::uintptr_t end = address + size + extra, used = aligned + ((size + 4095) & ~std::size_t{4095});
    if (end > used) ::munmap(reinterpret_cast<void*>(used), end - used);
    address = aligned;
    ::madvise(reinterpret_cast<void*>(address), size, MADV_HUGEPAGE);
  }
  auto* block = reinterpret_cast<void*>(address);
  chunks_.emplace_back(block, size);
  reserved_bytes_ += bytes;
  ++system_calls_;
  return block;
}

void CachingAllocator::abandon() {
  drain_foreign();
  bool destroy = false;
  {
    std::lock_guard lock(foreign_mutex_);
    abandoned_ = true;
    destroy = live_blocks_ == static_cast<std::int64_t>(foreign_.size());
  }
  if (destroy) delete this;
}

CachingAllocator::~CachingAllocator() {
  for (auto [block, size] : chunks_) ::munmap(block, size);
}

}  // namespace sherd
