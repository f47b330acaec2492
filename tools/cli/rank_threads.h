#pragma once
// Ranks that are threads of one process: `--group thread`.
#include <functional>
#include <memory>

#include "runtime/comm/group/process_group.h"

namespace sherd {

/// Runs the body on so many threads, each of which is a rank with a context of its own, whose world is `group`; all
/// share what timing has picked. Waits for all of them. A rank that throws fails the group of the others; of what they
/// throw, the first that is not only a consequence of another rank's error is thrown here.
void run_rank_threads(int ranks, const std::function<void(const std::shared_ptr<ProcessGroup>& group)>& body);

}  // namespace sherd
