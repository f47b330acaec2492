#pragma once
// The store where the ranks of a job meet.
#include <chrono>
#include <memory>

#include "runtime/comm/group/wait_notice.h"
#include "runtime/comm/job/rank_info.h"
#include "runtime/comm/store/store.h"

namespace sherd {

/// The store that all ranks of `rank`'s job share. Under `sherd run` the launcher hosts it; else rank 0 does, in a
/// thread for as long as it keeps the result: at SHERD_STORE if given, otherwise on a free loopback port that the
/// other ranks learn from a private file (rendezvous_file.h). Ranks on several hosts without an address of the store
/// are an Error on every rank, as is a store that is not on loopback without SHERD_SECRET. Blocks until connected,
/// at most `deadline`, then CommError; later calls wait as long for an answer, and 30 s at least.
std::unique_ptr<Store> connect_store(const RankInfo& rank, std::chrono::milliseconds deadline,
                                     const WaitNotice& notice = {});
std::unique_ptr<Store> connect_store(const RankInfo& rank);  // 300 s

/// One more connection to the store that this rank has connected to, which has an address: RankInfo::store_host.
std::unique_ptr<Store> join_store(const RankInfo& rank, std::chrono::milliseconds deadline);

}  // namespace sherd
