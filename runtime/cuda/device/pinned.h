#pragma once
// Host memory that the device copies from and to by itself. Blocks are kept; a block whose copy may still run is handed
// out again only after its event.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <cuda_runtime_api.h>

#include "runtime/tensor/no_copy.h"

namespace sherd::cuda {

/// Pinned memory, not initialised; freed with its last handle, which waits for the device.
std::shared_ptr<std::byte> allocate_pinned(std::int64_t bytes);

class PinnedRead;

/// A pinned buffer and the event of its last copy.
struct PinnedBlock {
  std::shared_ptr<std::byte> memory{};
  std::int64_t bytes = 0;
  cudaEvent_t event = nullptr;
  std::byte* data() const { return memory.get(); }
};

/// One per context, used on the rank's thread only.
class PinnedPool : NoCopy {
 public:
  ~PinnedPool();  ///< nothing may be in flight

  /// A block of at least `bytes`. Waits only while kMaxInFlight blocks are in flight.
  PinnedBlock take(std::int64_t bytes);
  /// Gives a block back whose event was recorded after its last copy.
  void give_back(PinnedBlock block);
  /// Ends the event of a block that does not come back; nothing of it may be in flight.
  static void destroy(const PinnedBlock& block);
  /// Reads of device memory that live; each holds a block.
  std::vector<PinnedRead*>& reads() { return reads_; }

 private:
  static constexpr std::size_t kMaxInFlight = 8;
  void collect(bool one_at_least);

  std::vector<PinnedBlock> free_;
  std::deque<PinnedBlock> in_flight_;  // in the order of their copies
  std::vector<PinnedRead*> reads_;
};

}  // namespace sherd::cuda
