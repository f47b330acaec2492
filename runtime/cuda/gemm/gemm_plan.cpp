// cuBLASLt is column-major. A row-major matrix is the column-major one of its transpose, so it is asked for
//
//   C^T [N, M] = op(B)^T [N, K] op(A)^T [K, M]
//
// with the same bytes: operands change places, leading dimensions stay, and the bias, one value per column of C, is one
// per row of C^T, which is what the library's bias epilogue adds.
#include "runtime/cuda/gemm/gemm_plan.h"

#include <algorithm>

#include "runtime/cuda/gemm/blas.h"
#include "runtime/cuda/gemm/gemm.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::cuda {

namespace {

struct ProductTypes {
  cublasComputeType_t compute;
  cudaDataType_t scale;
};

cudaDataType_t cuda_type(DType t) {
  switch (t) {
    case DType::f64: return CUDA_R_64F;
    case DType::f32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    default: fail("a product needs floating-point inputs, got {}; cast them", name(t));
  }
}

ProductTypes types_of(const GemmProblem& p) {
  if (p.dtype == DType::f64) return {CUBLAS_COMPUTE_64F, CUDA_R_64F};
  const bool tf32 = p.tf32 && p.dtype == DType::f32;
  return {tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F};
}

std::int64_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  return address == 0 ? 256 : std::min<std::int64_t>(static_cast<std::int64_t>(address & (~address + 1)), 256);
}

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value), "describing a product");
}
template <class T>
void set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const T& value) {
  check(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value), "describing a matrix");
}

// What heuristics are asked to keep to.
class Preference : NoCopy {
 public:
  Preference() { check(cublasLtMatmulPreferenceCreate(&preference_), "creating a preference of cuBLASLt"); }
  ~Preference() { (void)cublasLtMatmulPreferenceDestroy(preference_); }
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof value), "setting a preference");
  }
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  cublasLtMatmulPreference_t preference_ = nullptr;
};

}  // namespace

GemmProblem GemmProblem::of(const Gemm& g, bool tf32, const void* a, const void* b, const void* c) {
  const bool batched = g.batch > 1;
  std::int64_t alignment = std::min({alignment_of(a), alignment_of(b), alignment_of(c)});
  // Few classes: 256 of fresh memory, 16 of vectors and of the tensor memory accelerator.
  if (alignment < 256) alignment = std::min<std::int64_t>(alignment, 16);
  return {.dtype = g.dtype,
          .result = g.result,
          .transpose_a = g.transpose_a,
          .transpose_b = g.transpose_b,
          .accumulate = g.accumulate,
          .bias = g.bias != nullptr,
          .tf32 = tf32 && g.dtype == DType::f32,
          .alignment = alignment,
          .m = g.m,
          .n = g.n,
          .k = g.k,
          .lda = g.lda,
          .ldb = g.ldb,
          .ldc = g.ldc,
          .batch = g.batch,
          .stride_a = batched ? g.stride_a : 0,
          .stride_b = batched ? g.stride_b : 0,
          .stride_c = batched ? g.stride_c : 0};
}

std::string GemmProblem::text() const {
  return fmt::format("{} {} {}{}{}{}{} {} | {}x{}x{} ld {} {} {} | {}x {} {} {}", name(dtype), name(result),
                     transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', accumulate ? "+C" : "", bias ? "+bias" : "",
                     tf32 ? "+tf32" : "", alignment, m, n, k, lda, ldb, ldc, batch, stride_a, stride_b, stride_c);
}

std::size_t GemmProblemHash::operator()(const GemmProblem& p) const {
  std::uint64_t hash = 14695981039346656037u;
  const auto mix = [&](std::int64_t v) { hash = (hash ^ static_cast<std::uint64_t>(v)) * 1099511628211u; };
  mix(static_cast<std::int64_t>(p.dtype) * 8 + static_cast<std::int64_t>(p.result));
  mix(p.transpose_a + 2 * p.transpose_b + 4 * p.accumulate + 8 * p.bias + 16 * p.tf32);
  for (const std::int64_t v :
       {p.alignment, p.m, p.n, p.k, p.lda, p.ldb, p.ldc, p.batch, p.stride_a, p.stride_b, p.stride_c})
    mix(v);
  return hash ^ (hash >> 32);
}

