#pragma once
// Modes of a rank in which the dist layer is stricter, or more lenient.
#include "runtime/tensor/no_copy.h"

namespace sherd {

/// In this scope an op that would implicitly redistribute an input by communication is an Error that names the row, the
/// input and both layouts. Explicit redistribute() is allowed.
class StrictCommunication : NoCopy {
 public:
  explicit StrictCommunication(bool on = true);
  ~StrictCommunication();

 private:
  bool outer_;
};

/// In this scope all plain tensors among distributed ones count as replicated. They must be equal on all ranks. Without
/// it only some do: single numbers; integers and bools (ids, targets, masks); floats that need no gradient, in rows
/// that work element by element. The rows of backward meet the same plain tensors: the scope must cover backward() too.
class ImplicitReplication : NoCopy {
 public:
  explicit ImplicitReplication(bool on = true);
  ~ImplicitReplication();

 private:
  bool outer_;
};

}  // namespace sherd
