#include "runtime/op/rows/element_runs.h"

namespace sherd {

ElementRuns element_runs(const Shape& global, const Shape& local, const Dims& offset, std::int64_t& first) {
  bool fits = local.size() == global.size() && offset.size() == global.size();
  for (int d = 0; fits && d < global.size(); ++d)
    fits = local[d] >= 0 && offset[d] >= 0 && local[d] <= global[d] - offset[d];
  check(fits, "a part {} at {} does not lie in a tensor {}", local, offset, global);
  first = 0;
  if (numel(local) == 0) return {};
  const Strides strides = contiguous_strides(global);
  // Levels from the innermost out: adjacent dims that make one run are merged.
  Dims size, stride;
  for (int d = global.size() - 1; d >= 0; --d) {
    first += offset[d] * strides[d];
    if (local[d] == 1) continue;
    const int last = size.size() - 1;
    if (last >= 0 && strides[d] == size[last] * stride[last]) {
      size[last] *= local[d];
    } else {
      size.push_back(local[d]);
      stride.push_back(strides[d]);
    }
  }
  int level = 0;
  ElementRuns runs{.run = 1};
  if (!size.empty() && stride[0] == 1) runs.run = size[level++];
  if (level == size.size()) return {};
  check(
      size.size() - level <= 2,
      "part {} of a tensor {}: its elements lie in runs at {} levels of strides, and at most 2 can be said; cut fewer "
      "dims of it",
      local, global, size.size() - level);
  runs.count = size[level];
  runs.stride = stride[level++];
  if (level < size.size()) runs.outer_stride = stride[level];
  return runs;
}

void check_runs(std::int64_t first, const ElementRuns& runs) {
  check(first >= 0, "the first element's index is {}, which is negative", first);
  check(runs.run >= 0 && runs.count >= 1 && runs.stride >= 0 && runs.outer_stride >= 0,
        "elements in {} runs of {}, {} apart, and again every {}: counts are positive, strides not negative",
        runs.count, runs.run, runs.stride, runs.outer_stride);
}

}  // namespace sherd
