#include "dtensor/local_runs.h"

#include "runtime/tensor/indices.h"

namespace sherd {

ElementRuns local_runs(const Spec& spec, const Shape& shape, std::int64_t& first) {
  int levels = 0;
  std::int64_t before = 1;  // elements of the dims in front
  for (const int d : indices(shape)) {
    if (spec.num_shards(d) > 1 && before > 1) ++levels;
    before *= shape[d];
  }
  // Decided by the layout, not by this rank's shard, which may happen to be simple: all ranks refuse or none does.
  check(levels <= 2,
        "values of {} in layout {} are drawn by index, which needs at most two dims sharded behind the first, not {}; "
        "redistribute() it",
        shape, spec.describe(), levels);
  return element_runs(shape, spec.local_shape(shape), spec.local_offset(shape), first);
}

}  // namespace sherd
