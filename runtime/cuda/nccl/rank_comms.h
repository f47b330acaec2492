#pragma once
// The communicators of all groups of one rank. They are made in one order on all ranks, fail together, and are made
// anew together.
//
//   rank's thread   launch(list) -> [started] NCCL group [done]
//   watchdog        the age of `done` since all ranks had met; errors of NCCL; failures of the host's group
//   on a fault      the host's group is told, the device's next wait throws, and all communicators are stopped
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/group/device_group.h"
#include "runtime/cuda/device/context.h"
#include "runtime/cuda/nccl/call_order.h"
#include "runtime/cuda/nccl/watchdog.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::cuda::nccl {

class RankComms : NoCopy {
 public:
  /// On the rank's thread. `host` is the group of all ranks.
  RankComms(const NcclApi& api, std::shared_ptr<ProcessGroup> host, NcclGroupOptions options);
  /// Waits until what is on streams has ended on all ranks, within options.closing_deadline; not after an error.
  ~RankComms();

  Device device() const { return options_.device; }
  /// Makes the communicators of a group, one per queue, and returns its number. Collective over that group, of these
  /// ranks of the first one. Those of one rank alone are made when they are first used.
  std::size_t add(std::shared_ptr<ProcessGroup> host, std::vector<int> ranks);
  /// What all ranks of a group compare before they launch. On the rank's thread.
  CallOrder& order() { return order_; }
  /// Puts a list on the queue's stream by the communicator of that group and queue. `met` is when all ranks have come
  /// to it, `subject` what it is for. Tells the other ranks if NCCL refuses it. Throws CommError.
  void launch(std::size_t group, std::string_view queue, std::span<const ListCall> list, cudaStream_t stream,
              const MeetingTime& met, const std::string& subject);
  /// Fails on this rank: waits for the device throw this, and all communicators are stopped. From any thread.
  void fail(const CommError& error);
  /// Fails on all ranks. From any thread.
  void abort(std::string_view reason);
  /// Resets the host's group and makes new communicators for all groups, by new ids. Collective over all ranks.
  void reset();
  void set_deadline(std::chrono::nanoseconds deadline);
  /// How often reset() was called.
  std::uint64_t generation() const { return generation_; }

 private:
  struct Group {
    std::shared_ptr<ProcessGroup> host;
    std::vector<std::shared_ptr<QueueComm>> comms;  // by queue; none after a reset() that failed
  };
  void make(Group& group);
  void close();
  void await(const MeetingTime& met) const;
  std::string tell(const std::string& why);

  const NcclApi& api_;
  const std::shared_ptr<ProcessGroup> host_;
  NcclGroupOptions options_;
  const std::shared_ptr<DeviceContext::Failure> failure_;
  std::uint64_t generation_ = 0;
  std::vector<Group> groups_;  // in the order of making, which is that of all ranks
  CallOrder order_;            // of the same groups
  Watchdog watchdog_;          // the last: its thread uses the others
};

}  // namespace sherd::cuda::nccl
