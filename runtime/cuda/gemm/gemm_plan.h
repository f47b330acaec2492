#pragma once
// One problem in cuBLASLt's terms: its descriptors, the algorithms that can solve it, and the call.
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cublasLt.h>

#include "runtime/tensor/dtype.h"

namespace sherd::cuda {

struct Gemm;

/// Everything about a call that the choice of an algorithm depends on; addresses only by their alignment.
struct GemmProblem {
  DType dtype, result;
  bool transpose_a, transpose_b, accumulate, bias, tf32;
  std::int64_t alignment;  ///< of A, B and C in bytes, the least of the three, at most 256
  std::int64_t m, n, k, lda, ldb, ldc, batch, stride_a, stride_b, stride_c;

  static GemmProblem of(const Gemm& g, bool tf32, const void* a, const void* b, const void* c);
  bool operator==(const GemmProblem&) const = default;
  /// "bf16 bf16 NT+bias 256 | 64x128x32 ld 32 32 128 | 1x 0 0 0": a key of the disk cache, and words for errors.
  std::string text() const;
};
struct GemmProblemHash {
  std::size_t operator()(const GemmProblem& p) const;
};

/// One of cuBLASLt's algorithms, configured, and the bytes of workspace it takes.
struct GemmAlgorithm {
  cublasLtMatmulAlgo_t algo{};
  std::size_t workspace_bytes = 0;
};

struct GemmOperands {
  const void* a;
  const void* b;
  void* c;
  const void* bias;
  double alpha;
};

class GemmPlan {
 public:
  /// Throws Error if the descriptors cannot be made.
  explicit GemmPlan(const GemmProblem& problem);
  /// At most `count` algorithms, the library's favourite first; none if it cannot solve the problem. Only those that
  /// sum in a fixed order and round to C's dtype once.
  std::vector<GemmAlgorithm> candidates(cublasLtHandle_t handle, std::size_t workspace_bytes, int count,
                                        const void* bias) const;
  /// Whether the library still takes an algorithm that was found earlier; sets its workspace.
  bool accepts(cublasLtHandle_t handle, GemmAlgorithm& algorithm, std::size_t workspace_bytes) const;
  /// Queues the product.
  cublasStatus_t run(cublasLtHandle_t handle, const GemmAlgorithm& algorithm, const GemmOperands& operands,
                     void* workspace, std::size_t workspace_bytes, cudaStream_t stream) const;

 private:
  struct Destroy {
    void operator()(cublasLtMatmulDescOpaque_t* p) const { (void)cublasLtMatmulDescDestroy(p); }
    void operator()(cublasLtMatrixLayoutOpaque_t* p) const { (void)cublasLtMatrixLayoutDestroy(p); }
  };
  using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy>;
  using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy>;
  static Layout layout(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t ld, std::int64_t batch,
                       std::int64_t stride);
  void set_bias(const void* bias) const;

  const GemmProblem problem_;
  Operation operation_;
  Layout a_, b_, c_;  // of the row-major operands; the library gets B as its first and A as its second
};

}  // namespace sherd::cuda
