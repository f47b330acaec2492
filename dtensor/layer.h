#pragma once
// The dist layer of the dispatcher; the scopes in which it works otherwise are in scopes.h.

namespace sherd {

/// Idempotent; the first DeviceMesh calls it.
void install_distributed_layer();

}  // namespace sherd
