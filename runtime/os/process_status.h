#pragma once
// A process as /proc shows it.
#include <sys/types.h>

#include <optional>
#include <string>

namespace sherd {

struct ProcessStatus {
  std::string name;  ///< The program's file name, of which the kernel keeps 15 characters.
  char state = 0;    ///< R, S, D, T (stopped by a signal), Z (ended, and nobody has asked how) ...
  pid_t parent = 0;  ///< 0: none that this process can see.
  pid_t group = 0;
  std::string started;  ///< Clock ticks after boot: tells the process from a later one of the same number.

  bool has_ended() const { return state == 'Z' || state == 'X'; }
};

/// A snapshot; nothing where there is no such process.
std::optional<ProcessStatus> process_status(pid_t process);

}  // namespace sherd
