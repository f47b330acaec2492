#pragma once
// Starting one program as a rank: in a process group of its own, and not outliving the thread that starts it.
#include <signal.h>
#include <sys/types.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/os/descriptor.h"

namespace sherd {

struct Pipe {
  Descriptor read, write;
};
/// Both ends close on exec. Error if the system has no more.
Pipe make_pipe();

/// This process's environment, without variables that begin so.
std::vector<std::string> environment_without(std::span<const std::string_view> beginnings);

struct SpawnPlan {
  /// Program, looked up on PATH, and its arguments.
  std::vector<std::string> command;
  /// "NAME=value"; the whole environment.
  std::vector<std::string> environment;
  /// What become descriptors 0, 1 and 2; all of them 3 or above, or 0, 1 and 2 themselves in order.
  int in = 0, out = 1, err = 2;
  /// The signals blocked in the new program.
  sigset_t mask{};
};

/// Returns when the program runs. It leads a new process group, gets SIGKILL when the calling thread ends, inherits
/// no other descriptors, and has SIGPIPE, SIGCHLD and SIGXFSZ at their defaults. Error if it cannot be started, naming
/// it.
pid_t spawn(const SpawnPlan& plan);

}  // namespace sherd
