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

// Squares of whole vectors: load(r, c) are the elements from column c on of row r; column c becomes row to + c * ld.
template <class A, class Load>
[[gnu::always_inline]] inline void transpose_squares(std::int64_t rows, std::int64_t columns, const Load& load,
                                                     void* to, std::int64_t ld) {
  constexpr std::int64_t w = kLanes<A>;
  for (std::int64_t r = 0; r < rows; r += w)
    for (std::int64_t c = 0; c < columns; c += w) {
      Vec<A> square[w];
#pragma GCC unroll 16
      for (int i = 0; i < w; ++i) square[i] = load(r + i, c);
      transpose_square<1, A>(square);
#pragma GCC unroll 16
      for (int i = 0; i < w; ++i) store<A>(static_cast<A*>(to) + (c + i) * ld + r, square[i]);
    }
}

template <class A>
constexpr std::int64_t whole(std::int64_t n) {
  return n / kLanes<A> * kLanes<A>;
}

}  // namespace detail

/// to[c * ld + r] = x[r * row + c] * scale for r < rows, c < columns.
template <class T>
void transpose_tile(const T* x, std::int64_t row, std::int64_t rows, std::int64_t columns, Accumulator<T> scale,
                    Accumulator<T>* to, std::int64_t ld) {
  using A = Accumulator<T>;
  const std::int64_t whole_rows = detail::whole<A>(rows), whole_columns = detail::whole<A>(columns);
  const Vec<A> factor = splat(scale);
  const auto load = [=](std::int64_t r, std::int64_t c) { return load_as_accumulators(x + r * row + c) * factor; };
  detail::transpose_squares<A>(whole_rows, whole_columns, load, to, ld);
  for (std::int64_t c = 0; c < columns; ++c)
    for (std::int64_t r = c < whole_columns ? whole_rows : 0; r < rows; ++r)
      to[c * ld + r] = convert<A>(x[r * row + c]) * scale;
}

/// to[c * ld + r] = {x[r * row + 2 c], x[r * row + 2 c + 1]} for r < rows; the last of an odd number of columns is
/// paired with zero.
inline void transpose_pairs(const bf16* x, std::int64_t row, std::int64_t rows, std::int64_t columns, Bf16Pair* to,
                            std::int64_t ld) {
  const std::int64_t pairs = columns / 2;
  const std::int64_t whole_rows = detail::whole<float>(rows), whole_pairs = detail::whole<float>(pairs);
  const auto load = [=](std::int64_t r, std::int64_t c) {
    Vec<float> v;  // two bf16 move as one f32
    std::memcpy(&v, x + r * row + 2 * c, sizeof v);
    return v;
  };
  detail::transpose_squares<float>(whole_rows, whole_pairs, load, to, ld);
  for (std::int64_t c = 0; c < pairs; ++c)
    for (std::int64_t r = c < whole_pairs ? whole_rows : 0; r < rows; ++r)
      to[c * ld + r] = {x[r * row + 2 * c].bits, x[r * row + 2 * c + 1].bits};
  for (std::int64_t r = 0; columns % 2 != 0 && r < rows; ++r) to[pairs * ld + r] = {x[r * row + columns - 1].bits, 0};
}

}  // namespace sherd::cpu
