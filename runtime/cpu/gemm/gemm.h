#pragma once
// The seam of matrix products. Two engines lie behind it: our own blocked kernel, and oneDNN for bf16 on CPUs with AMX.
// Work is cut into pieces by problem size only and every piece is computed by one thread, so results have the same bits
// on any number of threads.
#include <cstdint>

#include "runtime/tensor/dtype.h"

namespace sherd::cpu {

/// A borrowed `void(row, rows, column, columns)`, called once for every rectangle of C as soon as it is final, by the
/// thread that computed it, while it is in that thread's cache: what follows a product element by element.
class GemmEpilogue {
 public:
  template <class Fn>
  explicit GemmEpilogue(const Fn& fn)
      : object_(&fn),
        call_([](const void* object, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
          (*static_cast<const Fn*>(object))(row, rows, column, columns);
        }) {}
  void operator()(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) const {
    call_(object_, row, rows, column, columns);
  }

 private:
  const void* object_;
  void (*call_)(const void*, std::int64_t, std::int64_t, std::int64_t, std::int64_t);
};

/// Row-major C [M, N] = op(A) [M, K] op(B) [K, N] (+ C) (+ bias), for `batch` problems at fixed distances.
struct Gemm {
  DType dtype = DType::f32;   ///< of A and B: f64, f32, bf16, f16; 16-bit floats accumulate in f32
  DType result = DType::f32;  ///< of C and bias: the same as dtype, or f32 for 16-bit inputs
  bool transpose_a = false;   ///< A is stored [K, M]
  bool transpose_b = false;   ///< B is stored [N, K]
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;  ///< elements between stored rows
  std::int64_t batch = 1;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;  ///< elements between problems; 0 repeats one operand
  bool accumulate = false;                                ///< add to C, rounding once
  const void* bias = nullptr;                             ///< [N], added to every row; not with accumulate
  const GemmEpilogue* epilogue = nullptr;                 ///< not with batch > 1
};

/// Runs on the threads of parallel.h. K = 0 gives zeros (or bias, or C unchanged).
void gemm(const Gemm& g, const void* a, const void* b, void* c);

/// `fastest` is `blocked`, but for bf16 on CPUs with AMX.
enum class GemmBackend : std::uint8_t { fastest, library, blocked };

/// Chooses the engine on this thread for a scope (tests, comparisons). `library` falls back to `blocked` where the
/// library is not built in or lacks the dtype.
class UseGemmBackend {
 public:
  explicit UseGemmBackend(GemmBackend backend);
  ~UseGemmBackend();
  UseGemmBackend(const UseGemmBackend&) = delete;
  UseGemmBackend& operator=(const UseGemmBackend&) = delete;

 private:
  GemmBackend outer_;
};

namespace detail {
bool onednn_is_built_in();
/// One problem on one thread, K > 0; batch and epilogue are ignored. False if the library does not know the
/// dtypes; nothing has been written then.
bool gemm_onednn(const Gemm& g, const void* a, const void* b, void* c);
}  // namespace detail

}  // namespace sherd::cpu
