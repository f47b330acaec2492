#pragma once
// Which elements of the whole a rank's part holds, for rows whose values depend on the global index.
#include "dtensor/spec.h"
#include "runtime/op/element_runs.h"

namespace sherd {

/// Of this rank's part of a tensor of `shape` in that layout; writes its first element's index to `first`. Error, on
/// all ranks alike, if more than two dims behind the first one are cut: attributes cannot say such a part.
ElementRuns local_runs(const Spec& spec, const Shape& shape, std::int64_t& first);

}  // namespace sherd
