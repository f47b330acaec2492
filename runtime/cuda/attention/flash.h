#pragma once
// Tiles of attention on tensor cores. A block is 4 warps; each owns 16 rows of a tile of 64 and all columns, so that a
// row's maximum and sum stay within 4 lanes, and scores become the left factor of the next product without leaving
// registers (Dao, "FlashAttention-2", 2023). Fragments are those of mma.m16n8k16: lane = 4 g + t holds of a 16 x 8
// result (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
#include "runtime/cuda/attention/attention_device.h"

namespace sherd::cuda::flash {

inline constexpr int kWarps = 4, kThreads = kWarps * kWarp;
inline constexpr int kRows = 16 * kWarps;  // of the tile that a block owns
inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

/// Rows of K elements in shared memory, by pieces of 8: piece p of row r lies at p ^ (r % 8), so that the 8 rows that
/// ldmatrix reads together are in different banks.
template <int K>
__device__ inline int place(int row, int piece) {
  return row * K + (piece ^ (row & 7)) * 8;
}

/// Starts to bring rows [first, first + Rows) of a head to `tile`; zeros beyond `count` rows and `k` elements.
template <int K, int Rows, class T>
__device__ inline void load_tile(const Heads<T>& x, const T* head, int first, int count, int k, T* tile) {
  constexpr int pieces = K / 8;
#pragma unroll 4
  for (int i = thread_index(); i < Rows * pieces; i += kThreads) {
    const int row = i / pieces, piece = i % pieces;
    const T* from = head + (first + row) * x.row + piece * 8 * x.element;
    T* to = tile + place<K>(row, piece);
    const int there = first + row < count ? k - piece * 8 : 0;  // elements of this piece, or more
    if (x.wide) {
      cp_async_16(to, there > 0 ? from : head, there > 0);
    } else {
      Vec<T, 8> v;
      for (int e = 0; e < 8; ++e) v[e] = e < there ? from[e * x.element] : T{};
      store_vec(to, v);
    }
  }
}

/// c [16, 8N] += rows [row, row + 16) of a times the first 8N rows of b, transposed.
template <class T, int K, int N>
__device__ inline void add_rows_by_rows(float (&c)[N][4], const T* a, int row, const T* b) {
  const int m = lane() / 8, r = lane() % 8;
#pragma unroll 2
  for (int s = 0; s < K / 16; ++s) {
    std::uint32_t left[4];
    ldmatrix(left, a + place<K>(row + m % 2 * 8 + r, 2 * s + m / 2));
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      std::uint32_t right[4];
      ldmatrix(right, b + place<K>(n * 8 + m / 2 * 8 + r, 2 * s + m % 2));
      mma_m16n8k16<T>(c[n], left, {right[0], right[1]});
      mma_m16n8k16<T>(c[n + 1], left, {right[2], right[3]});
    }
  }
}

/// c [16, 8N] += x [16, 8M] times b [8M, K], columns from 8 `piece` on; x is rounded to T.
template <class T, int K, int M, int N>
__device__ inline void add_weights_by_rows(float (&c)[N][4], const float (&x)[M][4], const T* b, int piece) {
  const int m = lane() / 8, r = lane() % 8;
#pragma unroll
  for (int s = 0; s < M / 2; ++s) {
    const std::uint32_t left[4] = {pack_pair<T>(x[2 * s][0], x[2 * s][1]), pack_pair<T>(x[2 * s][2], x[2 * s][3]),
                                   pack_pair<T>(x[2 * s + 1][0], x[2 * s + 1][1]),
                                   pack_pair<T>(x[2 * s + 1][2], x[2 * s + 1][3])};
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      std::uint32_t right[4];
      ldmatrix<4, true>(right, b + place<K>(s * 16 + m % 2 * 8 + r, piece + n + m / 2));
      mma_m16n8k16<T>(c[n], left, {right[0], right[1]});
      mma_m16n8k16<T>(c[n + 1], left, {right[2], right[3]});
    }
  }
}

template <int N>
__device__ inline void clear(float (&c)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) c[n][i] = 0;
}

/// Row within the warp's 16, and column, of element i of fragment n.
__device__ inline int fragment_row(int i) { return lane() / 4 + i / 2 * 8; }
__device__ inline int fragment_column(int n, int i) { return n * 8 + lane() % 4 * 2 + i % 2; }

/// Writes c times `scale[i / 2]` to rows from `first` on, below `count`, columns from `column` on, below `k`.
template <class T, int N>
__device__ inline void store_rows(const float (&c)[N][4], const float (&scale)[2], const Heads<T>& x, T* head,
                                  int first, int count, int column, int k) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + fragment_row(2 * half);
    if (row >= count) continue;
    T* const to = head + row * x.row;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int at = column + fragment_column(n, 0);
      const float low = c[n][2 * half] * scale[half], high = c[n][2 * half + 1] * scale[half];
      if (x.wide) {
        if (at < k) store_vec(to + at, std::bit_cast<Vec<T, 2>>(pack_pair<T>(low, high)));
      } else {
        if (at < k) to[at * x.element] = from_compute<T>(low);
        if (at + 1 < k) to[(at + 1) * x.element] = from_compute<T>(high);
      }
    }
  }
}

/// Calls fn(Type<T>{}, K) with the dtype of `shape` and its K, padded.
template <class Fn>
void dispatch(const AttentionShape& shape, Fn fn) {
  const auto with_k = [&]<class T>(Type<T> type) {
    if (shape.k <= 64) fn(type, std::integral_constant<int, 64>{});
    else if (shape.k <= 128) fn(type, std::integral_constant<int, 128>{});
    else fn(type, std::integral_constant<int, 256>{});
  };
  if (shape.dtype == DType::bf16) with_k(Type<bf16>{});
  else with_k(Type<f16>{});
}

}  // namespace sherd::cuda::flash
