#include "runtime/comm/exposed.h"

#include "runtime/exec/context.h"

namespace sherd {

CommTimes comm_times(ProcessGroup& group) {
  CommTimes times{.exposed = 0, .total = group.counts().seconds};
  double on_streams = 0;
  for (int k = 1; k < ProcessGroup::kNumChannels; ++k) on_streams += group.channel(k).counts().seconds;
  times.exposed = times.total - on_streams + RankContext::current().waited_seconds;
  return times;
}

}  // namespace sherd
