#include "runtime/comm/group/lanes.h"

#include <algorithm>
#include <iterator>

#include "runtime/comm/group/ghost_group.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {
constexpr std::string_view kUsual[] = {kGatherQueue, kReduceQueue, kCollectiveQueue, kReplicateQueue};
static_assert(std::size(kUsual) == comm::kNumUsualLanes && comm::kNumUsualLanes < HostGroup::kNumLanes);
}  // namespace

HostGroup& lane_of(ProcessGroup& group, std::string_view queue) {
  check_fits_rank(group);
  return group.host().lane(queue);
}

int comm::usual_lane(std::string_view queue) {
  const auto* const usual = std::ranges::find(kUsual, queue);
  return usual == std::end(kUsual) ? 0 : 1 + static_cast<int>(usual - std::begin(kUsual));
}

int comm::LaneNumbers::of(std::string_view queue) {
  if (const int lane = usual_lane(queue); lane != 0) return lane;
  const std::lock_guard lock(mutex_);
  if (const auto known = others_.find(queue); known != others_.end()) return known->second;
  const int next = 1 + static_cast<int>(std::size(kUsual) + others_.size());
  if (next >= HostGroup::kNumLanes) {
    std::string names = fmt::format("{}", fmt::join(kUsual, ", "));
    for (const auto& [name, lane] : others_) names += ", " + name;
    fail("the queue \"{}\" cannot communicate in this group: it has {} lanes, which are taken by {}", queue,
         HostGroup::kNumLanes - 1, names);
  }
  others_.emplace(queue, next);
  return next;
}

}  // namespace sherd
