#pragma once
// Modes of a thread in which the dist layer is stricter, or more lenient.

namespace sherd {

/// For a scope: an op whose inputs would have to communicate first is an Error that names the row, the input, where it
/// lies and where it should. Redistributions that the program asks for are allowed.
class StrictCommunication {
 public:
  explicit StrictCommunication(bool on = true);
  ~StrictCommunication();
  StrictCommunication(const StrictCommunication&) = delete;
  StrictCommunication& operator=(const StrictCommunication&) = delete;

 private:
  bool outer_;
};

/// For a scope: plain tensors among distributed ones count as replicated. They must be equal on all ranks.
class ImplicitReplication {
 public:
  explicit ImplicitReplication(bool on = true);
  ~ImplicitReplication();
  ImplicitReplication(const ImplicitReplication&) = delete;
  ImplicitReplication& operator=(const ImplicitReplication&) = delete;

 private:
  bool outer_;
};

bool is_strict_communication();
bool is_implicit_replication();

}  // namespace sherd
