#pragma once
// What is said where a group does not move the memory that it is asked to.
#include <string_view>

#include "runtime/comm/group/process_group.h"

namespace sherd {

/// Throws the Error of `group`, which does not support `device`, naming what is distributed over `ranks` ranks there.
[[noreturn]] void refuse_device(const ProcessGroup& group, Device device, std::string_view what, int ranks);

}  // namespace sherd
