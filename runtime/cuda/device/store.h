#pragma once
// A few bytes from the host to the device as the argument of a kernel.
#include <cstdint>

#include <cuda_runtime_api.h>

namespace sherd::cuda {

inline constexpr std::int64_t kMaxStoredBytes = 64;
/// Writes `bytes` <= kMaxStoredBytes of the host at `to`, in order with the stream; `from` may change at once.
void store(cudaStream_t stream, void* to, const void* from, std::int64_t bytes);
/// Whether this build has code that the current device runs: cudaSuccess, or CUDA's reason. Then `attributes`, unless
/// null, has the compute capabilities that it is for, and that of the PTX it is made from.
cudaError_t find_code(cudaFuncAttributes* attributes = nullptr);

}  // namespace sherd::cuda
