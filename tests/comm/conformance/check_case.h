#pragma once
// One case on one rank: buffers, the call, and every byte that it must leave.
#include "runtime/comm/group/host_group.h"
#include "tests/comm/conformance/cases.h"

namespace sherd::testing {

/// Runs the case with buffers on `device` and compares all of them, what lies behind their elements included, bit by
/// bit with what scalar loops over the ranks leave there. Every rank of the group calls it, in a rank context. Expects
/// that nothing differs, and says whether.
bool check_case(ProcessGroup& group, const CollectiveCase& c, Device device);

// ---- groups of ghosts, on a ghost rank: they answer counts and checks, and no values ----

/// Expects that an issued case is one item of the step's timeline with as many bytes as `real`, which is what a group
/// with peers has counted for it; that it moves nothing; and that buffers which are too small are refused by name.
void check_issued_by_ghost(ProcessGroup& group, const CollectiveCase& c, const CommCounts::Item& real);
/// Expects that run() leaves what it would leave if all ranks held what this one does, as agreements do, and refuses by
/// name what needs their values.
void check_run_by_ghost(ProcessGroup& group, CollectiveCase c);

}  // namespace sherd::testing
