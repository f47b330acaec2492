#pragma once
// Ranks as threads of the test process: run_ranks(n, fn) calls fn(group) on n threads, each with its own
// group handle and rank context, and rethrows an error after all have ended: the lowest rank's own error, or, if there
// are only errors that came from peers (CommError), the lowest rank's of those. A rank that throws aborts the group.
#include <functional>
#include <memory>

#include "runtime/comm/group/process_group.h"

namespace sherd::testing {

void run_ranks(int count, const std::function<void(const std::shared_ptr<ProcessGroup>&)>& body);

}  // namespace sherd::testing
