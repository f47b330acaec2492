#pragma once
// The one status line of long work, on stderr.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "runtime/tensor/no_copy.h"
#include "tools/train/metrics.h"

namespace sherd {

struct ProgressState {
  std::int64_t step = 0, steps = 0;  ///< done, and in all
  double loss = 0;
  double tokens_per_second = 0;
  std::int64_t memory_bytes = 0;         ///< per rank
  std::optional<double> seconds_left{};  ///< unknown at first
};

/// "step  120/2000  loss 2.1034  35.2k tokens/s  43.4 MB per rank  ETA 1:23".
std::string progress_line(const ProgressState& state);
/// "0:07", "1:23", "2:03:04"; rounded to seconds.
std::string format_duration(double seconds);

/// On a terminal one line that is redrawn in place, at most ten times a second; elsewhere a plain line every five
/// seconds. The first and the last step always show.
class Progress : NoCopy {
 public:
  using Clock = std::chrono::steady_clock;

  /// `out` outlives this object; `is_terminal` usually is isatty(fileno(out)).
  Progress(std::FILE* out, bool is_terminal) : out_(out), is_terminal_(is_terminal) {}
  /// Ends the redrawn line, so that what follows starts on a line of its own.
  ~Progress();

  /// Called after every step. Fills in the time left, from the mean step since the second call: the first step of a run
  /// (page faults, recording) is slower than the rest.
  void show(ProgressState state, Clock::time_point now);
  /// Prints a message on a line of its own, above the status line.
  void message(const std::string& text);

 private:
  struct Mark {
    std::int64_t step;
    Clock::time_point time;
  };

  std::FILE* out_;
  bool is_terminal_;
  bool line_is_open_ = false;
  bool shown_ = false;
  std::optional<Mark> start_{};  // after the first step
  Clock::time_point last_shown_{};
};

/// What a run with --compile says of steps that are not replayed.
class CaptureNotice {
 public:
  /// "step 90 is not captured: ran eagerly: ...", once for each reason in a row; empty for replays, and for the first
  /// steps, which run eagerly and are recorded.
  std::string of(const train::StepMetrics& metrics);

 private:
  int num_steps_ = 0;
  std::string said_;
};

}  // namespace sherd
