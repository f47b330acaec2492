#pragma once
// What a run does when a step has diverged (divergence.h): it goes back to its last save, or ends.
#include <cstdint>

#include "tools/train/run.h"
#include "tools/train/step_log.h"

namespace sherd::train {

/// A run that comes back to the same save more often has diverged.
inline constexpr int kMostRollbacks = 10;

/// Throws ExitError of kDiverged, which names the step and where it began. Collective.
[[noreturn]] void fail_diverged(Run& run, const Divergence& found);

/// A run with on_nonfinite = rollback; of another one nothing here does anything.
class Rollback {
 public:
  explicit Rollback(Run& run) : run_(run) {}

  /// A run that may have to go back needs something to go back to. Collective.
  void save_before_the_first_step(const RunStops& stops);
  /// Takes the state of the last good save, and leaves out the batch that was too much. Returns the step of the save.
  /// Collective. Throws as fail_diverged() after kMostRollbacks times to the same save.
  std::int64_t go_back(StepLog& log);

 private:
  Run& run_;
  std::int64_t last_ = -1;  // the step of the save
  int times_in_a_row_ = 0;  // to that save
};

}  // namespace sherd::train
