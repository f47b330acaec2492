// cuBLASLt: which products it takes, and which algorithms it offers for one. The favourite is not the fastest; one
// needs aligned vectors, one workspace, one sums in an order that depends on timing, one cannot be launched.
#include <cstring>

#include "tests/support/emulated_gpu/cublaslt.h"

namespace sherd::cuda::emulated {

namespace {

constexpr std::uint64_t kMark = 0x656d756c61746564;  // in every algorithm that heuristics gave out

struct Types {
  cublasComputeType_t compute;
  cudaDataType_t scale, in, out;
};
constexpr Types kTypes[] = {
    {CUBLAS_COMPUTE_64F, CUDA_R_64F, CUDA_R_64F, CUDA_R_64F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16F, CUDA_R_16F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16F, CUDA_R_32F},
};

bool types_go_together(const LtProblem& p) {
  if (p.a.type != p.b.type || p.c.type != p.d.type) return false;
  for (const Types& t : kTypes)
    if (t.compute == p.operation.compute && t.scale == p.operation.scale && t.in == p.a.type && t.out == p.d.type)
      return true;
  return false;
}

constexpr std::uint64_t kMaxDim = 0x7fffffff;

bool layout_is_possible(const LtLayout& l) {
  return l.rows > 0 && l.columns > 0 && l.rows <= kMaxDim && l.columns <= kMaxDim && l.batch > 0 &&
         l.ld >= static_cast<std::int64_t>(l.rows);
}

bool aligned(const LtLayout& l, std::uint32_t alignment) {
  const std::int64_t bytes = lt_bytes(l.type);
  return l.ld * bytes % alignment == 0 && (l.batch == 1 || l.stride * bytes % alignment == 0);
}

std::uint32_t needed(const LtAlgorithm& a, const LtLayout& l) {
  return a.alignment != 0 ? a.alignment : static_cast<std::uint32_t>(lt_bytes(l.type));
}

void give(const LtAlgorithm& algorithm, cublasStatus_t state, std::size_t workspace,
          cublasLtMatmulHeuristicResult_t& into) {
  into = {};
  into.algo.data[0] = kMark;
  into.algo.data[1] = static_cast<std::uint64_t>(&algorithm - lt_algorithms().data());
  into.state = state;
  into.workspaceSize = workspace;
  into.wavesCount = 1;
}

}  // namespace

const std::vector<LtAlgorithm>& lt_algorithms() {
  static const std::vector<LtAlgorithm> algorithms = {
      {"in_place_sums", 0, 2, CUBLASLT_REDUCTION_SCHEME_INPLACE, 0.1},
      {"split_k", 0, 2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 0.8},
      {"vectors", 16, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0.6},
      {"refused", 0, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0.1, false},
      {"simple", 0, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 1.0},
  };
  return algorithms;
}

const LtAlgorithm* lt_algorithm(const cublasLtMatmulAlgo_t& algo) {
  if (algo.data[0] != kMark || algo.data[1] >= lt_algorithms().size()) return nullptr;
  for (std::size_t i = 2; i < 8; ++i)
    if (algo.data[i] != 0) return nullptr;
  return &lt_algorithms()[algo.data[1]];
}

std::size_t lt_workspace(const LtAlgorithm& algorithm, const LtProblem& p) {
  if (algorithm.k_parts == 1) return 0;
  return static_cast<std::size_t>(algorithm.k_parts * p.m * p.n * p.d.batch * (lt_wide(p) ? 8 : 4));
}

bool lt_layouts_fit(const LtAlgorithm& algorithm, const LtProblem& p) {
  for (const LtLayout* l : {&p.a, &p.b, &p.c, &p.d})
    if (!aligned(*l, needed(algorithm, *l))) return false;
  return true;
}

std::int64_t lt_bytes(cudaDataType_t type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

cublasStatus_t lt_problem(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                          cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, LtProblem& p) {
  const auto* op = lt_find<LtOperation>(operation);
  const LtLayout* layouts[] = {lt_find<LtLayout>(a), lt_find<LtLayout>(b), lt_find<LtLayout>(c), lt_find<LtLayout>(d)};
  for (const LtLayout* l : layouts)
    if (!l || !op || !layout_is_possible(*l)) return CUBLAS_STATUS_INVALID_VALUE;
  p = {*op, *layouts[0], *layouts[1], *layouts[2], *layouts[3]};
  const bool ta = op->transpose_a == CUBLAS_OP_T, tb = op->transpose_b == CUBLAS_OP_T;
  if ((!ta && op->transpose_a != CUBLAS_OP_N) || (!tb && op->transpose_b != CUBLAS_OP_N))
    return CUBLAS_STATUS_INVALID_VALUE;
  p.m = static_cast<std::int64_t>(ta ? p.a.columns : p.a.rows);
  p.k = static_cast<std::int64_t>(ta ? p.a.rows : p.a.columns);
  p.n = static_cast<std::int64_t>(tb ? p.b.rows : p.b.columns);
  const auto is = [](const LtLayout& l, std::int64_t rows, std::int64_t columns) {
    return l.rows == static_cast<std::uint64_t>(rows) && l.columns == static_cast<std::uint64_t>(columns);
  };
  if (!(tb ? is(p.b, p.n, p.k) : is(p.b, p.k, p.n)) || !is(p.c, p.m, p.n) || !is(p.d, p.m, p.n))
    return CUBLAS_STATUS_INVALID_VALUE;
  for (const LtLayout* l : layouts)
    if (l->batch != p.d.batch) return CUBLAS_STATUS_INVALID_VALUE;
  if (p.d.batch > 1 && p.d.stride == 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (!types_go_together(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (op->epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
  if (op->epilogue != CUBLASLT_EPILOGUE_BIAS || lt_wide(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool fits = op->bias && reinterpret_cast<std::uintptr_t>(op->bias) % 16 == 0;
  return fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

}  // namespace sherd::cuda::emulated

using namespace sherd::cuda::emulated;

// Results that failed come along, as the documentation allows: their state says so.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference_handle, int count,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  return lt_call("cublasLtMatmulAlgoGetHeuristic", [&](Gpu& g) {
    *found = 0;
    const auto* preference = lt_find<LtPreference>(preference_handle);
    if (!lt_objects().alive.count(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!preference || count <= 0) return CUBLAS_STATUS_INVALID_VALUE;
    ++g.counters.launches["cublasLtMatmulAlgoGetHeuristic"];
    LtProblem problem;
    if (const cublasStatus_t status = lt_problem(operation, a, b, c, d, problem); status != CUBLAS_STATUS_SUCCESS)
      return status;
    const LtLayout* layouts[] = {&problem.a, &problem.b, &problem.c, &problem.d};
    for (const LtAlgorithm& algorithm : lt_algorithms()) {
      if (*found == count) break;
      if (algorithm.reduction_scheme != CUBLASLT_REDUCTION_SCHEME_NONE &&
          !(algorithm.reduction_scheme & preference->reduction_schemes))
        continue;
      if (problem.k < algorithm.k_parts) continue;
      const std::size_t workspace = lt_workspace(algorithm, problem);
      bool fits = workspace <= preference->workspace_bytes && lt_layouts_fit(algorithm, problem);
      for (int i = 0; i < 4; ++i) fits = fits && preference->alignment[i] >= needed(algorithm, *layouts[i]);
      give(algorithm, fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED, workspace, results[(*found)++]);
    }
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  return lt_call("cublasLtMatmulAlgoCheck", [&](Gpu&) {
    if (!lt_objects().alive.count(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!algo || !result) return CUBLAS_STATUS_INVALID_VALUE;
    const LtAlgorithm* algorithm = lt_algorithm(*algo);
    if (!algorithm) return CUBLAS_STATUS_INVALID_VALUE;
    LtProblem problem;
    if (const cublasStatus_t status = lt_problem(operation, a, b, c, d, problem); status != CUBLAS_STATUS_SUCCESS)
      return status;
    if (!lt_layouts_fit(*algorithm, problem)) return CUBLAS_STATUS_NOT_SUPPORTED;
    result->workspaceSize = lt_workspace(*algorithm, problem);
    result->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
  });
}
