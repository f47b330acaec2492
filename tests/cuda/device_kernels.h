#pragma once
// Small kernels for the tests of device.h, and the functions that launch them. Pointers are device memory.
#include <cstdint>

#include <cuda_runtime_api.h>

#include "runtime/cuda/device/faults.h"

namespace sherd::cuda {

/// out[i] = factor * in[i], by vectors of 16 bytes; n is a multiple of 4.
void scale(cudaStream_t stream, const float* in, float* out, std::int64_t n, double factor);
/// out[b] = the sum of the b-th `threads` elements of in, out[blocks + b] their maximum.
void block_reduce(cudaStream_t stream, const float* in, float* out, unsigned blocks, unsigned threads);
/// Reports every ids[i], i < n, that is not in 0..limit-1.
void check_ids(cudaStream_t stream, const FaultSink& faults, const int* ids, int n, int limit);
/// Reverses each block's `threads` elements through shared memory; without `barrier` the order of threads shows.
void reverse(cudaStream_t stream, const int* in, int* out, unsigned blocks, unsigned threads, bool barrier);

}  // namespace sherd::cuda
