#pragma once
// Transposing a tile on its way into an accumulator, eight by eight in registers for f32.
#include "runtime/cpu/simd.h"

namespace sherd::cpu {

namespace detail {

// The usual three rounds of exchanges: neighbours, pairs, halves.
inline void transpose_8x8(const float* x, std::int64_t row, float scale, float* to, std::int64_t ld) {
  __m256 r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(x + i * row) * scale;
  for (int i = 0; i < 8; i += 2) {
    s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      r[i + 2 * j] = _mm256_shuffle_ps(s[i + j], s[i + 2 + j], 0b01000100);
      r[i + 2 * j + 1] = _mm256_shuffle_ps(s[i + j], s[i + 2 + j], 0b11101110);
    }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * ld, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * ld, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

}  // namespace detail

/// to[c * ld + r] = x[r * row + c] * scale for r < rows, c < columns.
template <class T>
void transpose_tile(const T* x, std::int64_t row, std::int64_t rows, std::int64_t columns, Accumulator<T> scale,
                    Accumulator<T>* to, std::int64_t ld) {
  std::int64_t whole_rows = 0, whole_columns = 0;
  if constexpr (std::is_same_v<T, float>) {
    whole_rows = rows / 8 * 8;
    whole_columns = columns / 8 * 8;
    for (std::int64_t r = 0; r < whole_rows; r += 8)
      for (std::int64_t c = 0; c < whole_columns; c += 8)
        detail::transpose_8x8(x + r * row + c, row, scale, to + c * ld + r, ld);
  }
  for (std::int64_t c = 0; c < columns; ++c)
    for (std::int64_t r = c < whole_columns ? whole_rows : 0; r < rows; ++r)
      to[c * ld + r] = convert<Accumulator<T>>(x[r * row + c]) * scale;
}

}  // namespace sherd::cpu
