#pragma once
// Ranks as threads of one process: for tests and debugging, with the same semantics as processes.
#include <memory>
#include <vector>

#include "runtime/comm/group/process_group.h"

namespace sherd {

/// Element r is the handle of rank r. Each handle belongs to one thread; dropping it tells the peers that this rank has
/// left, so a rank that ends early makes the others raise instead of waiting. Throws Error unless 1 <= size <= 252.
std::vector<std::shared_ptr<ProcessGroup>> make_thread_groups(int size);

}  // namespace sherd
