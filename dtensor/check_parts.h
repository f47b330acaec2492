#pragma once
// Whether the local tensors of all ranks make one distributed tensor: a check that communicates, for debugging.
#include <optional>

#include "dtensor/spec.h"
#include "runtime/op/core/tensor.h"

namespace sherd {

/// Checks that dtype and global `shape` are the same on all ranks, that every local tensor has the shape that `spec`
/// gives it, and that replicas have the same bits. `problem`: an error this rank has found already. Collective over the
/// mesh, waits; a few hundred bytes per rank, and a pass over the local tensor.
/// Error on all ranks if one is wrong, naming it and both values. `what` opens the message.
void check_parts(std::string_view what, const Tensor& local, const Shape& shape, const Spec* spec,
                 std::string_view problem = {});

}  // namespace sherd
