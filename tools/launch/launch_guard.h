#pragma once
// A launcher in two processes that watch each other, so that killing either one, by SIGKILL too, leaves no rank:
//
//   caller ------- control pipe ------> inner: runs `body`, starts the ranks
//     collects signals, waits              sees the pipe's end if the caller dies, and kills its descendants
//     kills its descendants if the inner one dies by a signal (the ranks die with their parent anyway,
//     and what they had started becomes the caller's)
#include <functional>

namespace sherd {

/// Runs `body(control)` in a child process and returns what it returned (0..255). SIGINT, SIGTERM, SIGHUP and
/// SIGQUIT to the caller, unless it ignores them, arrive as one byte each, the signal's number, on the descriptor
/// `control`; its end means that the caller is dead. In the child these signals and SIGCHLD are blocked and orphaned
/// descendants become its children; it must leave none. An exception in `body` arrives as an Error with its text.
/// Blocks. To be called by a process with one thread and no other children.
int run_guarded(const std::function<int(int control)>& body);

}  // namespace sherd
