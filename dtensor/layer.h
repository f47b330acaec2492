#pragma once
// The dist layer of the dispatcher.

namespace sherd {

/// Idempotent; the first DeviceMesh calls it. Until ops have sharding rules the layer runs rows that work on each
/// rank's own elements (optimizer, norms) and refuses every other row by name.
void install_distributed_layer();

}  // namespace sherd
