#pragma once
// Collectives of device memory over any group of the host:
//
//   rank's thread     issue                                     goes on
//   device queue      [copy to the host]  waits for the word  [copy back]
//   host queue        waits for the copy  [ host collective ]
//
// Every byte goes over the bus twice, so this is for tests and for hosts without another way between their devices;
// nobody waits on the rank's thread, and the host group's bits are kept: sums in rank order, casts, uneven parts.
#include <cstdint>
#include <memory>

#include "runtime/comm/group/process_group.h"

namespace sherd {

/// Staging memory in use beyond which issue() waits for the device: how far the host may run ahead.
inline constexpr std::int64_t kMaxStagedBytes = std::int64_t{256} << 20;

/// A group that moves host memory as `host` does, and device memory through pinned memory of the host. Device
/// collectives are issued on a queue of the device ("gather"); their host part runs on the rank's host queue of that
/// name. It is poisoned and reset with `host`. Ranks that are threads of one process should use a device each: where
/// they share one, whatever makes the whole device wait (freeing its memory) may wait for another rank.
std::shared_ptr<ProcessGroup> make_staged_group(std::shared_ptr<ProcessGroup> host);

}  // namespace sherd
