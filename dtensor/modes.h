#pragma once
// The dist layer reads the modes of a rank here; the scopes of scopes.h set them.
#include "runtime/op/core/host_state.h"

namespace sherd {

/// A captured step is replayed in the modes of its recording.
struct DistributedModes {
  bool strict = false, implicit = false;
  static constexpr AttrField fields[] = {
      attr<&DistributedModes::strict>("strict_communication").seen_by(SeenBy::guard, "each row that communicates"),
      attr<&DistributedModes::implicit>("implicit_replication")
          .seen_by(SeenBy::guard, "each row of distributed tensors")};
};

const HostState<DistributedModes>& distributed_modes();
bool is_strict_communication();
bool is_implicit_replication();

}  // namespace sherd
