#pragma once
// What forward and backward of attention share. Letters as in op/attention.cpp; products are made of register blocks
// (tile_gemm.h), so scores and weights are computed kBlockRows queries at a time and only up to the last key that one
// of them sees.
#include <numbers>

#include "runtime/cpu/heads.h"
#include "runtime/cpu/tile_gemm.h"
#include "runtime/cpu/transpose.h"
#include "runtime/op/op.h"

namespace sherd::cpu {

inline constexpr std::int64_t kQueries = 64;  // per tile
inline constexpr std::int64_t kKeys = 64;     // per packed tile

template <class A>
constexpr std::int64_t whole_vectors(std::int64_t n) {
  return (n + kLanes<A> - 1) / kLanes<A> * kLanes<A>;
}

struct AttentionSizes {
  std::int64_t b, h, g, tq, tk, k;
  std::int64_t group() const { return h / g; }
  /// Elements of a head's keys packed by pack_transposed.
  std::int64_t packed() const { return (tk + kKeys - 1) / kKeys * kKeys * k; }
};

inline AttentionSizes attention_sizes(const Tensor& q, const Tensor& k) {
  return {q.size(0), q.size(1), k.size(1), q.size(2), k.size(2), q.size(3)};
}

/// Which keys a query sees: causal ones up to query + shift.
struct AttentionMask {
  bool causal;
  std::int64_t tk, shift;
  /// Keys of [first, first + count) that `query` sees; they are the first ones.
  std::int64_t visible(std::int64_t query, std::int64_t first, std::int64_t count) const {
    const std::int64_t seen = causal ? std::clamp<std::int64_t>(query + shift + 1, 0, tk) : tk;
    return std::clamp<std::int64_t>(seen - first, 0, count);
  }
};

/// row[j] = `value` for visible <= j < columns, in whole vectors.
template <class A>
void mask_row(A* row, std::int64_t visible, std::int64_t columns, A value) {
  if (visible >= columns) return;
  Vec<A> lane;
  for (int l = 0; l < kLanes<A>; ++l) lane[l] = static_cast<A>(l);
  for (std::int64_t j = visible / kLanes<A> * kLanes<A>; j < columns; j += kLanes<A>) {
    const Vec<A> seen = splat(static_cast<A>(visible - j));
    store<A>(row + j, lane < seen ? load(row + j) : splat(value));
  }
}

/// x [T, K] times `scale` -> tiles [K, kKeys], each zero beyond the last row: the right factor of a product with rows
/// of queries.
template <class T>
void pack_transposed(const T* x, std::int64_t row, std::int64_t rows, std::int64_t k, Accumulator<T> scale,
                     Accumulator<T>* to) {
  for (std::int64_t first = 0; first < rows; first += kKeys, to += kKeys * k) {
    const std::int64_t here = std::min(kKeys, rows - first);
    transpose_tile(x + first * row, row, here, k, scale, to, kKeys);
    if (here == kKeys) continue;
    for (std::int64_t c = 0; c < k; ++c) std::fill(to + c * kKeys + here, to + (c + 1) * kKeys, Accumulator<T>{});
  }
}

/// Whether rows of K elements of T serve as they are: products work on whole vectors of accumulators.
template <class T>
bool rows_serve(std::int64_t k) {
  return std::is_same_v<T, Accumulator<T>> && k % kLanes<T> == 0;
}

/// `rows` rows of k elements that are `row` apart, for products: as they are, or widened into `buffer` and filled up
/// with zeros to whole vectors.
template <class T>
RowsOf<Accumulator<T>> product_rows(const T* x, std::int64_t row, std::int64_t rows, std::int64_t k,
                                    Accumulator<T>* buffer) {
  using A = Accumulator<T>;
  if constexpr (std::is_same_v<T, A>)
    if (rows_serve<T>(k)) return {x, row};
  const std::int64_t padded = whole_vectors<A>(k);
  for (std::int64_t r = 0; r < rows; ++r) {
    convert_row(x + r * row, k, buffer + r * padded);
    std::fill(buffer + r * padded + k, buffer + (r + 1) * padded, A{});
  }
  return {buffer, padded};
}

void attention_forward_kernel(const KernelCall& c);
void attention_backward_kernel(const KernelCall& c);

}  // namespace sherd::cpu
