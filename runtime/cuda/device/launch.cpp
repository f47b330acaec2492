#include "runtime/cuda/device/launch.h"

#include <atomic>
#include <limits>
#include <string>

#include "runtime/cuda/device/kernel_name.h"
#include "runtime/cuda/device/launch_log.h"

namespace sherd::cuda {

namespace {

constexpr std::size_t kSharedWithoutOptIn = 48 * 1024;
constexpr int kMaxDevices = 64;

}  // namespace

int multiprocessors() {
  static std::atomic<int> counts[kMaxDevices];
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  std::atomic<int>& count = counts[device % kMaxDevices];
  if (count.load(std::memory_order_relaxed) == 0) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    count.store(value, std::memory_order_relaxed);
  }
  return count.load(std::memory_order_relaxed);
}

unsigned blocks_for(std::int64_t n, std::int64_t per_block, int per_multiprocessor) {
  const std::int64_t wanted = (n + per_block - 1) / per_block;
  return static_cast<unsigned>(std::min<std::int64_t>(wanted, std::int64_t{per_multiprocessor} * multiprocessors()));
}

namespace detail {

bool prepare(const void* kernel, const Grid& grid) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return false;
  if (grid.shared_bytes > kSharedWithoutOptIn) {
    const auto bytes = static_cast<int>(std::min<std::size_t>(grid.shared_bytes, std::numeric_limits<int>::max()));
    check_launch(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), kernel, grid);
  }
  if (LaunchLog* log = LaunchLog::current()) log->add_kernel(kernel, grid.blocks, grid.threads);
  return true;
}

void check_launch(cudaError_t status, const void* kernel, const Grid& grid) {
  if (status == cudaSuccess) [[likely]]
    return;
  LaunchLog* log = LaunchLog::current();
  const std::string what = fmt::format("launch of {} with {}x{}x{} blocks of {} threads and {} bytes of shared memory",
                                       readable_kernel(log ? log->symbol_of(kernel) : kernel_symbol(kernel)),
                                       grid.blocks.x, grid.blocks.y, grid.blocks.z, grid.threads, grid.shared_bytes);
  check(status, what.c_str());
}

}  // namespace detail

}  // namespace sherd::cuda
