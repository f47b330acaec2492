#pragma once
// The second pass of sums that blocks made apart: partial[block][column], added in the order of blocks. For .cu files.
#include "runtime/cuda/device/device.h"
#include "runtime/cuda/device/launch.h"

namespace sherd::cuda {

inline constexpr int kColumnGroups = 8;

template <class A>
struct ColumnSumScratch {
  A values[kColumnGroups][kWarp];
};

/// to[c] = the sum of partial[b * stride + c] over `blocks` blocks. A block takes 32 columns, its 8 warps every eighth
/// row, several loads in flight.
template <class T>
__global__ void column_sums_kernel(const Compute<T>* partial, std::int64_t blocks, std::int64_t stride,
                                   std::int64_t columns, T* to) {
  using A = Compute<T>;
  auto& scratch = shared<ColumnSumScratch<A>>();
  const std::int64_t column = std::int64_t{block_index()} * kWarp + lane();
  A total{};
  if (column < columns)
#pragma unroll 8
    for (std::int64_t b = warp_index(); b < blocks; b += kColumnGroups) total += partial[b * stride + column];
  scratch.values[warp_index()][lane()] = total;
  sync_block();
  if (warp_index() != 0 || column >= columns) return;
  for (int g = 1; g < kColumnGroups; ++g) total += scratch.values[g][lane()];
  to[column] = from_compute<T>(total);
}

template <class T>
void column_sums(cudaStream_t stream, const Compute<T>* partial, std::int64_t blocks, std::int64_t stride,
                 std::int64_t columns, T* to) {
  launch(stream, column_sums_kernel<T>,
         {.blocks = static_cast<unsigned>((columns + kWarp - 1) / kWarp),
          .threads = kColumnGroups * kWarp,
          .shared_bytes = sizeof(ColumnSumScratch<Compute<T>>)},
         partial, blocks, stride, columns, to);
}

}  // namespace sherd::cuda
