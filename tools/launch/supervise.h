#pragma once
// Runs one program as N ranks and answers for them: their output, their failures, and that none is left behind.
//
//   launcher (caller) --- launch_guard.h ---> inner process: store server, ranks' pipes, one poll loop
//                                               |-- rank 0   its own process group, killed with the inner process
//                                               |-- rank 1
//                                               `-- ...
#include <chrono>
#include <string>
#include <vector>

#include "tools/launch/restart_policy.h"
#include "tools/train/exit_status.h"

namespace sherd {

using namespace train;

struct SuperviseOptions {
  /// Program, looked up on PATH, and its arguments.
  std::vector<std::string> command;
  /// At least 1; may exceed the number of cores.
  int ranks = 1;
  /// From a failure of one rank until SIGKILL for the others.
  std::chrono::milliseconds grace{5'000};
  /// From the user's signal until SIGKILL: time to finish a step and to save. Slurm kills after 30 s by default.
  std::chrono::milliseconds save_grace{25'000};
  /// How long, after a rank failed, its peers may go on: to say in which call they were when they lost it; and where
  /// it failed because of a peer, for that peer itself to end.
  std::chrono::milliseconds blame_window{1'000};
  /// Where several were started and all that have not ended are stopped, as by SIGSTOP, for so long, they are killed:
  /// no peer is left that waits for them and would give them up.
  std::chrono::milliseconds frozen_after{60'000};
  /// After a failure, how often and how all ranks are started anew (restart_policy.h).
  RestartOptions restart{};
  /// A program that says which of its ranks are a replica goes on when one dies, which is started again after
  /// restart.backoff (survival.h). When none is left it is a failure like any other.
  bool survive = false;
};

/// Returns when all ranks, and all that they started, have ended.
///
/// Environment: that of the caller, with SHERD_RANK, SHERD_WORLD_SIZE, SHERD_LOCAL_RANK, SHERD_LOCAL_WORLD_SIZE,
/// SHERD_STORE (a store on loopback, served here) and SHERD_SECRET (fresh) for each rank; and SHERD_JOB, a random name
/// that all starts of this call share, SHERD_RESTART, how many starts were before this one, SHERD_SLOT, the rank's
/// number in the first start, and SHERD_FULL_WORLD_SIZE, the number of ranks there; after a start whose ranks have told
/// the store where they have saved (kSavesOfJob in tools/train/restart.h), SHERD_SAVES, that folder. With `survive`
/// SHERD_SURVIVE, how often the rank was started, and SHERD_GENERATION (tools/train/generations.h).
/// Input: rank 0 reads the caller's standard input unless that is a terminal; the others read nothing.
/// Output: of one rank, straight through; of several, whole lines with "[rank] " in front.
/// Failure: when a rank ends by a signal or with a status that is not 0, the others have `blame_window` to end by
/// themselves; then their process groups get SIGTERM, and SIGKILL after `grace`. The rank to blame is the first that
/// failed; but one whose last lines on stderr speak of a CommError failed because of a peer, so that the first without
/// is preferred. Its last lines on stderr are printed at the very end, after the names of all that were killed.
/// Signals: SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the ranks, with SIGKILL after `save_grace`; a
/// second one kills at once. SIGUSR1 is passed on to the ranks themselves, and nothing is stopped. If the calling
/// process dies, by SIGKILL too, everything is killed at once.
/// Restarts: a failure is followed by a new start of all ranks, when all of the old ones have ended. Not one that is a
/// matter of the program or of the user: exit status kUsage, kDiverged, kStoppedAndSaved, kStoppedWithoutSave; ranks or
/// launcher ended by SIGTERM, SIGINT, SIGHUP or SIGQUIT; a command that cannot be run.
/// Result: of the last start 0; or the status of the rank to blame, 128 + signal if a signal ended it. After a signal:
/// kStoppedAndSaved if ranks ended with that, kStoppedWithoutSave if one did; 128 + the signal if any failed otherwise.
/// Error: the command cannot be run, or the system refuses processes, pipes or the port.
/// To be called by a process with one thread and no other children.
int supervise(const SuperviseOptions& options);

}  // namespace sherd
