#pragma once
// The program `sherd` as a function, which tests call too.
#include <span>
#include <string_view>

namespace sherd {

/// Runs the command that `args` names (without the program's name) and returns the exit status. Throws its errors.
int run_command(std::span<const std::string_view> args);

/// The same, but prints what is thrown as a line "sherd: ..." on stderr and returns its status. `bench` and `walk` go
/// on as another program.
int run_sherd(std::span<const std::string_view> args);

}  // namespace sherd
