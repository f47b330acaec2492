#pragma once
// The processes below this one, as /proc shows them. With PR_SET_CHILD_SUBREAPER an orphan becomes a child of its
// nearest subreaper, so that what a rank started stays below its launcher, whatever it does to be independent.
#include <sys/types.h>

#include <chrono>
#include <vector>

namespace sherd {

struct ProcessEntry {
  pid_t pid;
  pid_t parent;
  pid_t group;
  bool zombie;
  bool stopped;  // by a signal, not by a debugger
};

/// All that descend from the calling process, itself excluded. A snapshot: it may be old when you read it.
std::vector<ProcessEntry> descendants();

/// Whether the process is one of these, and stopped.
bool is_stopped(pid_t pid, const std::vector<ProcessEntry>& entries);

/// Sends `signal` to all descendants, and SIGCONT to those that are stopped, or they would not notice.
void signal_descendants(int signal);

/// How long launchers wait for what they have killed.
inline constexpr std::chrono::milliseconds kKillLimit{10'000};

/// Kills all descendants, again until none appears any more, and reaps them. Gives up after `limit` (a process may
/// be stuck in the kernel); returns whether none is left.
bool kill_descendants(std::chrono::milliseconds limit);

/// Whether orphans among the descendants become children of this process; returns the setting before.
bool set_subreaper(bool on);

}  // namespace sherd
