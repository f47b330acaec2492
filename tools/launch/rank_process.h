#pragma once
// One rank as the launcher sees it: its process, its output, and what its end means.
#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/line_relay.h"

namespace sherd {

/// How many of a rank's last lines on stderr are remembered.
inline constexpr std::size_t kTailLines = 20;

struct RankProcess {
  int rank;
  int slot;  // its number in the first start
  pid_t pid;
  std::optional<int> status;  // as from waitpid, once it has ended
  RankStream out, err;
  bool was_frozen = false;   // and killed for it
  bool is_outlived = false;  // the job goes on without it
};

bool has_failed(int status);
/// As a shell tells it: 128 + the signal of what a signal has ended.
int shell_status(int status);
/// It ended by itself, because of a signal.
bool was_stopped(int status);
/// The program or the user wanted this end: another start would end alike, or go on against the user's will.
bool is_meant(int status);
/// End of a rank that has ended: "rank 1 was killed by SIGKILL (Killed)".
std::string describe_end(const RankProcess& rank);
/// A rank that lost a peer says so, and so does one that was told of a peer's error ("sherd: rank 3: reason"); the
/// peer's own error is the one to read.
bool blames_a_peer(const RankProcess& rank);
/// What a rank that ran out of memory has said would fit, in a line; empty if it has said nothing of it.
std::string what_fits(const RankProcess& rank);
/// Whether the process has a handler: a signal that it does not expect, or not yet, would end it.
bool catches(pid_t pid, int signal);

}  // namespace sherd
