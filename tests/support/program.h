#pragma once
// Runs a program to its end, with its output caught and a limit on its time: what a user sees of a command.
#include <chrono>
#include <string>
#include <vector>

namespace sherd::testing {

struct ProgramEnd {
  int status = 0;  ///< exit status; 128 + the signal's number when killed
  std::string out, err;
  bool timed_out = false;  ///< it was killed at the limit
};

/// `command[0]` is a path, or a name that is looked up on PATH. `environment` holds "NAME=value" and replaces what
/// the test inherited. Nothing is left running: the program's process group is killed at the end.
ProgramEnd run_program(const std::vector<std::string>& command, const std::vector<std::string>& environment = {},
                       std::chrono::seconds limit = std::chrono::seconds(60));

}  // namespace sherd::testing
