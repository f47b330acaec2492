#pragma once
// The device's memory as segments for DeviceAllocator.
#include <cstdint>
#include <memory>
#include <utility>

#include <cuda_runtime_api.h>

#include "runtime/memory/device_allocator.h"

namespace sherd::cuda {

/// SHERD_DEVICE_MEMORY, how a context maps memory: "separate" gives each block a segment of its own (slow, for
/// compute-sanitizer), "" shares segments. Throws Error on anything else.
bool maps_blocks_separately(const std::string& asked);

class DeviceMemory final : public MemorySource {
 public:
  /// `num_fills` counts what this puts on the stream; it may end after the stream.
  DeviceMemory(int index, cudaStream_t stream, std::shared_ptr<std::uint64_t> num_fills)
      : index_(index), stream_(stream), num_fills_(std::move(num_fills)) {}
  std::string name() const override;
  void* map(std::int64_t bytes) override;
  void unmap(void* segment, std::int64_t bytes) noexcept override;
  void fill(void* block, std::uint8_t value, std::int64_t bytes) noexcept override;
  std::pair<std::int64_t, std::int64_t> free_and_total() const override;

 private:
  const int index_;
  const cudaStream_t stream_;
  const std::shared_ptr<std::uint64_t> num_fills_;
};

}  // namespace sherd::cuda
