#pragma once
// What the variables of launchers say about this process.
#include "runtime/comm/job/rank.h"
#include "runtime/os/settings.h"

namespace sherd {

/// Rank, world size, both on this host, source and job id; the other members as they are by default. Error as
/// discover_rank() has it.
RankInfo read_launchers(const Environment& environment);

}  // namespace sherd
