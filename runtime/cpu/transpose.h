#pragma once
// Transposing a tile on its way into an accumulator, in squares of as many rows as a vector has lanes.
#include "runtime/cpu/convert.h"

namespace sherd::cpu {

namespace detail {

// Exchanges the off-diagonal quarters of every 2D x 2D square: lane l of `a` keeps its place where bit D of l is clear,
// of `b` where it is set.
template <int D, class T, int... L>
[[gnu::always_inline]] inline void exchange(Vec<T>& a, Vec<T>& b, std::integer_sequence<int, L...>) {
  constexpr int n = kLanes<T>;
  const Vec<T> upper = __builtin_shufflevector(a, b, ((L & D) ? n + L - D : L)...);
  b = __builtin_shufflevector(a, b, ((L & D) ? n + L : L + D)...);
  a = upper;
}

// Inlined into a caller whose square is a local array: it then stays in registers.
template <int D, class T>
[[gnu::always_inline]] inline void transpose_square(Vec<T> (&rows)[kLanes<T>]) {
  if constexpr (D < kLanes<T>) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i)
      if ((i & D) == 0) exchange<D, T>(rows[i], rows[i + D], std::make_integer_sequence<int, kLanes<T>>{});
    transpose_square<2 * D, T>(rows);
  }
}

}  // namespace detail

/// to[c * ld + r] = x[r * row + c] * scale for r < rows, c < columns.
template <class T>
void transpose_tile(const T* x, std::int64_t row, std::int64_t rows, std::int64_t columns, Accumulator<T> scale,
                    Accumulator<T>* to, std::int64_t ld) {
  using A = Accumulator<T>;
  constexpr std::int64_t w = kLanes<A>;
  const std::int64_t whole_rows = rows / w * w, whole_columns = columns / w * w;
  const Vec<A> factor = splat(scale);
  for (std::int64_t r = 0; r < whole_rows; r += w)
    for (std::int64_t c = 0; c < whole_columns; c += w) {
      Vec<A> square[w];
#pragma GCC unroll 16
      for (int i = 0; i < w; ++i) square[i] = load_as_accumulators(x + (r + i) * row + c) * factor;
      detail::transpose_square<1, A>(square);
#pragma GCC unroll 16
      for (int i = 0; i < w; ++i) store<A>(to + (c + i) * ld + r, square[i]);
    }
  for (std::int64_t c = 0; c < columns; ++c)
    for (std::int64_t r = c < whole_columns ? whole_rows : 0; r < rows; ++r)
      to[c * ld + r] = convert<A>(x[r * row + c]) * scale;
}

}  // namespace sherd::cpu
