#include "runtime/comm/group/channels.h"

#include "runtime/comm/group/ghost_group.h"
#include "runtime/tensor/error.h"

namespace sherd {

ProcessGroup& channel_of(ProcessGroup& group, std::string_view queue) {
  constexpr std::string_view kQueues[] = {kGatherQueue, kReduceQueue, kCollectiveQueue};
  static_assert(std::size(kQueues) + 1 == ProcessGroup::kNumChannels);
  check_fits_rank(group);
  for (int i = 0; i < ProcessGroup::kNumChannels - 1; ++i)
    if (kQueues[i] == queue) return group.channel(i + 1);
  fail("work of the queue \"{}\" cannot communicate; {}, {} and {} can", queue, kQueues[0], kQueues[1], kQueues[2]);
}

}  // namespace sherd
