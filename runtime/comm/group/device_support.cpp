#include "runtime/comm/group/device_support.h"

#include "runtime/tensor/error.h"

namespace sherd {

void refuse_device(const ProcessGroup& group, Device device, std::string_view what, int ranks) {
  fail(
      "{} of {} ranks on {}: the {} group \"{}\" moves host memory; take chosen_group() of it "
      "(comm/job/group_choice.h), as sherd train does, or move the tensors to the host with to()",
      what, ranks, to_string(device), group.kind(), group.name());
}

}  // namespace sherd
