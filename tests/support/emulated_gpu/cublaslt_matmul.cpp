// cuBLASLt: the product itself, a triple loop queued on the stream like a kernel.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "runtime/tensor/dtype.h"
#include "tests/support/emulated_gpu/cublaslt.h"

using namespace sherd::cuda::emulated;

namespace {

struct Call {
  LtProblem problem;
  const LtAlgorithm* algorithm;
  double alpha, beta;
  const void *a, *b, *c;
  void *d, *workspace;
};

double load(cudaDataType_t type, const void* p, std::int64_t i) {
  switch (type) {
    case CUDA_R_64F: return static_cast<const double*>(p)[i];
    case CUDA_R_32F: return static_cast<const float*>(p)[i];
    case CUDA_R_16BF: return static_cast<float>(static_cast<const sherd::bf16*>(p)[i]);
    default: return static_cast<float>(static_cast<const sherd::f16*>(p)[i]);
  }
}

template <class Acc>
void store(cudaDataType_t type, void* p, std::int64_t i, Acc value) {
  switch (type) {
    case CUDA_R_64F: static_cast<double*>(p)[i] = value; return;
    case CUDA_R_32F: static_cast<float*>(p)[i] = static_cast<float>(value); return;
    case CUDA_R_16BF: static_cast<sherd::bf16*>(p)[i] = sherd::bf16(static_cast<float>(value)); return;
    default: static_cast<sherd::f16*>(p)[i] = sherd::f16(static_cast<float>(value)); return;
  }
}

// Ten bits of mantissa, to nearest even.
float to_tf32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x) || std::isinf(x)) return x;
  return std::bit_cast<float>((bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu);
}

// One matrix of a batch as [columns][rows] of op(X), in the accumulator's type.
template <class Acc>
std::vector<Acc> read(const LtLayout& l, bool transpose, const void* p, std::int64_t problem, bool tf32) {
  const auto rows = static_cast<std::int64_t>(transpose ? l.columns : l.rows);
  const auto columns = static_cast<std::int64_t>(transpose ? l.rows : l.columns);
  std::vector<Acc> values(static_cast<std::size_t>(rows * columns));
  for (std::int64_t j = 0; j < columns; ++j)
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t at = problem * l.stride + (transpose ? i * l.ld + j : j * l.ld + i);
      Acc value = static_cast<Acc>(load(l.type, p, at));
      if constexpr (sizeof(Acc) == 4) value = tf32 ? to_tf32(value) : value;
      values[static_cast<std::size_t>(j * rows + i)] = value;
    }
  return values;
}

template <class Acc>
void multiply(const Call& call, std::int64_t at) {
  const LtProblem& p = call.problem;
  const bool tf32 = p.operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const std::vector<Acc> a = read<Acc>(p.a, p.operation.transpose_a == CUBLAS_OP_T, call.a, at, tf32);
  const std::vector<Acc> b = read<Acc>(p.b, p.operation.transpose_b == CUBLAS_OP_T, call.b, at, tf32);
  const auto m = static_cast<std::size_t>(p.m), k = static_cast<std::size_t>(p.k);
  const auto parts = static_cast<std::size_t>(call.algorithm->k_parts);
  std::vector<Acc> sum(m), part(m);
  for (std::size_t j = 0; j < static_cast<std::size_t>(p.n); ++j) {
    std::fill(sum.begin(), sum.end(), Acc{0});
    for (std::size_t s = 0; s < parts; ++s) {
      std::fill(part.begin(), part.end(), Acc{0});
      for (std::size_t l = k * s / parts; l < k * (s + 1) / parts; ++l)
        for (std::size_t i = 0; i < m; ++i) part[i] = std::fma(a[l * m + i], b[j * k + l], part[i]);
      for (std::size_t i = 0; i < m; ++i) sum[i] = s == 0 ? part[i] : sum[i] + part[i];
    }
    const std::int64_t column = at * p.c.stride + static_cast<std::int64_t>(j) * p.c.ld;
    for (std::size_t i = 0; i < m; ++i) {
      const auto row = static_cast<std::int64_t>(i);
      Acc value = static_cast<Acc>(call.alpha) * sum[i];
      if (call.beta != 0) value += static_cast<Acc>(call.beta) * static_cast<Acc>(load(p.c.type, call.c, column + row));
      if (p.operation.epilogue == CUBLASLT_EPILOGUE_BIAS)
        value += static_cast<Acc>(load(p.d.type, p.operation.bias, row));
      store(p.d.type, call.d, at * p.d.stride + static_cast<std::int64_t>(j) * p.d.ld + row, value);
    }
  }
}

