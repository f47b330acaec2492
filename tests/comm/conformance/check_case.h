#pragma once
// One case on one rank: buffers, the call, and every byte that it must leave.
#include "runtime/comm/group/process_group.h"
#include "tests/comm/conformance/cases.h"

namespace sherd::testing {

/// Runs the case with buffers on `device` and compares all of them, what lies behind their elements included, bit by
/// bit with what scalar loops over the ranks leave there. Every rank of the group calls it, in a rank context. Expects
/// that nothing differs, and says whether.
bool check_case(ProcessGroup& group, const CollectiveCase& c, Device device);

}  // namespace sherd::testing
