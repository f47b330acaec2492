#include "runtime/cuda/device/memory.h"

#include "runtime/cuda/device/check.h"

namespace sherd::cuda {

bool maps_blocks_separately(const std::string& asked) {
  sherd::check(asked.empty() || asked == "separate",
               "SHERD_DEVICE_MEMORY is \"{}\"; it can be \"separate\", each block alone, or unset", asked);
  return asked == "separate";
}

std::string DeviceMemory::name() const { return fmt::format("cuda:{}", index_); }

void* DeviceMemory::map(std::int64_t bytes) {
  make_current(index_);
  void* segment = nullptr;
  const cudaError_t status = cudaMalloc(&segment, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // the allocator reports it, with the owners
    return nullptr;
  }
  check(status, "allocating device memory");
  return segment;
}

// Errors of earlier work show up here too; whoever waits for that work reports them.
void DeviceMemory::unmap(void* segment, std::int64_t) noexcept { (void)cudaFree(segment); }

void DeviceMemory::fill(void* block, std::uint8_t value, std::int64_t bytes) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  // Recorded, it would poison whoever has the block when the graph runs.
  if (cudaStreamIsCapturing(stream_, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone) return;
  ++*num_fills_;
  (void)cudaMemsetAsync(block, value, static_cast<std::size_t>(bytes), stream_);
}

std::pair<std::int64_t, std::int64_t> DeviceMemory::free_and_total() const {
  std::size_t free = 0, total = 0;
  make_current(index_);
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  return {static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
}

}  // namespace sherd::cuda
