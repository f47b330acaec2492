#pragma once
// A tensor that a collective row shards along a dim, seen along that dim:
//
//   x [outer, n, inner]    | part 0 | part 1 |      shards of a dim that is not the outermost are not contiguous
//                          | part 0 | part 1 |
#include <cstdint>
#include <vector>

#include "runtime/comm/group/chunks.h"
#include "runtime/op/core/op.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/shape.h"

namespace sherd {

/// A dense tensor seen along one dim, sharded over ranks by the chunk rule.
struct Cut {
  Cut(const Shape& shape, int dim, DType dtype, int ranks) : n(shape[dim]), size(byte_size(dtype)), parts(ranks) {
    for (int d = 0; d < dim; ++d) outer *= shape[d];
    for (int d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
  }
  std::int64_t first(int rank) const { return chunk_begin(n, parts, rank) * inner; }
  std::int64_t line(int rank) const { return chunk_size(n, parts, rank) * inner; }
  std::int64_t line_bytes() const { return n * inner * size; }
  /// Elements of each rank.
  std::vector<std::int64_t> counts() const {
    std::vector<std::int64_t> counts;
    for (int r = 0; r < parts; ++r) counts.push_back(outer * line(r));
    return counts;
  }
  std::int64_t bytes() const { return outer * line_bytes(); }

  std::int64_t outer = 1, n, inner = 1, size;
  int parts;
};

/// The kernel of the collective rows on devices: a copy in groups of one rank, else queued on the device's queue
/// "collective". Error if the group moves no memory of that device.
void run_collective_on_device(const KernelCall& call);

}  // namespace sherd
