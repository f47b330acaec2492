#pragma once
// These rows change how a tensor is placed; their functions are in redistribute.h and dtensor/api.h.
#include "runtime/op/core/dispatch.h"

namespace sherd {

/// A row with the trait `placement`: `run` makes its result, from the local tensor, in place of a kernel.
struct PlacementRow : Op {
  Tensor (*run)(OpCall& call) = nullptr;
};
namespace op {
extern const PlacementRow redistribute, align_gradient;  // redistribute.cpp
extern const PlacementRow from_local, to_local;          // api.cpp
}  // namespace op
/// Adds these rows to the table.
void add_placement_rows();
/// What the dist layer does for rows with that trait.
Tensors run_placement_row(OpCall& call);

}  // namespace sherd
