// Device memory is taken in whole segments and stays: in a steady step every request finds a block. Best fit with
// splitting lets activations of one size serve as temporaries of another, so that what is reserved stays close to the
// peak in use. Small blocks have segments of their own and do not splinter large ones.
#include "runtime/memory/device_allocator.h"

#include "runtime/tensor/error.h"

namespace sherd {

namespace {

constexpr std::int64_t kMediumSegment = std::int64_t{20} << 20;  // for requests between small and half of it

}  // namespace

std::int64_t DeviceAllocator::size_of_block(std::int64_t bytes) const {
  return options_.separate ? bytes : round_up(bytes, kAlignment);
}

void* DeviceAllocator::take(std::int64_t bytes, MemoryCategory category) {
  bytes = size_of_block(bytes);
  Pool& pool = pool_for(bytes);
  const Block* block = best_fit(pool, bytes);
  if (!block) block = map_segment(pool, bytes);
  if (!block && !options_.keeps_segments) {
    release_unused();
    block = map_segment(pool, bytes);
  }
  if (!block && ask_last_resort()) block = map_segment(pool, bytes);
  if (!block) fail_device_memory(bytes, category);
  return carve(pool, block, bytes);
}

const DeviceAllocator::Block* DeviceAllocator::best_fit(Pool& pool, std::int64_t bytes) const {
  const Block wanted{nullptr, bytes, nullptr, false};
  const auto found = pool.free.lower_bound(&wanted);
  if (found == pool.free.end() || (options_.separate && (*found)->bytes != bytes)) return nullptr;
  return *found;
}

const DeviceAllocator::Block* DeviceAllocator::map_segment(Pool& pool, std::int64_t bytes) {
  const std::int64_t least = options_.separate ? bytes : round_up(bytes, kSegmentUnit);
  std::int64_t size = least;
  if (!options_.separate && &pool == &large_ && size <= kMediumSegment / 2) size = kMediumSegment;
  auto* address = static_cast<std::byte*>(source_->map(size));
  if (!address && size > least) {
    size = least;
    address = static_cast<std::byte*>(source_->map(size));
  }
  if (!address) return nullptr;
  ++system_calls_;
  reserved_bytes_ += size;
  segments_[address] = size;
  const Block& block = pool.blocks[address] = {address, size, address, false};
  pool.free.insert(&block);
  return &block;
}

// Uses the front of a free block; the rest stays free unless it is too small to serve anybody.
void* DeviceAllocator::carve(Pool& pool, const Block* found, std::int64_t bytes) {
  pool.free.erase(found);
  Block& block = pool.blocks.at(found->address);
  block.used = true;
  if (const std::int64_t rest = block.bytes - bytes; rest >= (&pool == &small_ ? kAlignment : kSmallLimit)) {
    block.bytes = bytes;
    std::byte* const tail = block.address + bytes;
    pool.free.insert(&(pool.blocks[tail] = {tail, rest, block.segment, false}));
  }
  return block.address;
}

void DeviceAllocator::put_back(void* address, std::int64_t bytes) noexcept {
  Pool& pool = pool_for(size_of_block(bytes));
  auto at = pool.blocks.find(static_cast<std::byte*>(address));
  at->second.used = false;
  const auto joins = [&](Blocks::iterator left, Blocks::iterator right) {
    return left->second.segment == right->second.segment && !left->second.used && !right->second.used;
  };
  if (const auto next = std::next(at); next != pool.blocks.end() && joins(at, next)) {
    pool.free.erase(&next->second);
    at->second.bytes += next->second.bytes;
    pool.blocks.erase(next);
  }
  if (at != pool.blocks.begin()) {
    if (const auto previous = std::prev(at); joins(previous, at)) {
      pool.free.erase(&previous->second);
      previous->second.bytes += at->second.bytes;
      pool.blocks.erase(at);
      at = previous;
    }
  }
  pool.free.insert(&at->second);
  if (options_.separate && !options_.keeps_segments) unmap(pool, at);
}

void DeviceAllocator::poison(void* block, std::int64_t bytes) noexcept { source_->fill(block, 0xCB, bytes); }

DeviceAllocator::Blocks::iterator DeviceAllocator::unmap(Pool& pool, Blocks::iterator whole_segment) noexcept {
  const Block& block = whole_segment->second;
  source_->unmap(block.segment, block.bytes);
  ++system_calls_;
  reserved_bytes_ -= block.bytes;
  segments_.erase(block.segment);
  pool.free.erase(&block);
  return pool.blocks.erase(whole_segment);
}

void DeviceAllocator::unmap_unused(Pool& pool) noexcept {
  for (auto at = pool.blocks.begin(); at != pool.blocks.end();) {
    const Block& block = at->second;
    const bool whole = block.bytes == segments_.at(block.segment);
    at = block.used || !whole ? std::next(at) : unmap(pool, at);
  }
}

void DeviceAllocator::release_unused() {
  unmap_unused(small_);
  unmap_unused(large_);
}

std::int64_t DeviceAllocator::unused_bytes() const {
  std::int64_t bytes = 0;
  for (const Pool* pool : {&small_, &large_})
    for (const Block* block : pool->free) bytes += block->bytes;
  return bytes;
}

void DeviceAllocator::fail_device_memory(std::int64_t bytes, MemoryCategory category) {
  const auto [free, total] = source_->free_and_total();
  throw OutOfMemory(fmt::format(
      "out of memory on {}: {} asked for {}; {} of {} are free, {} are in use by this rank and {} are reserved in "
      "pieces too small\n  owners  {}\n  peak    {}",
      source_->name(), name(category), format_bytes(bytes), format_bytes(free), format_bytes(total),
      format_bytes(accounting().total()), format_bytes(unused_bytes()), describe(accounting().current()),
      format_bytes(accounting().total_peak())));
}

DeviceAllocator::~DeviceAllocator() {
  for (const auto& [address, bytes] : segments_) source_->unmap(address, bytes);
}

}  // namespace sherd
