#pragma once
// Which channel of a group the work of a queue uses.
#include <string_view>

#include "runtime/comm/group/process_group.h"

namespace sherd {

/// The queues whose work may communicate; each has a channel of its own in every group, so that collectives of
/// different queues need not come in one order on all ranks. Channel 0 is the rank's thread's.
inline constexpr std::string_view kGatherQueue = "gather", kReduceQueue = "reduce", kCollectiveQueue = "collective";

/// The channel for work of this queue. Error naming the queues that have one, if this one has none, and as
/// check_fits_rank() (ghost_group.h).
ProcessGroup& channel_of(ProcessGroup& group, std::string_view queue);

}  // namespace sherd
