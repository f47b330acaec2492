#pragma once
// The dist layer of the dispatcher, and the modes of a thread in which it works.
#include "runtime/tensor/tensor.h"

namespace sherd {

/// Idempotent; the first DeviceMesh calls it.
void install_distributed_layer();

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

/// The local part of an input, which is given up if nobody else holds the tensor, so that its memory may be reused.
Tensor take_local(Tensor& t);

bool is_strict_communication();
bool is_implicit_replication();

}  // namespace sherd
