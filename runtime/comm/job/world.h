#pragma once
// The group of all ranks of the job.
#include <memory>

#include "runtime/comm/group/process_group.h"

namespace sherd {

/// This rank's handle on the whole job. Ranks that are threads get it from whoever started them; a process finds its
/// launcher (rank.h), meets its peers at the store and makes a shm_group on first use. One rank without a launcher.
/// Blocks until all ranks have come, at most the deadline.
std::shared_ptr<ProcessGroup> world_group();

/// Sets it for the current rank context: rank threads, ghosts, tests. Error if a ghost's world is a real group or the
/// reverse (check_fits_rank).
void set_world_group(std::shared_ptr<ProcessGroup> group);

}  // namespace sherd
