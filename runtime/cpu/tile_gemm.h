#pragma once
// C [m, n] (+)= A [m, k] B [k, n] for tiles that fit the cache: a register block of 6 rows by 2 vectors keeps both
// multiply-add units busy. A has any strides (so also its transpose), rows of B and C are dense.
#include <cmath>

#include "runtime/cpu/simd.h"

namespace sherd::cpu {

/// How to walk A: element (i, p) is data[i * row + p * column].
template <class T>
struct TileA {
  const T* data;
  std::int64_t row, column;
};

/// Rows x (Vectors * lanes) of C over k products, kept in registers.
template <class T, int Rows, int Vectors>
void register_block(std::int64_t k, TileA<T> a, const T* b, std::int64_t ldb, T* c, std::int64_t ldc, bool accumulate) {
  Vec<T> sum[Rows][Vectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) sum[r][v] = accumulate ? load(c + r * ldc + v * kLanes<T>) : Vec<T>{};
  for (std::int64_t p = 0; p < k; ++p) {
    Vec<T> row[Vectors];
    for (int v = 0; v < Vectors; ++v) row[v] = load(b + p * ldb + v * kLanes<T>);
    for (int r = 0; r < Rows; ++r) {
      const Vec<T> x = splat(a.data[r * a.row + p * a.column]);
      for (int v = 0; v < Vectors; ++v) sum[r][v] = fma(x, row[v], sum[r][v]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) store<T>(c + r * ldc + v * kLanes<T>, sum[r][v]);
}

namespace detail {
// All rows of `Vectors` columns of vectors.
template <class T, int Vectors>
void tile_columns(std::int64_t m, std::int64_t k, TileA<T> a, const T* b, std::int64_t ldb, T* c, std::int64_t ldc,
                  bool accumulate) {
  std::int64_t i = 0;
  for (; i + 6 <= m; i += 6)
    register_block<T, 6, Vectors>(k, {a.data + i * a.row, a.row, a.column}, b, ldb, c + i * ldc, ldc, accumulate);
  for (; i + 2 <= m; i += 2)
    register_block<T, 2, Vectors>(k, {a.data + i * a.row, a.row, a.column}, b, ldb, c + i * ldc, ldc, accumulate);
  for (; i < m; ++i)
    register_block<T, 1, Vectors>(k, {a.data + i * a.row, a.row, a.column}, b, ldb, c + i * ldc, ldc, accumulate);
}
}  // namespace detail

template <class T>
void tile_gemm(std::int64_t m, std::int64_t n, std::int64_t k, TileA<T> a, const T* b, std::int64_t ldb, T* c,
               std::int64_t ldc, bool accumulate) {
  constexpr std::int64_t w = kLanes<T>;
  std::int64_t j = 0;
  for (; j + 2 * w <= n; j += 2 * w) detail::tile_columns<T, 2>(m, k, a, b + j, ldb, c + j, ldc, accumulate);
  for (; j + w <= n; j += w) detail::tile_columns<T, 1>(m, k, a, b + j, ldb, c + j, ldc, accumulate);
  for (std::int64_t i = 0; i < m && j < n; ++i)
    for (std::int64_t column = j; column < n; ++column) {
      T sum = accumulate ? c[i * ldc + column] : T{};
      for (std::int64_t p = 0; p < k; ++p) sum = std::fma(a.data[i * a.row + p * a.column], b[p * ldb + column], sum);
      c[i * ldc + column] = sum;
    }
}

}  // namespace sherd::cpu
