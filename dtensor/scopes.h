#pragma once
// Modes of a rank in which the dist layer is stricter, or more lenient.

namespace sherd {

/// In this scope an op that would implicitly redistribute an input by communication is an Error that names the row, the
/// input and both layouts. Explicit redistribute() is allowed.
class StrictCommunication {
 public:
  explicit StrictCommunication(bool on = true);
  ~StrictCommunication();
  StrictCommunication(const StrictCommunication&) = delete;
  StrictCommunication& operator=(const StrictCommunication&) = delete;

 private:
  bool outer_;
};

/// In this scope all plain tensors among distributed ones count as replicated. They must be equal on all ranks. Without
/// it only some do: single numbers; integers and bools (ids, targets, masks); floats that need no gradient, in rows
/// that work element by element. The rows of backward meet the same plain tensors: the scope must cover backward() too.
class ImplicitReplication {
 public:
  explicit ImplicitReplication(bool on = true);
  ~ImplicitReplication();
  ImplicitReplication(const ImplicitReplication&) = delete;
  ImplicitReplication& operator=(const ImplicitReplication&) = delete;

 private:
  bool outer_;
};

}  // namespace sherd
