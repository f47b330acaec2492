#pragma once
// The program `sherd` called as a function: what a user sees of a command that is over in milliseconds.
#include <string>
#include <vector>

#include "tests/support/program.h"

namespace sherd::testing {

/// Runs `sherd WORDS` in this process, as one rank without a launcher, and catches what it prints. What it does to
/// signals is undone.
ProgramEnd sherd_here(const std::vector<std::string>& words);

}  // namespace sherd::testing
