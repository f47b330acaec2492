#pragma once
#include "runtime/cpu/gemm/gemm.h"

namespace sherd::cpu {

/// How an engine cuts C, of one problem: `down` x `across` rectangles of this size, of which the last along a side has
/// what is left.
struct GemmGrid {
  std::int64_t rows, columns, down, across;
  bool is_library = false;
};
/// Says how the engine that gemm() takes on this thread cuts it.
GemmGrid gemm_grid(const Gemm& g);
/// One rectangle as a problem of its own, K > 0, without batch and epilogue, on one thread, which may be another: the
/// bits are those of the whole.
void gemm_rectangle(const Gemm& g, const GemmGrid& grid, const void* a, const void* b, void* c);

/// One C: the sum over the problems of the batch as a balanced tree (comm/group/sum_order.h), to which each product
/// goes rounded to g.dtype. C has the type of accumulators; with g.accumulate the whole sum is added to it. K > 0;
/// without bias and epilogue.
void gemm_tree(const Gemm& g, const void* a, const void* b, void* c);

}  // namespace sherd::cpu
