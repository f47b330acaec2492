#pragma once
// SIGTERM and SIGINT as a wish to end, SIGUSR1 as a wish to save and go on: the training loop asks for them at its
// step boundaries.

#include <string>

namespace sherd::train {

/// "SIGTERM"; "signal 77" for a number without a name.
std::string signal_name(int signal);

/// For the start of a program, before there are StopSignals: from here to its end SIGUSR1 is noted, and the first of
/// them takes it. An ignored one stays ignored. Not from several threads.
void note_save_signals();
/// The run turns out not to save: SIGUSR1 does what it did before, and one that was noted meanwhile is forgotten.
void forget_save_signals();

/// While one lives, SIGTERM, SIGINT and SIGUSR1 are noted instead of ending the process. A second SIGINT ends it at
/// once; further SIGTERMs do not, since Slurm and systemd signal the launcher, which passes it on, and the ranks as
/// well. Signals that are ignored (nohup) stay ignored. Several may live at once, of rank threads; what was noted is of
/// the process and is forgotten with the last of them.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The last of SIGTERM and SIGINT that was noted, 0 if there was none. From any thread.
  static int noted() noexcept;
  /// Whether SIGUSR1 was noted since the last call, of any thread.
  static bool take_save() noexcept;
};

}  // namespace sherd::train
