#pragma once
// Groups that move the memory of devices by a library of their backend: NCCL. Programs ask for one here, because the
// backend is a library of its own.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/group/composed_group.h"
#include "runtime/comm/group/lanes.h"

namespace sherd {

struct NcclGroupOptions {
  Device device{};               ///< of this rank
  std::optional<SumsBy> sums{};  ///< unset: ordered where up to 8 ranks share a host, else fast; alike on all ranks
  /// Limits on the waits for other ranks: of the device inside one call, until set_deadline() sets it and that of the
  /// host's group; on making communicators; at the end of the last group, where what other ranks still receive must have
  /// left this one.
  std::chrono::nanoseconds deadline = std::chrono::seconds(300), init_deadline = std::chrono::seconds(60),
                           closing_deadline = std::chrono::seconds(30);
  /// Queues that communicate. Each has a communicator in each group, made with the group; alike on all ranks.
  std::vector<std::string> queues{std::string(kGatherQueue), std::string(kReduceQueue), std::string(kCollectiveQueue),
                                  std::string(kReplicateQueue)};
  /// Told, on the rank's thread, of every list that goes to a communicator, and the how many-th it is there: the same
  /// sequence on all ranks of one group.
  std::function<void(std::string_view communicator, std::uint64_t number)> on_launch{};
};

namespace comm {
/// What a backend has: filled by it, as GroupKernels.
struct DeviceGroups {
  std::string (*why_none)();  ///< empty if there are
  std::shared_ptr<ProcessGroup> (*make)(std::shared_ptr<ProcessGroup> host, NcclGroupOptions options);
};
}  // namespace comm

/// Why make_device_group() cannot work in this process, with the remedy; empty if it can. Ranks may differ.
std::string why_no_device_group(Device device);

/// A group of the ranks of `host` whose collectives of memory of `options.device` go through NCCL, and those of host
/// memory through `host`, which also finds ranks that are missing or call something else. All communicators are made
/// here, and in subgroup(). After an error, and after reset(), they are made anew. Collective. Error on every rank,
/// naming the one that cannot and why: no library, another release than other ranks have, a communicator that is not
/// made.
std::shared_ptr<ProcessGroup> make_device_group(std::shared_ptr<ProcessGroup> host, NcclGroupOptions options);

}  // namespace sherd
