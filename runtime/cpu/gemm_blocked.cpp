// Our own matrix product, after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008):
// operands are copied block by block into panels that the register kernel reads in order, which also converts dtypes
// and undoes transposes. Sums are kept in the accumulator type for all of K and rounded once.
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/tile_gemm.h"
#include "runtime/cpu/workspace.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kRowsOfPanel = 6;
constexpr std::int64_t kBlockM = 192, kBlockN = 512, kBlockK = 256;
template <class A>
constexpr std::int64_t kColumnsOfPanel = 2 * kLanes<A>;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// A stored matrix seen as op(X): element (i, j) is data[i * row + j * column].
template <class T>
struct Operand {
  const T* data;
  std::int64_t row, column;
  T operator()(std::int64_t i, std::int64_t j) const { return data[i * row + j * column]; }
};

// Panels of `width` lines: panel[p * width + l] = x(first + l, p) for lines along `line`, zero beyond the end.
template <class A, class T>
void pack(Operand<T> x, std::int64_t lines, std::int64_t k, std::int64_t width, A* to) {
  for (std::int64_t first = 0; first < lines; first += width) {
    const std::int64_t here = std::min(width, lines - first);
    for (std::int64_t p = 0; p < k; ++p, to += width) {
      for (std::int64_t l = 0; l < here; ++l) to[l] = convert<A>(x(first + l, p));
      for (std::int64_t l = here; l < width; ++l) to[l] = A{};
    }
  }
}

// sums [m, ld] += panels of A times panels of B.
template <class A>
void multiply_panels(std::int64_t m, std::int64_t n, std::int64_t k, const A* a, const A* b, A* sums, std::int64_t ld) {
  constexpr std::int64_t columns = kColumnsOfPanel<A>;
  for (std::int64_t j = 0; j < n; j += columns)
    for (std::int64_t i = 0; i < m; i += kRowsOfPanel)
      register_block<A, kRowsOfPanel, 2>(k, TileA<A>{a + i * k, 1, kRowsOfPanel}, b + j * k, columns, sums + i * ld + j,
                                         ld, true);
}

template <class A, class R>
void write_back(const A* sums, std::int64_t ld, std::int64_t m, std::int64_t n, R* c, std::int64_t ldc,
                bool accumulate) {
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      R& to = c[i * ldc + j];
      to = convert<R>(accumulate ? convert<A>(to) + sums[i * ld + j] : sums[i * ld + j]);
    }
}

template <class T, class R>
void blocked(const Gemm& g, const T* a, const T* b, R* c) {
  using A = Accumulator<T>;
  const Operand<T> op_a{a, g.transpose_a ? 1 : g.lda, g.transpose_a ? g.lda : 1};
  const Operand<T> op_b{b, g.transpose_b ? g.ldb : 1, g.transpose_b ? 1 : g.ldb};  // lines are columns of op(B)
  const std::int64_t bm = std::min(kBlockM, round_up(g.m, kRowsOfPanel));
  const std::int64_t bn = std::min(kBlockN, round_up(g.n, kColumnsOfPanel<A>));
  const std::int64_t bk = std::min(kBlockK, g.k);
  A* const sums = thread_workspace<A>(WorkspaceUse::gemm_panels, bm * bn + bm * bk + bn * bk);
  A* const panels_b = sums + bm * bn;
  A* const panels_a = panels_b + bn * bk;
  for (std::int64_t j = 0; j < g.n; j += bn)
    for (std::int64_t i = 0; i < g.m; i += bm) {
      const std::int64_t m = std::min(bm, g.m - i), n = std::min(bn, g.n - j);
      std::fill(sums, sums + bm * bn, A{});
      for (std::int64_t p = 0; p < g.k; p += bk) {
        const std::int64_t k = std::min(bk, g.k - p);
        const Operand<T> block_a{op_a.data + i * op_a.row + p * op_a.column, op_a.row, op_a.column};
        const Operand<T> block_b{op_b.data + j * op_b.row + p * op_b.column, op_b.row, op_b.column};
        pack(block_a, m, k, kRowsOfPanel, panels_a);
        pack(block_b, n, k, kColumnsOfPanel<A>, panels_b);
        multiply_panels(m, n, k, panels_a, panels_b, sums, bn);
      }
      write_back(sums, bn, m, n, c + i * g.ldc + j, g.ldc, g.accumulate);
    }
}

}  // namespace

void detail::gemm_blocked(const Gemm& g, const void* a, const void* b, void* c) {
  visit_floating(g.dtype, [&]<class T>(Type<T>) {
    const T* ta = static_cast<const T*>(a);
    const T* tb = static_cast<const T*>(b);
    if (g.result == g.dtype) return blocked(g, ta, tb, static_cast<T*>(c));
    check(g.result == DType::f32 && byte_size(g.dtype) == 2, "a product of {} cannot be stored as {}", name(g.dtype),
          name(g.result));
    blocked(g, ta, tb, static_cast<float*>(c));
  });
}

}  // namespace sherd::cpu
