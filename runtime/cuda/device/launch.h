#pragma once
// Launching a kernel: one function, checked. For .cu files.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>

#include <cuda_runtime_api.h>

#include "runtime/cuda/device/check.h"
#ifndef __CUDACC__
#include "runtime/cuda/device/device_emulated.h"
#endif

namespace sherd::cuda {

/// Threads of a launch. `threads` per block (one-dimensional), `shared_bytes` of dynamic shared memory per block.
struct Grid {
  dim3 blocks = {1, 1, 1};
  unsigned threads = 256;
  std::size_t shared_bytes = 0;
};

/// Streaming multiprocessors of the current device; asked once per device.
int multiprocessors();
/// Blocks for n elements at `per_block` each, at most `per_multiprocessor` for each multiprocessor: kernels that get
/// fewer blocks than elements loop over the grid. 0 for n = 0.
unsigned blocks_for(std::int64_t n, std::int64_t per_block, int per_multiprocessor = 8);

namespace detail {
/// True if there is something to launch, which the log of the thread's context then knows. Opts in to more than 48 KB
/// of shared memory. Throws Error on a grid that no device takes.
bool prepare(const void* kernel, const Grid& grid);
/// Throws Error naming the kernel, the grid and CUDA's text unless `status` is success.
void check_launch(cudaError_t status, const void* kernel, const Grid& grid);
}  // namespace detail

/// Launches `kernel` on `stream` with `args` converted to its parameter types; returns at once. An empty grid launches
/// nothing. Throws Error if CUDA refuses the launch.
template <class... Parameters, class... Args>
void launch(cudaStream_t stream, void (*kernel)(Parameters...), const Grid& grid, Args&&... args) {
  static_assert(sizeof...(Parameters) == sizeof...(Args), "one argument for each parameter of the kernel");
  const auto* address = reinterpret_cast<const void*>(kernel);
  if (!detail::prepare(address, grid)) return;
  std::tuple<Parameters...> values(std::forward<Args>(args)...);
#ifdef __CUDACC__
  const cudaError_t status = std::apply(
      [&](auto&... value) {
        void* arguments[] = {const_cast<void*>(static_cast<const void*>(&value))..., nullptr};
        cudaLaunchConfig_t config{};
        config.gridDim = grid.blocks;
        config.blockDim = dim3(grid.threads, 1, 1);
        config.dynamicSmemBytes = grid.shared_bytes;
        config.stream = stream;
        return cudaLaunchKernelExC(&config, address, arguments);
      },
      values);
#else
  std::vector<const void*> pointers = emulated::pointers_of(values);
  const cudaError_t status =
      emulated::enqueue(stream, address, grid.blocks, grid.threads, grid.shared_bytes, std::move(pointers),
                        [kernel, values = std::move(values)]() { std::apply(kernel, values); });
#endif
  detail::check_launch(status, address, grid);
}

}  // namespace sherd::cuda
