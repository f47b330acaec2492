#include "runtime/comm/board/exposed.h"

#include "runtime/comm/board/board_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/device_times.h"
#include "runtime/exec/queue.h"
#include "runtime/exec/work_times.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

using comm::BoardGroup;

std::vector<std::shared_ptr<BoardGroup>> subgroups_of(const ProcessGroup& group) {
  const auto* board = dynamic_cast<const BoardGroup*>(&group);
  return board ? board->living_subgroups() : std::vector<std::shared_ptr<BoardGroup>>();
}

// The calls of the rank's own thread go through lane 0.
CommTimes times_of_calls(HostGroup& group) {
  CommTimes times{.total = group.counts().seconds};
  times.exposed = times.total;
  for (const int k : Numbers<int>(1, HostGroup::kNumLanes)) times.exposed -= group.lane(k).counts().seconds;
  if (const auto* board = dynamic_cast<const BoardGroup*>(&group)) times.skew = board->skew_seconds();
  return times;
}

}  // namespace

CommCounts counts_with_subgroups(ProcessGroup& any) {
  HostGroup& group = any.host();
  CommCounts counts = group.counts();
  for (const auto& part : subgroups_of(group)) counts += part->counts();
  return counts;
}

Lateness lateness_of(ProcessGroup& any) {
  HostGroup& group = any.host();
  Lateness lateness;
  if (const auto* board = dynamic_cast<const BoardGroup*>(&group)) lateness += board->lateness();
  for (const auto& part : subgroups_of(group)) lateness += part->lateness();
  return lateness;
}

CommTimes comm_times(ProcessGroup& any) {
  collect_device_times();
  HostGroup& group = any.host();
  CommTimes times = times_of_calls(group);
  for (const auto& part : subgroups_of(group)) times += times_of_calls(*part);
  times.exposed += RankContext::current().waited_seconds;
  times.skew += waited_skew_seconds();
  times.total += RankContext::current().state<WorkTimes>().shared_seconds();
  return times;
}

}  // namespace sherd
