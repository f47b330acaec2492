#pragma once
// On how many hosts are the ranks? Launchers tell each rank how many share its host, so the ranks ask one another.
#include <span>

#include "runtime/comm/group/process_group.h"
#include "runtime/comm/job/rank.h"

namespace sherd {

/// Whether the launcher has started ranks on other hosts too. `sherd run` never has: where its variables say otherwise,
/// somebody divides one host to try strategies over several.
bool has_other_hosts(const RankInfo& own);

/// Number of hosts of a job whose rank r was told `ranks[r]`; 1 for threads of one process, which no launcher started.
/// Error unless all hosts have equally many ranks, numbered host by host: then rank / (ranks per host) is the host.
int count_hosts(std::span<const RankInfo> ranks);

/// Number of hosts of the ranks of `group`; this rank was told `own`. Collective. The same on every rank, errors too.
int count_hosts(ProcessGroup& group, const RankInfo& own);

}  // namespace sherd
