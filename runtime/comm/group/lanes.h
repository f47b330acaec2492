#pragma once
// Which lane of a group the work of a queue uses.
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "runtime/comm/group/host_group.h"

namespace sherd {

/// The queues whose work usually communicates: their lanes are there from the beginning. Lane 0 is the rank's
/// thread's.
inline constexpr std::string_view kGatherQueue = "gather", kReduceQueue = "reduce", kCollectiveQueue = "collective",
                                  kReplicateQueue = "replicate";

/// The lane for work of this queue, see HostGroup::lane(). Error as check_fits_rank() (ghost_group.h).
HostGroup& lane_of(ProcessGroup& group, std::string_view queue);

namespace comm {
inline constexpr int kNumUsualLanes = 4;
/// The lane of one of the queues above, the same in all groups; 0 for other queues.
int usual_lane(std::string_view queue);

/// Numbers of lanes by queue: those above, then others in the order of their first use. Any thread may ask.
class LaneNumbers {
 public:
  /// A number in 1..kNumLanes - 1. Error, naming the queues that have one, if all are taken.
  int of(std::string_view queue);

 private:
  std::mutex mutex_;
  std::map<std::string, int, std::less<>> others_;
};
}  // namespace comm

}  // namespace sherd
