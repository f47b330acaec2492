#pragma once
// Matrix products by cuBLASLt: layouts, batch, bias and accumulation are said in one struct, which is that of
// runtime/cpu/gemm/gemm.h without what a GPU has no use for.
#include <cstdint>

#include "runtime/tensor/dtype.h"

namespace sherd::cuda {

class Context;

/// Row-major C [M, N] = alpha op(A) [M, K] op(B) [K, N] (+ C) (+ bias), for `batch` problems at fixed distances.
struct Gemm {
  DType dtype = DType::f32;   ///< of A and B: f64, f32, bf16, f16; 16-bit floats accumulate in f32
  DType result = DType::f32;  ///< of C and bias: the same as dtype, or f32 for 16-bit inputs
  bool transpose_a = false;   ///< A is stored [K, M]
  bool transpose_b = false;   ///< B is stored [N, K]
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;  ///< elements between stored rows, at least as many as a row has
  std::int64_t batch = 1;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;  ///< elements between problems; 0 repeats A or B
  double alpha = 1;
  bool accumulate = false;     ///< add to C, rounding once
  const void* bias = nullptr;  ///< [N] on the device, added to every row; not with accumulate
};

/// Queues the product on context.stream() and returns; a, b and c are device memory. K = 0 gives zeros (or bias, or C
/// unchanged). f32 is multiplied as f32, but for contexts that were asked for TF32 (blas.h). Equal calls of one context
/// give equal bits, recorded ones included. The first call of a problem may wait for the device while it times
/// candidates (gemm_choice.h); in a recording it never does.
/// Errors: dims beyond 2^31 - 1; dtypes that cuBLASLt cannot combine; OutOfMemory for the workspace.
void gemm(Context& context, const Gemm& g, const void* a, const void* b, void* c);

}  // namespace sherd::cuda
