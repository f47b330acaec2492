#pragma once
// What a product leaves to do by hand.
#include <cstdint>

#include <cuda_runtime_api.h>

#include "runtime/tensor/dtype.h"

namespace sherd::cuda {

/// Queues: every one of `rows` rows of n elements, `ld` apart, of `batch` matrices, `stride` apart, becomes `row`
/// ([n]), or zeros if it is null.
void fill_rows(cudaStream_t stream, DType dtype, void* to, std::int64_t rows, std::int64_t n, std::int64_t ld,
               std::int64_t batch, std::int64_t stride, const void* row);

}  // namespace sherd::cuda
