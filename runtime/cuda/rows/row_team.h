#pragma once
// Threads that share one row of a kernel's input. A team is 2^k lanes of a warp or a whole block, so one kernel serves
// rows of eight elements and of a hundred thousand; shapes alone decide. For .cu files.
#include <algorithm>
#include <cstdint>

#include "runtime/cuda/device/device.h"
#include "runtime/cuda/device/launch.h"

namespace sherd::cuda {

/// Team size and grid of a kernel with one team per row.
struct TeamGrid {
  int team = 1;
  unsigned threads = 128, blocks = 0;
};

/// For `rows` rows of `items` items, of which a thread wants `per_thread` at once: the smallest team that takes a row
/// in one go, at most `most` threads (a power of two).
inline TeamGrid team_grid(std::int64_t rows, std::int64_t items, int per_thread, int most = 1024) {
  constexpr unsigned kLeastThreads = 128;
  TeamGrid grid;
  while (grid.team < most && std::int64_t{grid.team} * per_thread < items) grid.team *= 2;
  grid.threads = std::max(static_cast<unsigned>(grid.team), kLeastThreads);
  if (grid.team > kWarp) grid.threads = static_cast<unsigned>(grid.team);
  const std::int64_t rows_per_block = grid.threads / static_cast<unsigned>(grid.team);
  grid.blocks = static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block);
  return grid;
}

/// The calling thread's team. All threads of the block call the folds, also those without a row.
struct Team {
  int size;  // 1, 2, ..., 32, or block_threads()

  __device__ int rank() const { return thread_index() & (size - 1); }
  /// Teams count through the grid.
  __device__ std::int64_t row() const {
    return std::int64_t{block_index()} * (block_threads() / size) + thread_index() / size;
  }
  /// In a fixed order; the result in every thread of the team. `scratch` is 32 values in shared memory, free again on
  /// return; `unit` is the fold's neutral element.
  template <class T, class Fold>
  __device__ T fold(T v, T unit, T* scratch, Fold fold) const {
    for (int apart = (size < kWarp ? size : kWarp) / 2; apart > 0; apart /= 2) v = fold(v, shuffle_xor(v, apart));
    if (size <= kWarp) return v;
    if (lane() == 0) scratch[warp_index()] = v;
    sync_block();
    v = warp_fold(lane() < block_warps() ? scratch[lane()] : unit, fold);
    sync_block();
    return v;
  }
  template <class T>
  __device__ T sum(T v, T* scratch) const {
    return fold(v, T{}, scratch, SumOf{});
  }
  template <class T>
  __device__ T max(T v, T* scratch) const {
    return fold(v, lowest<T>(), scratch, MaxOf{});
  }
};

/// Shared memory of the folds.
template <class T>
struct TeamScratch {
  T values[kWarp];
};

}  // namespace sherd::cuda
