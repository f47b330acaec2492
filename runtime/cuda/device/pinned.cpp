#include "runtime/cuda/device/pinned.h"

#include <algorithm>
#include <bit>

#include "runtime/cuda/device/check.h"

namespace sherd::cuda {

namespace {
constexpr std::int64_t kSmallest = 4096;  // a page

std::int64_t size_of_block(std::int64_t bytes) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max(bytes, kSmallest))));
}

PinnedBlock make_block(std::int64_t bytes) {
  PinnedBlock block{.memory = allocate_pinned(bytes), .bytes = bytes};
  check(cudaEventCreateWithFlags(&block.event, cudaEventDisableTiming), "creating an event");
  return block;
}
}  // namespace

std::shared_ptr<std::byte> allocate_pinned(std::int64_t bytes) {
  void* data = nullptr;
  check(cudaMallocHost(&data, static_cast<std::size_t>(bytes)), "allocating pinned memory");
  return {static_cast<std::byte*>(data), [](std::byte* memory) { (void)cudaFreeHost(memory); }};
}

void PinnedPool::destroy(const PinnedBlock& block) { (void)cudaEventDestroy(block.event); }

PinnedPool::~PinnedPool() {
  for (const PinnedBlock& block : free_) destroy(block);
  for (const PinnedBlock& block : in_flight_) destroy(block);
}

// Events are reached in the order of the queue, so the first that is not ends the search.
void PinnedPool::collect(bool one_at_least) {
  while (!in_flight_.empty()) {
    const PinnedBlock& first = in_flight_.front();
    if (one_at_least) {
      check(cudaEventSynchronize(first.event), "waiting for a copy");
    } else {
      const cudaError_t status = cudaEventQuery(first.event);
      if (status == cudaErrorNotReady) {
        (void)cudaGetLastError();  // no error of anybody's
        return;
      }
      check(status, "waiting for a copy");
    }
    one_at_least = false;
    free_.push_back(first);
    in_flight_.pop_front();
  }
}

PinnedBlock PinnedPool::take(std::int64_t bytes) {
  const std::int64_t size = size_of_block(bytes);
  collect(in_flight_.size() >= kMaxInFlight);
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const PinnedBlock& b) { return b.bytes == size; });
  if (found == free_.end()) return make_block(size);
  const PinnedBlock block = *found;
  free_.erase(found);
  return block;
}

void PinnedPool::give_back(PinnedBlock block) { in_flight_.push_back(block); }

}  // namespace sherd::cuda