GemmPlan::Layout GemmPlan::layout(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t ld,
                                  std::int64_t batch, std::int64_t stride) {
  cublasLtMatrixLayout_t made = nullptr;
  // Row-major rows are columns there.
  check(cublasLtMatrixLayoutCreate(&made, cuda_type(dtype), static_cast<std::uint64_t>(columns),
                                   static_cast<std::uint64_t>(rows), ld),
        "describing a matrix");
  Layout layout(made);
  if (batch > 1) {
    set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(batch));
    set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  }
  return layout;
}

GemmPlan::GemmPlan(const GemmProblem& p)
    : problem_(p),
      a_(layout(p.dtype, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda, p.batch, p.stride_a)),
      b_(layout(p.dtype, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb, p.batch, p.stride_b)),
      c_(layout(p.result, p.m, p.n, p.ldc, p.batch, p.stride_c)) {
  const ProductTypes types = types_of(p);
  cublasLtMatmulDesc_t operation = nullptr;
  check(cublasLtMatmulDescCreate(&operation, types.compute, types.scale), "describing a product");
  operation_.reset(operation);
  const auto op = [](bool transpose) -> std::int32_t { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, op(p.transpose_b));
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, op(p.transpose_a));
  if (p.bias) set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_BIAS));
}

void GemmPlan::set_bias(const void* bias) const {
  if (problem_.bias) set(operation_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
}

std::vector<GemmAlgorithm> GemmPlan::candidates(cublasLtHandle_t handle, std::size_t workspace_bytes, int count,
                                                const void* bias) const {
  set_bias(bias);  // heuristics look at its alignment
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
  // Sums over parts of K come together in the accumulator's type in a step of its own: not in C's, which would round
  // more than once.
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const auto at_least = [&](DType element) {  // elements themselves are aligned
    return static_cast<std::uint32_t>(std::max(problem_.alignment, byte_size(element)));
  };
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, at_least(problem_.dtype));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, at_least(problem_.dtype));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, at_least(problem_.result));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, at_least(problem_.result));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(count));
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(), preference.get(),
                                     count, results.data(), &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return {};
  check(status, "asking cuBLASLt for an algorithm");
  std::vector<GemmAlgorithm> algorithms;
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& r = results[static_cast<std::size_t>(i)];
    if (r.state == CUBLAS_STATUS_SUCCESS && r.workspaceSize <= workspace_bytes)
      algorithms.push_back({r.algo, r.workspaceSize});
  }
  return algorithms;
}

bool GemmPlan::accepts(cublasLtHandle_t handle, GemmAlgorithm& algorithm, std::size_t workspace_bytes) const {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, operation_.get(), b_.get(), a_.get(), c_.get(),
                                                        c_.get(), &algorithm.algo, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > workspace_bytes) return false;
  algorithm.workspace_bytes = result.workspaceSize;
  return true;
}

cublasStatus_t GemmPlan::run(cublasLtHandle_t handle, const GemmAlgorithm& algorithm, const GemmOperands& operands,
                             void* workspace, std::size_t workspace_bytes, cudaStream_t stream) const {
  set_bias(operands.bias);
  const double alpha = operands.alpha, beta = problem_.accumulate ? 1 : 0;
  const auto alpha32 = static_cast<float>(alpha), beta32 = static_cast<float>(beta);
  const bool wide = problem_.dtype == DType::f64;
  return cublasLtMatmul(handle, operation_.get(), wide ? static_cast<const void*>(&alpha) : &alpha32, operands.b,
                        b_.get(), operands.a, a_.get(), wide ? static_cast<const void*>(&beta) : &beta32, operands.c,
                        c_.get(), operands.c, c_.get(), &algorithm.algo, workspace, workspace_bytes, stream);
}

}  // namespace sherd::cuda
