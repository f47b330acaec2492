#pragma once
// What forward and backward of attention share. Letters as in op/attention.cpp; products are made of register blocks
// (tile_gemm.h), so scores and weights are computed kBlockRows queries at a time and only up to the last key that one
// of them sees. Where the CPU multiplies pairs of bf16 (steps.h), so are these products; weights and their gradients
// are rounded to bf16 for them, their sums are not.
#include <numbers>

#include "runtime/cpu/gemm/tile_gemm.h"
#include "runtime/cpu/heads.h"
#include "runtime/cpu/steps.h"
#include "runtime/cpu/transpose.h"
#include "runtime/op/core/op.h"

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
};

/// Where a buffer of packed elements is carved from one of accumulators: both have the same size.
template <class T>
Packed<T>* packed_part(Accumulator<T>* buffer) {
  static_assert(sizeof(Packed<T>) == sizeof(Accumulator<T>));
  return reinterpret_cast<Packed<T>*>(buffer);
}

/// Elements of a head's keys packed by pack_transposed.
template <class T>
std::int64_t packed_keys(const AttentionSizes& n) {
  return (n.tk + kKeys - 1) / kKeys * kKeys * steps_of<T>(n.k);
}

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

/// What the scores of packed keys are still to be multiplied by: pairs cannot be scaled without a rounding.
template <class T>
Accumulator<T> left_to_scale(Accumulator<T> scale) {
  return kTogether<T> == 1 ? Accumulator<T>{1} : scale;
}

/// x [T, K] -> tiles [steps of K, kKeys], each zero beyond the last row: the right factor of a product with rows of
/// queries. Accumulators are multiplied by `scale`.
template <class T>
void pack_transposed(const T* x, std::int64_t row, std::int64_t rows, std::int64_t k, Accumulator<T> scale,
                     Packed<T>* to) {
  const std::int64_t steps = steps_of<T>(k);
  for (std::int64_t first = 0; first < rows; first += kKeys, to += kKeys * steps) {
    const std::int64_t here = std::min(kKeys, rows - first);
    if constexpr (kTogether<T> == 1) transpose_tile(x + first * row, row, here, k, scale, to, kKeys);
    else transpose_pairs(x + first * row, row, here, k, to, kKeys);
    if (here == kKeys) continue;
    for (std::int64_t c = 0; c < steps; ++c) std::fill(to + c * kKeys + here, to + (c + 1) * kKeys, Packed<T>{});
  }
}

/// Rows as left factors, steps along them: as they are, or packed into `buffer`.
template <class T>
RowsOf<Packed<T>> left_rows(const T* x, std::int64_t row, std::int64_t rows, std::int64_t k, Packed<T>* buffer) {
  if (std::is_same_v<T, Packed<T>> || (kTogether<T> == 2 && row % 2 == 0 && k % 2 == 0))
    return {reinterpret_cast<const Packed<T>*>(x), row / kTogether<T>};
  const std::int64_t steps = steps_of<T>(k);
  for (std::int64_t r = 0; r < rows; ++r) pack_along(x + r * row, k, buffer + r * steps);
  return {buffer, steps};
}

/// Whether rows of K elements of T serve as right factors as they are: products work on whole vectors of them.
template <class T>
bool rows_serve(std::int64_t k) {
  return std::is_same_v<T, Packed<T>> && k % kLanes<Accumulator<T>> == 0;
}

/// Rows as right factors, a step across kTogether of them: as they are, or packed into `buffer` and filled up with
/// zeros to whole vectors.
template <class T>
RowsOf<Packed<T>> right_rows(const T* x, std::int64_t row, std::int64_t rows, std::int64_t k, Packed<T>* buffer) {
  if constexpr (std::is_same_v<T, Packed<T>>)
    if (rows_serve<T>(k)) return {x, row};
  const std::int64_t padded = whole_vectors<Accumulator<T>>(k);
  for (std::int64_t r = 0; r < rows; r += kTogether<T>) {
    Packed<T>* const to = buffer + r / kTogether<T> * padded;
    pack_step(x + r * row, row, r + kTogether<T> <= rows, k, to);
    std::fill(to + k, to + padded, Packed<T>{});
  }
  return {buffer, padded};
}

void attention_forward_kernel(const KernelCall& c);
void attention_backward_kernel(const KernelCall& c);

}  // namespace sherd::cpu
