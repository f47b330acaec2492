#include "runtime/comm/group/staging_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "runtime/memory/rank_memory.h"

namespace sherd::comm {

namespace {
constexpr std::int64_t kSmallest = 4096;  // a page
}

StagingPool::~StagingPool() { account(-bytes_); }

std::int64_t StagingPool::bytes_in_use() const {
  const std::lock_guard lock(free_->mutex);
  return bytes_ - free_->bytes;
}

std::shared_ptr<std::byte> StagingPool::take(DeviceContext& device, std::int64_t bytes) {
  const auto size = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max(bytes, kSmallest))));
  while (!running_.empty() && running_.front().memory.expired()) running_.pop_front();
  while (!running_.empty() && bytes_in_use() + size > limit_) {
    const Running oldest = std::move(running_.front());
    running_.pop_front();
    oldest.ended.outlast();
    oldest.moved.outlast();  // an item that was skipped has let go of nothing by itself
  }
  Block block = take_free(size);
  give_back_until(block.memory ? limit_ : limit_ - size);
  if (!block.memory) {
    block = {size, device.pinned(size)};
    account(size);
  }
  std::byte* const address = block.memory.get();
  return {address, [free = free_, block = std::move(block)](std::byte*) mutable {
            const std::lock_guard lock(free->mutex);
            free->bytes += block.bytes;
            free->blocks.push_back(std::move(block));
          }};
}

StagingPool::Block StagingPool::take_free(std::int64_t bytes) {
  const std::lock_guard lock(free_->mutex);
  const auto found = std::ranges::find(free_->blocks, bytes, &Block::bytes);
  if (found == free_->blocks.end()) return {bytes, nullptr};
  Block block = std::move(*found);
  free_->blocks.erase(found);
  free_->bytes -= bytes;
  return block;
}

// The oldest first, while there are more bytes than that. Giving back waits for the device.
void StagingPool::give_back_until(std::int64_t bytes) {
  while (bytes_ > bytes) {
    Block oldest{};
    {
      const std::lock_guard lock(free_->mutex);
      if (free_->blocks.empty()) return;
      oldest = std::move(free_->blocks.front());
      free_->blocks.erase(free_->blocks.begin());
      free_->bytes -= oldest.bytes;
    }
    account(-oldest.bytes);
  }
}

// A pool that outlives its rank changes nobody's account.
void StagingPool::account(std::int64_t change) {
  RankMemory* const rank = RankMemory::current_or_null();
  if (!rank_) rank_ = rank;
  bytes_ += change;
  if (rank && rank == rank_) rank->allocator().charge(MemoryCategory::communication, change);
}

}  // namespace sherd::comm
