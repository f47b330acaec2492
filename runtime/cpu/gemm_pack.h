#pragma once
// Operands of a product as register blocks take them: accumulators, or pairs of bf16 along K where the CPU multiplies
// those. A step of products is one packed element along K.
#include <type_traits>

#include "runtime/cpu/gemm.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/tile_gemm.h"
#include "runtime/cpu/transpose.h"
#include "runtime/cpu/workspace.h"

namespace sherd::cpu {

/// What elements of T are packed as.
template <class T>
using Packed = std::conditional_t<std::is_same_v<T, bf16> && kMultipliesBf16, Bf16Pair, Accumulator<T>>;

/// Elements along K in one of them.
template <class T>
constexpr std::int64_t kTogether = std::is_same_v<Packed<T>, Bf16Pair> ? 2 : 1;

/// Columns of a panel of B: a register block's.
template <class T>
constexpr std::int64_t kPanel = kBlockVectors* kLanes<Packed<T>>;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// One step for the columns of a matrix that is stored with its rows along K: the elements from x on, each with its
/// neighbour of the next row, `ld` further on, or with zero if that is not `whole`.
template <class T>
[[gnu::always_inline]] inline Vec<Packed<T>> load_step(const T* x, std::int64_t ld, bool whole) {
  if constexpr (kTogether<T> == 1) {
    return load_as_accumulators(x);
  } else {
    const auto words = [](const T* from) { return __builtin_convertvector(detail::load_halves(from), Words); };
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

/// k elements along K, n of which lie together, as ceil(k / kTogether) steps.
template <class T>
void pack_along(const T* x, std::int64_t k, Packed<T>* to) {
  if constexpr (kTogether<T> == 1) {
    convert_row(x, k, to);
  } else {
    std::memcpy(to, x, static_cast<std::size_t>(k) * sizeof(T));
    if (k % 2 != 0) to[k / 2].second = 0;
  }
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
  const std::int64_t columns = round_up(n, kLanes<P>), steps = num_chunks(k, kTogether<T>);
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
