#pragma once
// Pinned memory of the host in which collectives of device memory are staged, and how much of it there may be.
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/exec/backend.h"
#include "runtime/memory/event.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

class RankMemory;

namespace comm {

/// One rank's pool, used on its thread; handles end on any thread. Blocks are powers of two, kept for the next
/// collective, and accounted as "communication" of the rank's host memory.
class StagingPool : NoCopy {
 public:
  /// `limit`: bytes of all blocks together. A collective that is larger alone has a block for as long as it runs.
  explicit StagingPool(std::int64_t limit) : limit_(limit) {}
  ~StagingPool();

  /// Memory for a collective, until its last handle goes. Blocks, while it would not fit, until the oldest collectives
  /// of whatever queue are over; what failed in them stays for those who wait for the device.
  std::shared_ptr<std::byte> take(DeviceContext& device, std::int64_t bytes);
  /// What uses `memory`: the collective's host part, and the end of all of it. Once both were waited for its handles
  /// are gone.
  void start(const std::shared_ptr<std::byte>& memory, Event moved, Event ended) {
    running_.push_back({memory, std::move(moved), std::move(ended)});
  }

  /// Bytes of all blocks, and of the blocks handed out.
  std::int64_t bytes() const { return bytes_; }
  std::int64_t bytes_in_use() const;

 private:
  struct Block {
    std::int64_t bytes;
    std::shared_ptr<std::byte> memory;
  };
  struct Running {
    std::weak_ptr<std::byte> memory;
    Event moved, ended;
  };
  struct Free {
    std::mutex mutex;
    std::vector<Block> blocks;  // the youngest last
    std::int64_t bytes = 0;
  };
  Block take_free(std::int64_t bytes);
  void give_back_until(std::int64_t bytes);
  void account(std::int64_t change);

  const std::int64_t limit_;
  RankMemory* rank_ = nullptr;  // whose account it is; only compared
  std::int64_t bytes_ = 0;
  std::deque<Running> running_;
  std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

}  // namespace comm

}  // namespace sherd
