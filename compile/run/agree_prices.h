#pragma once
// What ranks find out of prices together.
#include "compile/ir/program.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/exec/price.h"

namespace sherd {

/// Collective. Error on every rank, saying who has how many, if programs have other numbers of nodes.
void check_lengths(const ir::Program& program, ProcessGroup& group);

/// Adds the links of the program's groups, one for each movement that its nodes ask of them. Collective over those
/// groups, whose ranks run programs alike. Times transfers of up to the program's largest size, or of what `seconds`
/// allow, and most_bytes of each rank if that is not 0; a group whose ranks' devices are not the host keeps the default
/// link.
void measure_links(const ir::Program& program, double seconds, std::int64_t most_bytes, Prices& prices);

/// Whether threads of this rank's queues run on CPUs that it computes on.
bool queues_share_core();

/// Prices by which equal nodes cost the same on all ranks of the group, see measure_prices(). Collective.
Prices agree_prices(const ir::Program& program, const Prices& own, ProcessGroup& group);

}  // namespace sherd
