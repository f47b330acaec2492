#pragma once
// Which elements of the global tensor a rank's shard holds, for rows whose values depend on the global index.
#include "dtensor/spec.h"
#include "runtime/op/rows/element_runs.h"

namespace sherd {

/// Runs of this rank's shard of a tensor of `shape`; writes the global index of its first element to `first`. Error, on
/// all ranks alike, if more than two dims behind the first one are sharded: ElementRuns cannot express such a shard.
ElementRuns local_runs(const Spec& spec, const Shape& shape, std::int64_t& first);

}  // namespace sherd
