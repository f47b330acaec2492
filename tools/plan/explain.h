#pragma once
// One row looked into: what its step does with its time, what it waits for, what holds its peak, and what each other
// setting would change.
#include <string>

#include "tools/plan/planner.h"

namespace sherd::plan {

/// Lines for people. The option is priced.
std::string explanation_of(const Option& option, const PlannedFor& planned, const ModelSize& size);

}  // namespace sherd::plan
