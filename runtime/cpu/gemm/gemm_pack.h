#pragma once
// A block of the right operand of a product as panels of register blocks.
#include "runtime/cpu/gemm/gemm.h"
#include "runtime/cpu/gemm/tile_gemm.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/steps.h"
#include "runtime/cpu/transpose.h"
#include "runtime/cpu/workspace.h"

namespace sherd::cpu {

/// Columns of a panel of B: a register block's.
template <class T>
constexpr std::int64_t kPanel = kBlockVectors * kLanes<Packed<T>>;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// A block of B: panel j starts at j * steps.
template <class T>
struct PackedB {
  const Packed<T>* data;
  std::int64_t columns;  // padded to whole vectors
};

/// Rows [p, p + k), columns [first, first + n) of op(B); columns beyond n are zero. It lives until the next call.
template <class T>
PackedB<T> pack_block(const Gemm& g, const T* b, std::int64_t p, std::int64_t k, std::int64_t first, std::int64_t n) {
  using P = Packed<T>;
  constexpr std::int64_t kTaskElements = 1 << 15;  // at least, or tasks cost more than they spread
  const std::int64_t columns = round_up(n, kLanes<P>), steps = steps_of<T>(k);
  P* const packed = thread_workspace<P>(WorkspaceUse::gemm_shared, columns * steps);
  struct Panel {
    P* to;
    std::int64_t width, here;  // columns, and those that are B's
  };
  const auto panel = [=](std::int64_t j) {
    const std::int64_t width = std::min(kPanel<T>, columns - j);
    return Panel{packed + j * steps, width, std::min(width, n - j)};
  };
  if (g.transpose_b) {
    parallel_for(num_chunks(n, kPanel<T>), kTaskElements / (kPanel<T> * k), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t j = begin * kPanel<T>; j < std::min(end * kPanel<T>, n); j += kPanel<T>) {
        const auto [to, width, here] = panel(j);
        const T* const from = b + (first + j) * g.ldb + p;
        if constexpr (kTogether<T> == 1) transpose_tile(from, g.ldb, here, k, P{1}, to, width);
        else transpose_pairs(from, g.ldb, here, k, to, width);
        for (std::int64_t q = 0; q < steps && here < width; ++q)
          std::fill(to + q * width + here, to + (q + 1) * width, P{});
      }
    });
  } else {
    parallel_for(steps, kTaskElements / columns, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t q = begin; q < end; ++q) {
        const std::int64_t row = q * kTogether<T>;
        const bool whole = row + kTogether<T> <= k;
        for (std::int64_t j = 0; j < n; j += kPanel<T>) {
          const auto [to, width, here] = panel(j);
          const T* const from = b + (p + row) * g.ldb + first + j;
          if (here == kPanel<T>) {
            pack_step(from, g.ldb, whole, kPanel<T>, to + q * kPanel<T>);
            continue;
          }
          pack_step(from, g.ldb, whole, here, to + q * width);
          std::fill(to + q * width + here, to + (q + 1) * width, P{});
        }
      }
    });
  }
  return {packed, columns};
}

}  // namespace sherd::cpu
