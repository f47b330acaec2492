#pragma once
// The program `sherd` as a function, which tests call too.
#include <span>
#include <string_view>

namespace sherd {

/// Runs the command that `args` names (without the program's name), prints what it throws as a line "sherd: ..." on
/// stderr, and returns the exit status.
int run_sherd(std::span<const std::string_view> args);

}  // namespace sherd
