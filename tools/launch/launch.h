#pragma once
// `sherd run -n N -- CMD ARGS...`: starts N ranks of a program on this host (supervise.h says how they are kept).
#include <span>
#include <string_view>

namespace sherd {

/// `args` are those after `run`. Returns the exit status of the program `sherd`; throws ExitError of kUsage for
/// wrong arguments, Error for a command that cannot be run.
int run_launch(std::span<const std::string_view> args);

}  // namespace sherd
