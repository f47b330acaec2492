#pragma once
// The commands of the program `sherd`, as a function that tests call too.
#include <span>
#include <string_view>

namespace sherd {

/// Runs the command that `args` names (without the program's name) and returns the exit status. `bench` and `walk` go
/// on as another program. Throws its errors.
int run_command(std::span<const std::string_view> args);

}  // namespace sherd
