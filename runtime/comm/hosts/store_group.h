#pragma once
// Ranks that share no memory and have a store: of several hosts, whose devices talk by a library of their own. The host
// side of such a job is small: agreements, ids, hashes, numbers of a step.
//
//   call #7   each rank sets its bytes, for all or for one peer        e0/world/0/7/1
//             each rank reads those of its peers, compares the calls, and computes what every other group computes
//   call #8   whoever has read what a peer has set for #8 knows that it is through with #7, and erases its own of #7
//
// All bytes go through the process that hosts the store, so this is no way to move tensors.
#include <functional>
#include <memory>

#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/wait_notice.h"
#include "runtime/comm/store/store.h"

namespace sherd {

/// Its kind(): ranks of such a group may be on several hosts.
inline constexpr std::string_view kStoreGroupKind = "store";

struct StoreGroupOptions {
  /// A new connection to the one store of all ranks. Lanes have one each, so that none waits for another.
  std::function<std::unique_ptr<Store>()> connect;
  /// Limit on the wait inside one call, at first.
  std::chrono::nanoseconds deadline = std::chrono::seconds(300);
  WaitNotice notice{};
};

/// This rank's handle on the group of `size` ranks. Returns once it is connected; the first call waits for the others.
/// Sums are those of every host group, bit for bit. A rank whose process ends, however it does, is missed by those that
/// wait for it within a second; one that is stopped, or whose host is gone, at the deadline. Error unless 0 <= rank <
/// size.
std::shared_ptr<ProcessGroup> make_store_group(int rank, int size, const StoreGroupOptions& options);

/// Waits until all ranks but 0 have left the group, for the process that hosts the store, and is the first to be
/// through: the others still read there. Returns at `limit`, whoever is left. `store` is rank 0's.
void await_departures(Store& store, int size, std::chrono::milliseconds limit);

}  // namespace sherd
