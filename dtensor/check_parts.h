#pragma once
// Whether the ranks agree on a tensor whose parts they brought: checks that communicate, for debugging.
#include <optional>

#include "dtensor/spec.h"
#include "runtime/op/tensor.h"

namespace sherd {

/// Checks that the ranks' parts have one dtype and make one tensor: `shape` of every rank is the same, every part is
/// what `spec` cuts from it, and ranks that hold the same part hold the same bits. `problem`: what this rank has found
/// wrong already. Collective over the mesh, waits; a few hundred bytes per rank, and a pass over the part.
/// Error on all ranks if one is wrong, naming it and both values. `what` opens the message.
void check_parts(std::string_view what, const Tensor& local, const Shape& shape, const Spec* spec,
                 std::string_view problem = {});

}  // namespace sherd
