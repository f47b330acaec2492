// B is read once, where it lies: rows of a transposed B in dot products with the rows of A, rows of a plain one in
// register blocks.
#include "runtime/cpu/gemm/gemm_few_rows.h"

#include "runtime/cpu/convert.h"
#include "runtime/cpu/gemm/tile_gemm.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/workspace.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kTaskElements = 1 << 16;  // of B

template <class T, class R>
struct FewRows {
  using A = Accumulator<T>;
  const Gemm& g;
  const T *a, *b;
  R* c;

  void put(std::int64_t i, std::int64_t j, A sum) const {
    R& to = c[i * g.ldc + j];
    if (g.accumulate) sum = convert<A>(to) + sum;
    else if (g.bias) sum = convert<A>(static_cast<const R*>(g.bias)[j]) + sum;
    to = convert<R>(sum);
  }

  // op(A) as dense rows of accumulators.
  void load_a(A* rows) const {
    for (std::int64_t i = 0; i < g.m; ++i)
      if (g.transpose_a)
        for (std::int64_t q = 0; q < g.k; ++q) rows[i * g.k + q] = convert<A>(a[q * g.lda + i]);
      else convert_row(a + i * g.lda, g.k, rows + i * g.k);
  }

  void dots(std::int64_t begin, std::int64_t end, const A* rows, A* buffer) const {
    for (std::int64_t j = begin; j < end; ++j) {
      const A* const right = load_row(b + j * g.ldb, g.k, buffer);
      for (std::int64_t i = 0; i < g.m; ++i) put(i, j, row_dot(rows + i * g.k, right, g.k));
    }
  }

  // Columns [begin, end) of a plain B of accumulators.
  void panels(std::int64_t begin, std::int64_t end, const A* rows) const {
    constexpr std::int64_t panel = kBlockVectors * kLanes<A>;
    A tile[kBlockRows * panel];
    for (std::int64_t j = begin; j < end; j += panel) {
      const std::int64_t n = std::min(panel, end - j), whole = n / kLanes<A> * kLanes<A>;
      tile_product<A>(g.m, whole, g.k, {rows, g.k, 1}, b + j, g.ldb, {}, tile, panel);
      for (std::int64_t i = 0; i < g.m; ++i) {
        for (std::int64_t l = 0; l < whole; ++l) put(i, j + l, tile[i * panel + l]);
        for (std::int64_t l = whole; l < n; ++l) {
          A sum{};
          for (std::int64_t q = 0; q < g.k; ++q) sum = std::fma(rows[i * g.k + q], b[q * g.ldb + j + l], sum);
          put(i, j + l, sum);
        }
      }
    }
  }

  void run() const {
    const std::int64_t width = kBlockVectors * kLanes<A>;
    const std::int64_t grain = std::max<std::int64_t>(kTaskElements / g.k / width, 1) * width;
    parallel_for(g.n, grain, [&](std::int64_t begin, std::int64_t end) {
      A* const rows = thread_workspace<A>(WorkspaceUse::gemm_panels, (g.m + 1) * g.k);
      load_a(rows);
      if (g.transpose_b) dots(begin, end, rows, rows + g.m * g.k);
      else if constexpr (std::is_same_v<T, A>) panels(begin, end, rows);
      if (g.epilogue) (*g.epilogue)(0, g.m, begin, end - begin);
    });
  }
};

}  // namespace

bool gemm_few_rows(const Gemm& g, const void* a, const void* b, void* c) {
  if (g.m > kBlockRows) return false;
  return visit_floating(g.dtype, [&]<class T>(Type<T>) {
    if (!g.transpose_b && !std::is_same_v<T, Accumulator<T>>) return false;
    const auto run = [&]<class R>(R* to) {
      FewRows<T, R>{g, static_cast<const T*>(a), static_cast<const T*>(b), to}.run();
      return true;
    };
    if (g.result == g.dtype) return run(static_cast<T*>(c));
    if constexpr (sizeof(T) == 2)
      if (g.result == DType::f32) return run(static_cast<float*>(c));
    return false;
  });
}

}  // namespace sherd::cpu
