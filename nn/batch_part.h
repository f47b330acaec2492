#pragma once
// Which part of a batch this rank has. Random rows follow it, so that they draw what one rank would draw for the whole
// batch. It is found without communication, from the units of fully_shard() around a module: ranks along their axes
// have data of their own, all others the same.
//
//   mesh(dp=2,tp=2), fully_shard over dp      ranks 0, 1: {0, 1, 2}     ranks 2, 3: {1, 1, 2}
#include <cstdint>

#include "nn/module.h"
#include "nn/random_rows.h"

namespace sherd::nn {

/// The part that `x` is, in the forward of `module`. The ranks with data of their own are those along the axes of the
/// meshes of all units around it; of a module in no unit, of those below its root, unless two of them lie apart. They
/// count row-major, slowest axis first, each as one row. Axes that `x` is distributed over do not count: it is whole on
/// them. What set_batch_part() has set goes before all that. A BatchPartScope of a micro-batch divides it. Local. Error
/// if meshes of different roots share some ranks, and neither has all of both.
BatchPart batch_part(const Module& module, const Tensor& x);

/// Elements of the tensor of a whole batch.
struct BatchElements {
  std::int64_t first, all;
};
/// Where those of `x` begin, and how many there are on all ranks. A rank knows its own rows only: parts of unlike sizes
/// are parts of wholes of unlike sizes, unless set_batch_part() says how they lie. Error if it says that there are no
/// rows and `x` has elements.
BatchElements batch_elements(const Module& module, const Tensor& x);

}  // namespace sherd::nn
