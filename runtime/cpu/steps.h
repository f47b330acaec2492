#pragma once
// Factors of products as register blocks take them (tile_gemm.h): accumulators, or pairs of bf16 along the summed dim,
// called K here, where the CPU multiplies those. A step of products is one packed element along K.
#include <cstring>
#include <type_traits>

#include "runtime/cpu/convert.h"
#include "runtime/cpu/parallel.h"

namespace sherd::cpu {

/// What elements of T are packed as.
template <class T>
using Packed = std::conditional_t<std::is_same_v<T, bf16> && kMultipliesBf16, Bf16Pair, Accumulator<T>>;

/// Elements along K in one of them.
template <class T>
constexpr std::int64_t kTogether = std::is_same_v<Packed<T>, Bf16Pair> ? 2 : 1;

/// Steps of n elements along K; an odd last one is paired with zero.
template <class T>
constexpr std::int64_t steps_of(std::int64_t n) {
  return num_chunks(n, kTogether<T>);
}

/// One step for the columns of a matrix that is stored with its rows along K: the elements from x on, each with its
/// neighbour of the next row, `ld` further on, or with zero if that is not `whole`.
template <class T>
[[gnu::always_inline]] inline Vec<Packed<T>> load_step(const T* x, std::int64_t ld, bool whole) {
  if constexpr (kTogether<T> == 1) {
    return load_as_accumulators(x);
  } else {
    const auto words = [](const T* from) { return widen(detail::load_halves(from)); };
    return whole ? words(x) | words(x + ld) << 16 : words(x);
  }
}

/// The same for n columns. Inlined: a constant n becomes a few loads and stores.
template <class T>
[[gnu::always_inline]] inline void pack_step(const T* x, std::int64_t ld, bool whole, std::int64_t n, Packed<T>* to) {
  using P = Packed<T>;
  std::int64_t i = 0;
  for (; i + kLanes<P> <= n; i += kLanes<P>) store<P>(to + i, load_step(x + i, ld, whole));
  if constexpr (std::is_same_v<T, P>) {
    std::memcpy(to + i, x + i, static_cast<std::size_t>(n - i) * sizeof(P));
  } else {
    for (; i < n; ++i)
      if constexpr (kTogether<T> == 1) to[i] = convert<P>(x[i]);
      else to[i] = {x[i].bits, whole ? x[i + ld].bits : std::uint16_t{}};
  }
}

/// k elements along K, n of which lie together, as steps_of(k).
template <class T>
void pack_along(const T* x, std::int64_t k, Packed<T>* to) {
  if constexpr (kTogether<T> == 1) {
    convert_row(x, k, to);
  } else {
    std::memcpy(to, x, static_cast<std::size_t>(k) * sizeof(T));
    if (k % 2 != 0) to[k / 2].second = 0;
  }
}

/// Rows of sums that are factors of the next product, `ld` apart, n whole vectors each, rounded to pairs along the
/// rows: to[r * to_ld + j] = {x[r][2 j], x[r][2 j + 1]}.
inline void round_rows(const float* x, std::int64_t ld, std::int64_t rows, std::int64_t n, Bf16Pair* to,
                       std::int64_t to_ld) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t j = 0; j < n; j += kLanes<float>) {
      const HalfWords rounded = product_to_bf16(load(x + r * ld + j));
      std::memcpy(to + r * to_ld + j / 2, &rounded, sizeof rounded);
    }
}

/// The same to pairs across the rows, the last of an odd number with zero:
/// to[r * to_ld + j] = {x[2 r][j], x[2 r + 1][j]}.
inline void round_across_rows(const float* x, std::int64_t ld, std::int64_t rows, std::int64_t n, Bf16Pair* to,
                              std::int64_t to_ld) {
  for (std::int64_t r = 0; r < rows; r += 2)
    for (std::int64_t j = 0; j < n; j += kLanes<float>) {
      Words pairs = widen(product_to_bf16(load(x + r * ld + j)));
      if (r + 1 < rows) pairs |= widen(product_to_bf16(load(x + (r + 1) * ld + j))) << 16;
      store<Bf16Pair>(to + r / 2 * to_ld + j, pairs);
    }
}

}  // namespace sherd::cpu
