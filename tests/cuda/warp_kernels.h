#pragma once
// Kernels of one warp or block that try the collectives and tensor-core functions of device.h. Pointers are device
// memory.
#include <cstdint>

#include <cuda_runtime_api.h>

#include "runtime/tensor/dtype.h"

namespace sherd::cuda {

/// Six rows of 32: shuffle from lane (5 lane + 3) % 32, shuffle_xor by 7, shuffle_down by 9, warp_sum, warp_max, and
/// the ballot of odd values, of in[32].
void warp_collectives(cudaStream_t stream, const std::int64_t* in, std::int64_t* out);
/// counts[v] += 1 for each of the n values v, by atomics; extremes[0] is their maximum, extremes[1] their minimum.
void histogram(cudaStream_t stream, const std::int32_t* values, std::int64_t n, std::uint32_t* counts,
               std::int32_t* extremes);
/// c [16, 8] = a [16, 16] times b [16, 8], row-major, of bf16 or f16, by one mma. Fragments come from shared memory by
/// ldmatrix, and into it by cp_async_16 in two groups.
void multiply(cudaStream_t stream, DType type, const void* a, const void* b, float* c);
/// out = in, n elements of `bytes` bytes as vectors of `vector` elements, streamed or kept.
void copy_vectors(cudaStream_t stream, int bytes, int vector, bool streamed, const void* in, void* out, std::int64_t n);

}  // namespace sherd::cuda
