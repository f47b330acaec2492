#pragma once
// What is behind the opaque types of cublasLt.h here.
#include <cstdint>
#include <unordered_set>
#include <vector>

#include <cublasLt.h>

#include "tests/support/emulated_gpu/gpu.h"

namespace sherd::cuda::emulated {

struct LtOperation {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};

/// Column-major, as cuBLASLt's own.
struct LtLayout {
  cudaDataType_t type = CUDA_R_32F;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t ld = 0;
  std::int32_t batch = 1;
  std::int64_t stride = 0;
};

struct LtPreference {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};

/// Handles that are alive; a stale one is refused.
struct LtObjects {
  std::unordered_set<const void*> alive;
};
LtObjects& lt_objects();

/// The object behind a handle, or null.
template <class T, class Handle>
T* lt_find(Handle handle) {
  return lt_objects().alive.count(handle) ? reinterpret_cast<T*>(handle) : nullptr;
}

/// D [m, n] = alpha op(A) [m, k] op(B) [k, n] + beta C (+ bias), all column-major.
struct LtProblem {
  LtOperation operation;
  LtLayout a, b, c, d;
  std::int64_t m = 0, n = 0, k = 0;
};
/// Checks what cuBLASLt checks: NOT_SUPPORTED for types and epilogues that do not go together, INVALID_VALUE for
/// shapes that do not.
cublasStatus_t lt_problem(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                          cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, LtProblem& problem);
std::int64_t lt_bytes(cudaDataType_t type);
inline bool lt_wide(const LtProblem& p) { return p.operation.compute == CUBLAS_COMPUTE_64F; }

/// Algorithms differ in what they ask for, in the order of their sums, and in the time they are said to take.
struct LtAlgorithm {
  const char* name;
  std::uint32_t alignment;  // of addresses, leading dimensions and strides, in bytes; 0: of an element
  int k_parts;              // summed apart in the workspace, then in order
  std::uint32_t reduction_scheme;
  double seconds;        // on the emulated clock
  bool launches = true;  // false: the call is refused, as some of a heuristic's are
};
/// In the order in which heuristics offer them.
const std::vector<LtAlgorithm>& lt_algorithms();
/// The one a caller configured, or null.
const LtAlgorithm* lt_algorithm(const cublasLtMatmulAlgo_t& algo);
std::size_t lt_workspace(const LtAlgorithm& algorithm, const LtProblem& problem);
/// Whether leading dimensions and strides are as aligned as the algorithm asks.
bool lt_layouts_fit(const LtAlgorithm& algorithm, const LtProblem& problem);

/// The frame of a function: lock, injected failures, a lost device.
template <class Body>
cublasStatus_t lt_call(const char* function, Body body) {
  const std::lock_guard guard(gpu().lock);
  if (const cudaError_t status = refusal(function); status != cudaSuccess)
    return status == cudaErrorNotSupported ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_EXECUTION_FAILED;
  return body(gpu());
}

}  // namespace sherd::cuda::emulated
