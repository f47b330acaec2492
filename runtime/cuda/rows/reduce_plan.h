#pragma once
// How a reduction walks its input. Dims are put in memory order, kept and reduced ones apart; where the fastest dim is
// a kept one, threads lie along it ("columns"), else along the reduced dims ("rows"). Results that are too few to fill
// a device are cut into parts, whose partial results are combined in order. All of it follows from shapes and strides.
#include "runtime/cuda/device/device.h"
#include "runtime/tensor/shape.h"

namespace sherd::cuda {

/// Positions 0, 1, ... of some dims in row-major order as offsets in memory. For kernels, by value.
class IndexWalk {
 public:
  IndexWalk() = default;
  /// Neighbours that step as one dim are merged.
  IndexWalk(const Dims& sizes, const Dims& strides);
  int ndim() const { return ndim_; }
  std::int64_t size(int d) const { return wide_sizes_[d]; }
  std::int64_t stride(int d) const { return strides_[d]; }
  std::int64_t innermost_size() const { return wide_sizes_[ndim_ - 1]; }
  std::int64_t innermost_stride() const { return strides_[ndim_ - 1]; }

  __host__ __device__ std::int64_t offset(std::int64_t i) const {
    if (ndim_ == 1) return i * strides_[0];
    std::int64_t at = 0;
    if (narrow_) {
      auto n = static_cast<std::uint32_t>(i);
      for (int d = ndim_ - 1; d > 0; --d) {
        std::uint32_t rest = 0;
        n = sizes_[d].divide(n, rest);
        at += rest * strides_[d];
      }
      return at + n * strides_[0];
    }
    for (int d = ndim_ - 1; d > 0; --d) {
      at += i % wide_sizes_[d] * strides_[d];
      i /= wide_sizes_[d];
    }
    return at + i * strides_[0];
  }

 private:
  int ndim_ = 1;
  bool narrow_ = true;  // positions fit 31 bits
  FastDivide sizes_[kMaxDims];
  std::int64_t wide_sizes_[kMaxDims] = {1};
  std::int64_t strides_[kMaxDims] = {};
};

struct ReducePlan {
  IndexWalk kept, reduced;  ///< offsets of results and of reduced items in the input
  IndexWalk out;            ///< positions of `kept` in the result
  bool columns = false;
  int vector = 1;          ///< elements per access; an item of `reduced` (rows) or a column access has as many
  std::int64_t count = 1;  ///< elements reduced per result
  std::int64_t results = 1, inner = 1;  ///< `inner` neighbouring results are columns
  std::int64_t items = 1, tail = 0;     ///< per result: items of `reduced`, and elements behind the last (rows)

  // The grid. Rows: one team per (result, part). Columns: blocks of `lanes` accesses by kBlock / lanes items.
  static constexpr int kBlock = 256;
  int team = 1, lanes = 1;
  std::int64_t tiles = 1;  ///< blocks along `inner`
  std::int64_t parts = 1, items_per_part = 1;
  unsigned threads = kBlock, blocks = 0;
};

/// `mask`: bit d set = dim d is reduced; the result is dense. Accesses are of `vector` elements where sizes and strides
/// allow it and else of one.
ReducePlan plan_reduction(const Shape& shape, const Strides& strides, std::uint64_t mask, int vector);
/// Rows of single elements, each one team's.
ReducePlan plan_whole_rows(const Shape& shape, const Strides& strides, std::uint64_t mask);

}  // namespace sherd::cuda
