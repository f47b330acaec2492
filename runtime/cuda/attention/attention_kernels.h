#pragma once
// The own kernels of attention, as plain functions that queue them. Letters as in runtime/op/rows/attention.cpp: B
// batch, H query heads, G heads of keys and values, Tq and Tk positions, K elements per head.
#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "runtime/tensor/dtype.h"

namespace sherd::cuda {

/// A tensor [B, heads, T, K] of device memory, or [B, heads, T]; strides in elements, any.
struct HeadsView {
  void* data = nullptr;
  std::int64_t batch = 0, head = 0, row = 0, element = 0;
};

struct AttentionShape {
  DType dtype = DType::bf16;
  int b = 0, h = 0, g = 0, tq = 0, tk = 0, k = 0;
  double scale = 1;
  bool causal = true;  ///< query i sees the keys up to i + tk - tq
  int group() const { return g > 0 ? h / g : 0; }
  std::int64_t query_rows() const { return std::int64_t{b} * h * tq; }
};

struct AttentionForward {
  HeadsView q, k, v, out;
  void* lse = nullptr;  ///< [B, H, Tq] dense, f32 (f64 of f64); -infinity for a query that sees no key
};
struct AttentionBackward {
  HeadsView grad, q, k, v, out, lse, dq, dk, dv;
  void* dot = nullptr;  ///< workspace of query_rows() f32 (f64 of f64)
};

/// Whether flash_* compute this on a device with so much shared memory per block: 16-bit floats, K <= 256.
bool flash_takes(const AttentionShape& shape, std::size_t shared_bytes);
/// On tensor cores, products of 16-bit floats summed in f32. Queued, deterministic.
void flash_forward(cudaStream_t stream, const AttentionShape& shape, const AttentionForward& tensors);
/// Needs attention_row_dots() before.
void flash_backward(cudaStream_t stream, const AttentionShape& shape, const AttentionBackward& tensors);

/// The same for every floating dtype and any K, in the dtype's compute type throughout.
void tiled_attention_forward(cudaStream_t stream, const AttentionShape& shape, const AttentionForward& tensors);
void tiled_attention_backward(cudaStream_t stream, const AttentionShape& shape, const AttentionBackward& tensors);

/// tensors.dot [B, H, Tq] = the sum over K of grad times out.
void attention_row_dots(cudaStream_t stream, const AttentionShape& shape, const AttentionBackward& tensors);

}  // namespace sherd::cuda
