#include "runtime/cuda/gemm/gemm.h"

#include <algorithm>
#include <limits>

#include "runtime/cuda/device/context.h"
#include "runtime/cuda/gemm/blas.h"
#include "runtime/cuda/gemm/gemm_choice.h"
#include "runtime/cuda/rows/fill_rows.h"

namespace sherd::cuda {

namespace {

constexpr std::int64_t kMaxDim = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxBatch = 65535;      // of a launch: the third dim of a grid
constexpr std::uintptr_t kBiasAlignment = 16;  // of the epilogue's vector loads

void check_dims(const Gemm& g) {
  for (const std::int64_t dim : {g.m, g.n, g.k, g.lda, g.ldb, g.ldc})
    check(dim <= kMaxDim,
          "a product of [{}, {}] and [{}, {}] with rows {}, {} and {} apart: cuBLASLt counts in 32 bits, "
          "so none may exceed {}; split the larger dim",
          g.m, g.k, g.k, g.n, g.lda, g.ldb, g.ldc, kMaxDim);
}

// Without the library's epilogue the bias is what C holds before the product is added to it: rounded once all the same.
void start_from_bias(Context& context, Gemm& g, void* c) {
  fill_rows(context.stream(), g.result, c, g.m, g.n, g.ldc, g.batch, g.stride_c, g.bias);
  g.bias = nullptr;
  g.accumulate = true;
}

void multiply(Context& context, Gemm g, const void* a, const void* b, void* c) {
  if (g.bias && reinterpret_cast<std::uintptr_t>(g.bias) % kBiasAlignment != 0) start_from_bias(context, g, c);
  Blas& blas = context.blas();
  for (;;) {
    const GemmProblem problem = GemmProblem::of(g, blas.uses_tf32(), a, b, c);
    const GemmOperands operands{a, b, c, g.bias, g.alpha};
    const GemmChoice& choice = blas.choices().find(context, problem, operands);
    if (choice.algorithm) {
      context.log().add("cuBLASLt product", context.log().row());
      const cublasStatus_t status = choice.plan.run(blas.handle(), *choice.algorithm, operands, blas.workspace(),
                                                    blas.workspace_bytes(), context.stream());
      if (status != CUBLAS_STATUS_SUCCESS) {
        check_device("running a product");
        fail("product {}: {} ({})", problem.text(), cublasLtGetStatusName(status), cublasLtGetStatusString(status));
      }
      return;
    }
    if (!g.bias) fail("cuBLASLt {} has no algorithm for the product {}", cublasLtGetVersion(), problem.text());
    start_from_bias(context, g, c);
  }
}

const void* advance(const void* p, std::int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(p) + elements * byte_size(dtype);
}

}  // namespace

void gemm(Context& context, const Gemm& g, const void* a, const void* b, void* c) {
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  if (g.k == 0) {  // sums of nothing
    if (!g.accumulate) fill_rows(context.stream(), g.result, c, g.m, g.n, g.ldc, g.batch, g.stride_c, g.bias);
    return;
  }
  check_dims(g);
  for (std::int64_t first = 0; first < g.batch; first += kMaxBatch) {
    Gemm part = g;
    part.batch = std::min(kMaxBatch, g.batch - first);
    multiply(context, part, advance(a, first * g.stride_a, g.dtype), advance(b, first * g.stride_b, g.dtype),
             static_cast<std::byte*>(c) + first * g.stride_c * byte_size(g.result));
  }
}

}  // namespace sherd::cuda
