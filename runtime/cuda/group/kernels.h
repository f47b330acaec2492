#pragma once
// What composed groups of device memory compute with. A list is one launch, and a long one several, of as many items as
// the arguments of a kernel hold; at most kGroupBlocks blocks each, so that compute keeps its multiprocessors.
#include <span>

#include <cuda_runtime_api.h>

#include "runtime/comm/group/group_kernels.h"

namespace sherd::cuda {

inline constexpr unsigned kGroupBlocks = 16;

/// Queued on `stream`, of the thread's current device. sum_list: Error if a sum has more inputs than fit.
void move_list(std::span<const comm::ListMove> list, cudaStream_t stream);
void sum_list(std::span<const comm::ListSum> list, cudaStream_t stream);

/// Both on the stream of a DeviceQueue.
const comm::GroupKernels& group_kernels();

}  // namespace sherd::cuda
