#pragma once
// Collectives of device memory over any group of the host:
//
//   rank's thread     issue                                     goes on, with so many bytes on their way
//   device queue      [copy to the host]  waits for the word  [copy back]
//   host queue        waits for the copy  [ host collective ]
//
// Every byte goes over the bus twice, so this is for tests and for hosts without another way between their devices. The
// rank's thread waits only where staging memory runs out; the host group's bits are kept: sums as a tree, casts,
// uneven parts.
#include <cstdint>
#include <memory>

#include "runtime/comm/group/process_group.h"

namespace sherd {

struct StagedOptions {
  /// Pinned memory of a rank, of all subgroups together: how far the host may run ahead. Where a collective would not
  /// fit, issue() waits for the oldest ones, of whatever queue; one that is larger alone has memory of its own for as
  /// long as it runs.
  std::int64_t max_bytes = std::int64_t{256} << 20;
};

/// A group that moves host memory as `host` does, and device memory through pinned memory of the host. Device
/// collectives are issued on a queue of the device ("gather"); their host part runs on the rank's host queue of that
/// name. It is poisoned and reset with `host`. Staging memory is accounted to the rank as "communication" of the host.
///
/// Ranks that are threads of one process need a device each: where they share one, whatever makes the whole device wait
/// (freeing its memory, a kernel's first launch unless CUDA_MODULE_LOADING is EAGER) may wait for another rank, and too
/// many streams for CUDA_DEVICE_MAX_CONNECTIONS stand behind each other.
std::shared_ptr<ProcessGroup> make_staged_group(std::shared_ptr<ProcessGroup> host, StagedOptions options = {});

}  // namespace sherd
