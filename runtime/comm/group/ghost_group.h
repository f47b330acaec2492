#pragma once
// The process group of a ghost rank (memory/ghost_allocator.h): one of any number of ranks, of which no other exists.
#include <memory>
#include <string>

#include "runtime/comm/group/process_group.h"

namespace sherd {

/// Rank `rank` of a group of `size` that answers as if every rank did what this one does, at once: an all_gather of
/// equal parts finds the own part everywhere, which is how ranks compare what they do, and max, min and avg are the own
/// value. Sums, and calls whose result depends on what other ranks have, are Errors that name the call. Groups divided
/// from it have the names and the numbering of real ones. Nothing is counted: CommCounter counts what is issued. Error
/// unless 0 <= rank < size.
std::shared_ptr<ProcessGroup> make_ghost_group(int rank, int size, std::string name = "world");

/// Error naming the group unless this thread's rank may communicate over it: a ghost rank over ghost groups, any other
/// rank over groups that are none, and all over groups of one rank. A real group would wait for a ghost that never
/// comes; a ghost group would tell a real rank that its peers agree. Asked where a group meets a rank: its world, a
/// mesh, agreements, the lanes of its queues. A thread without a rank context may use any group.
void check_fits_rank(const ProcessGroup& group);

}  // namespace sherd
