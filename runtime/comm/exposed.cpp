#include "runtime/comm/exposed.h"

#include "runtime/comm/board_group.h"
#include "runtime/exec/context.h"

namespace sherd {

namespace {

std::vector<std::shared_ptr<comm::BoardGroup>> subgroups_of(const ProcessGroup& group) {
  const auto* board = dynamic_cast<const comm::BoardGroup*>(&group);
  return board ? board->living_subgroups() : std::vector<std::shared_ptr<comm::BoardGroup>>();
}

double seconds_on_streams(ProcessGroup& group) {
  double seconds = 0;
  for (int k = 1; k < ProcessGroup::kNumChannels; ++k) seconds += group.channel(k).counts().seconds;
  return seconds;
}

}  // namespace

CommCounts counts_with_subgroups(ProcessGroup& group) {
  CommCounts counts = group.counts();
  for (const auto& part : subgroups_of(group)) counts += part->counts();
  return counts;
}

CommTimes comm_times(ProcessGroup& group) {
  double on_streams = seconds_on_streams(group);
  for (const auto& part : subgroups_of(group)) on_streams += seconds_on_streams(*part);
  CommTimes times{.exposed = 0, .total = counts_with_subgroups(group).seconds};
  times.exposed = times.total - on_streams + RankContext::current().waited_seconds;
  return times;
}

}  // namespace sherd
