#include "runtime/comm/group/device_support.h"

#include "runtime/tensor/error.h"

namespace sherd {

void refuse_device(const ProcessGroup& group, Device device, std::string_view what, int ranks) {
  fail(
      "{} of {} ranks on {}: the {} group \"{}\" moves host memory; {} (tensors move there with to()), or make the "
      "world "
      "a group that stages (comm/group/staged_group.h)",
      what, ranks, to_string(device), group.kind(), group.name(), kRanksOnGpus);
}

}  // namespace sherd
