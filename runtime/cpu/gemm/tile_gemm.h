#pragma once
// C [m, n] = (D +) A [m, k] B [k, n] for operands in cache. A register block of kBlockRows by kBlockVectors vectors
// keeps both multiply-add units busy: eight or more independent sums hide their latency, and fewer loads than products
// go through the two load ports. A has any strides (so also its transpose), rows of B, C and D are dense. A and B hold
// accumulators, or pairs of bf16 (steps.h), of which k then counts pairs; C and D hold accumulators.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "runtime/cpu/simd.h"

namespace sherd::cpu {

/// The largest register block: 24 of 32 registers hold sums, or 12 of 16.
inline constexpr int kBlockRows = kVecBytes == 64 ? 8 : 6;
inline constexpr int kBlockVectors = kVecBytes == 64 ? 3 : 2;

/// How to walk A: element (i, p) is data[i * row + p * column].
template <class T>
struct TileA {
  const T* data;
  std::int64_t row, column;
};

/// The right operand's rows; `packed` says that a panel's rows follow each other.
template <class T>
struct TileB {
  const T* data;
  std::int64_t ld;
  bool packed = false;
};

/// What is added to the product: rows `ld` apart (0 repeats one row); null adds nothing.
template <class A>
struct TileAddend {
  const A* data = nullptr;
  std::int64_t ld = 0;
};

/// What later blocks read: one line of the cache is asked for every kAheadSteps steps, `step` bytes from the last.
struct TileAhead {
  const void* line = nullptr;
  std::int64_t step = 0;
};
inline constexpr std::int64_t kAheadSteps = 16;

/// Rows x (Vectors * lanes) of C over k > 0 products, kept in registers; A's element (i, p) is a[i * row + p * column].
/// C may be D. Packed: rows of B follow each other; C's lines and those ahead come from memory meanwhile, a few at a
/// time, because a burst would keep the loop's own loads waiting.
// Not inlined, one loop that is entered once and walks by pointers: so g++ keeps the sums in registers from the first
// product to the store. Scalar arguments: a struct on the stack is read by a wider load than it was written with, which
// waits until all stores of the block before have left for C.
template <class T, int Rows, int Vectors, bool Packed>
[[gnu::noinline]] void register_block(std::int64_t k, const T* a, std::int64_t row, std::int64_t column, const T* b,
                                      std::int64_t ldb, Accumulator<T>* c, std::int64_t ldc, const Accumulator<T>* d,
                                      std::int64_t ldd, const std::byte* ahead, std::int64_t ahead_step) {
  using A = Accumulator<T>;
  constexpr std::int64_t w = kLanes<A>;
  Vec<A> sum[Rows][Vectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) {
      sum[r][v] = Vec<A>{};
      if constexpr (Packed) __builtin_prefetch(c + r * ldc + v * w, 1);
    }
  do {
    const std::int64_t rest = Packed ? std::max<std::int64_t>(k - kAheadSteps, 0) : 0;
    if constexpr (Packed) {
      __builtin_prefetch(ahead, 0, 2);  // to the second-level cache
      ahead += ahead_step;
    }
    do {
      Vec<T> right[Vectors];
      for (int v = 0; v < Vectors; ++v) {
        right[v] = load(b + v * w);
        if constexpr (Packed) __builtin_prefetch(b + v * w + 2048 / sizeof(T));  // comes from the second-level cache
      }
      for (int r = 0; r < Rows; ++r) {
        const Vec<T> left = splat_at(a + r * row);
        for (int v = 0; v < Vectors; ++v) sum[r][v] = multiply_add(left, right[v], sum[r][v]);
      }
      a += column;
      b += Packed ? Vectors * w : ldb;
    } while (--k > rest);
  } while (k > 0);
  if (d) {
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < Vectors; ++v) store<A>(c + r * ldc + v * w, load(d + r * ldd + v * w) + sum[r][v]);
  } else {
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < Vectors; ++v) store<A>(c + r * ldc + v * w, sum[r][v]);
  }
}

namespace detail {
// The m rows of one panel of `Vectors` vectors: whole blocks first, then halves.
template <class T, int Vectors, bool Packed, int Rows = kBlockRows>
[[gnu::always_inline]] inline void panel_rows(std::int64_t m, std::int64_t k, const TileA<T>& a, const T* b,
                                              std::int64_t ldb, const TileAddend<Accumulator<T>>& d, Accumulator<T>* c,
                                              std::int64_t ldc, const TileAhead& ahead, std::int64_t i = 0) {
  for (; i + Rows <= m; i += Rows)
    register_block<T, Rows, Vectors, Packed>(k, a.data + i * a.row, a.row, a.column, b, ldb, c + i * ldc, ldc,
                                             d.data ? d.data + i * d.ld : nullptr, d.ld,
                                             static_cast<const std::byte*>(ahead.line), ahead.step);
  if constexpr (Rows > 1) {
    if (i < m) panel_rows<T, Vectors, Packed, Rows / 2>(m, k, a, b, ldb, d, c, ldc, ahead, i);
  }
}

template <class T, int Vectors>
[[gnu::always_inline]] inline void panel(std::int64_t m, std::int64_t k, const TileA<T>& a, const TileB<T>& b,
                                         const TileAddend<Accumulator<T>>& d, Accumulator<T>* c, std::int64_t ldc,
                                         const TileAhead& ahead) {
  if (b.packed) panel_rows<T, Vectors, true>(m, k, a, b.data, b.ld, d, c, ldc, ahead);
  else panel_rows<T, Vectors, false>(m, k, a, b.data, b.ld, d, c, ldc, ahead);
}
}  // namespace detail

/// C [m, vectors * lanes] = D + A B for up to kBlockVectors whole vectors of columns, k > 0. A packed B looks `ahead`.
template <class T>
[[gnu::always_inline]] inline void tile_panel(std::int64_t m, std::int64_t vectors, std::int64_t k, const TileA<T>& a,
                                              const TileB<T>& b, const TileAddend<Accumulator<T>>& d, Accumulator<T>* c,
                                              std::int64_t ldc, const TileAhead& ahead) {
  if (vectors == kBlockVectors) return detail::panel<T, kBlockVectors>(m, k, a, b, d, c, ldc, ahead);
  if (vectors == 1) return detail::panel<T, 1>(m, k, a, b, d, c, ldc, ahead);
  if constexpr (kBlockVectors == 3) detail::panel<T, 2>(m, k, a, b, d, c, ldc, ahead);
}

/// C [m, columns] = D + A B for whole vectors of columns and any k; panels are of even width.
template <class T>
void tile_product(std::int64_t m, std::int64_t columns, std::int64_t k, const TileA<T>& a, const T* b, std::int64_t ldb,
                  const TileAddend<Accumulator<T>>& d, Accumulator<T>* c, std::int64_t ldc) {
  using A = Accumulator<T>;
  constexpr std::int64_t w = kLanes<A>;
  if (k <= 0) {
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < columns; ++j) c[i * ldc + j] = d.data ? d.data[i * d.ld + j] : A{};
    return;
  }
  std::int64_t panels = (columns / w + kBlockVectors - 1) / kBlockVectors;
  for (std::int64_t j = 0; j < columns; --panels) {
    const std::int64_t vectors = ((columns - j) / w + panels - 1) / panels;
    tile_panel<T>(m, vectors, k, a, {b + j, ldb}, {d.data ? d.data + j : nullptr, d.ld}, c + j, ldc, {});
    j += vectors * w;
  }
}

}  // namespace sherd::cpu