std::size_t extent(const LtLayout& l) {
  const std::int64_t elements =
      (l.batch - 1) * l.stride + (static_cast<std::int64_t>(l.columns) - 1) * l.ld + static_cast<std::int64_t>(l.rows);
  return static_cast<std::size_t>(elements * lt_bytes(l.type));
}

void run(Gpu& g, const Call& call) {
  const LtProblem& p = call.problem;
  ++g.counters.kernels;
  ++g.counters.launches[std::string("cublasLtMatmul ") + call.algorithm->name];
  g.time_passes(call.algorithm->seconds);
  const auto& memory = device_memory();
  const std::size_t workspace = lt_workspace(*call.algorithm, p);
  const bool bias = p.operation.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (!memory.accessible(call.a, extent(p.a)) || !memory.accessible(call.b, extent(p.b)) ||
      !memory.accessible(call.d, extent(p.d)) || (call.beta != 0 && !memory.accessible(call.c, extent(p.c))) ||
      (bias && !memory.accessible(p.operation.bias, static_cast<std::size_t>(p.m * lt_bytes(p.d.type)))) ||
      (workspace > 0 && !memory.accessible(call.workspace, workspace)))
    return g.lose(cudaErrorIllegalAddress, "cublasLtMatmul: an operand reaches beyond device memory");
  device_memory().open();
  if (workspace > 0) std::fill_n(static_cast<unsigned char*>(call.workspace), workspace, 0xff);
  for (std::int64_t i = 0; i < p.d.batch; ++i) lt_wide(p) ? multiply<double>(call, i) : multiply<float>(call, i);
  const std::string overrun = device_memory().overrun();
  device_memory().close();
  if (!overrun.empty()) g.lose(cudaErrorIllegalAddress, "cublasLtMatmul " + overrun);
}

bool aligned(const void* p, std::uint32_t alignment) { return reinterpret_cast<std::uintptr_t>(p) % alignment == 0; }

double scalar(const LtProblem& p, const void* value) {
  return lt_wide(p) ? *static_cast<const double*>(value) : static_cast<double>(*static_cast<const float*>(value));
}

// What is wrong with a call whose problem is possible.
cublasStatus_t check(const Call& call, std::size_t workspace_bytes) {
  const LtProblem& p = call.problem;
  if (!call.algorithm->launches || !lt_layouts_fit(*call.algorithm, p)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const std::size_t workspace = lt_workspace(*call.algorithm, p);
  if (workspace > workspace_bytes || (workspace > 0 && (!call.workspace || !aligned(call.workspace, 16))))
    return CUBLAS_STATUS_INVALID_VALUE;
  const void* addresses[] = {call.a, call.b, call.c, call.d};
  const LtLayout* layouts[] = {&p.a, &p.b, &p.c, &p.d};
  for (int i = 0; i < 4; ++i) {
    const auto element = static_cast<std::uint32_t>(lt_bytes(layouts[i]->type));
    if (!addresses[i] || !aligned(addresses[i], std::max(element, call.algorithm->alignment)))
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  // In place only where both lie the same way.
  if (call.c == call.d && (p.c.ld != p.d.ld || p.c.stride != p.d.stride)) return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream_handle) {
  return lt_call("cublasLtMatmul", [&](Gpu& g) {
    if (!lt_objects().alive.count(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
    Stream* stream = g.find(stream_handle);
    // Without an algorithm the library asks its heuristics at every call: not what this backend does.
    if (!stream || !alpha || !beta || !algo) return CUBLAS_STATUS_INVALID_VALUE;
    Call call{};
    if (const cublasStatus_t status = lt_problem(operation, a_layout, b_layout, c_layout, d_layout, call.problem);
        status != CUBLAS_STATUS_SUCCESS)
      return status;
    call.algorithm = lt_algorithm(*algo);
    if (!call.algorithm) return CUBLAS_STATUS_INVALID_VALUE;
    call.alpha = scalar(call.problem, alpha);
    call.beta = scalar(call.problem, beta);
    call.a = a;
    call.b = b;
    call.c = c;
    call.d = d;
    call.workspace = workspace;
    if (const cublasStatus_t status = check(call, workspace_bytes); status != CUBLAS_STATUS_SUCCESS) return status;
    g.launch(*stream, "cublasLtMatmul", [&g, call] { run(g, call); });
    return g.broken == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
  });
}
