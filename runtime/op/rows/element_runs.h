#pragma once
// Which elements of a full tensor a shard holds, for rows whose values depend on the global index (op/random.cpp).
//
//   full [6, 8], shard [2, 3] from (1, 2) on        first = 10, run = 3, count = 2, stride = 8
//     . . . . . . . .
//     . . x x x . . .                               kernels walk them run by run (RunCursor)
//     . . x x x . . .
#include <cstdint>
#include <limits>

#include "runtime/op/attrs/attr_kind.h"

namespace sherd {

/// Where the elements of a shard are among those of the full tensor, both row-major: runs of `run` elements, `count`
/// runs `stride` apart, and that again every `outer_stride`. Element i of the shard is element
/// first + i / run / count * outer_stride + i / run % count * stride + i % run of the full tensor, `first` being a
/// field of the attributes. run = 0: the shard is one run.
struct ElementRuns {
  std::int64_t run = 0, count = 1, stride = 0, outer_stride = 0;
  static constexpr AttrField fields[] = {
      attr<&ElementRuns::run>("run").local(), attr<&ElementRuns::count>("count").local(),
      attr<&ElementRuns::stride>("stride").local(), attr<&ElementRuns::outer_stride>("outer").local()};
};

/// The runs of the box [offset, offset + local) of a tensor of shape `global`; writes its first element's global index
/// to `first`. A dim that is not sharded merges with its inner neighbour, so boxes of up to three dims can always be
/// described. Throws Error if the box is not inside the tensor, or if more than two strided levels remain. No
/// elements: one run from 0 on.
ElementRuns element_runs(const Shape& global, const Shape& local, const Dims& offset, std::int64_t& first);

/// Throws Error naming what is wrong unless `first` and `runs` give every element of `shape` an index.
void check_runs(std::int64_t first, const ElementRuns& runs);

/// Walks the elements of a shard in order, for kernels.
class RunCursor {
 public:
  /// At element `at` of the shard.
  constexpr RunCursor(std::int64_t first, const ElementRuns& runs, std::int64_t at) : runs_(runs) {
    if (runs.run == 0) {
      runs_.run = std::numeric_limits<std::int64_t>::max();
      place_ = first + at;
      within_ = at;
      return;
    }
    const std::int64_t row = at / runs.run;
    within_ = at - row * runs.run;
    row_ = row % runs.count;
    place_ = first + row / runs.count * runs.outer_stride + row_ * runs.stride + within_;
  }
  /// Global index of the element.
  constexpr std::int64_t place() const { return place_; }
  /// Elements up to the end of the run, this one included.
  constexpr std::int64_t left() const { return runs_.run - within_; }
  /// `n` elements on, 1 <= n <= left().
  constexpr void advance(std::int64_t n) {
    within_ += n;
    place_ += n;
    if (within_ < runs_.run) return;
    within_ = 0;
    place_ += runs_.stride - runs_.run;
    if (++row_ < runs_.count) return;
    row_ = 0;
    place_ += runs_.outer_stride - runs_.count * runs_.stride;
  }

 private:
  ElementRuns runs_;
  std::int64_t within_ = 0, row_ = 0, place_ = 0;
};

}  // namespace sherd
