#pragma once
// What the backends' cross entropies have in common: the three numbers of a row's loss and where they go, and how
// linear_cross_entropy splits its rows into chunks. Forward and backward use the same chunks, so the logits that
// backward computes again have the same bits.
#include <algorithm>
#include <cstdint>

#include "runtime/op/rows/pointwise.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/shape.h"

namespace sherd {

/// Rows of logits held at a time for `vocabulary` columns. On the CPU 128 to 1024, at most 8 M elements where that is
/// possible; on a device, whose products of fewer rows are bound by reading the weight, 1024 to 4096 and 256 M
/// elements.
constexpr std::int64_t loss_chunk_rows(std::int64_t vocabulary, Device::Kind kind = Device::Kind::cpu) {
  const std::int64_t columns = std::max<std::int64_t>(vocabulary, 1);
  if (kind == Device::Kind::cpu) return std::clamp<std::int64_t>((std::int64_t{1} << 23) / columns, 128, 1024);
  constexpr std::int64_t kStep = 1024;
  return std::clamp<std::int64_t>((std::int64_t{1} << 28) / columns / kStep * kStep, kStep, 4096);
}

/// logits [rows, V] = x [rows, K] weight [V, K]^T, all dense, as a backend's Gemm.
template <class Gemm>
Gemm logits_product(DType dtype, std::int64_t rows, const Shape& weight) {
  const std::int64_t v = weight[0], k = weight[1];
  return {
      .dtype = dtype, .result = dtype, .transpose_b = true, .m = rows, .n = v, .k = k, .lda = k, .ldb = k, .ldc = v};
}

/// What a row's logits contribute to its loss: the largest of them, the sum of exp(x - largest), and the target's own,
/// 0 if this rank does not hold its column.
template <class A>
struct RowParts {
  A largest, sum, at_target;
};

/// What becomes of the rows' numbers: they are joined to log-sum-exp and loss,
template <class Math, class A>
struct LossOut {
  A *lse, *losses;
  SHERD_HD void put(std::int64_t i, bool counts, const RowParts<A>& row) const {
    const A log_sum = Math::log(row.sum);
    lse[i] = counts ? row.largest + log_sum : A{};
    losses[i] = counts ? (row.largest - row.at_target) + log_sum : A{};
  }
};
/// or kept as they are, to be combined with other ranks' columns (op/loss.cpp).
template <class A>
struct PartsOut {
  A *largest, *sum, *at_target;
  SHERD_HD void put(std::int64_t i, bool counts, const RowParts<A>& row) const {
    largest[i] = counts ? row.largest : A{};
    sum[i] = counts ? row.sum : A{1};
    at_target[i] = counts ? row.at_target : A{};
  }
};

}  // namespace sherd
