#pragma once
// Runs the blocks of one kernel: every thread a fiber, in an order drawn anew between meetings.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

namespace sherd::cuda::emulated {

struct KernelCall {
  std::string name;
  dim3 blocks = {1, 1, 1};
  unsigned threads = 1;
  std::size_t shared_bytes = 0;
  std::vector<const void*> pointers;  // arguments
  std::function<void()> body;
};

struct KernelResult {
  cudaError_t status = cudaSuccess;
  std::string report;  // what was wrong, naming the kernel, the block and the thread
  std::int64_t pinned_atomics = 0;
};

/// Runs all blocks on the calling thread. The seed decides the order of threads; device memory must be accessible.
/// A fault ends the kernel at once: threads that were running are abandoned.
KernelResult run_kernel(const KernelCall& call, std::uint64_t seed);

/// From now on an access to memory that is not there ends the kernel that makes it, and host code that touches device
/// memory dies with a message.
void catch_illegal_accesses();

/// True on the thread that is inside of run_kernel.
bool in_kernel();

}  // namespace sherd::cuda::emulated
