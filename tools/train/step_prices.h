#pragma once
// What a step of a run takes on this machine, before it is made: a ghost's timeline, played by a calibration.
#include <optional>
#include <string>

#include "runtime/exec/timeline.h"
#include "tools/train/calibration.h"
#include "tools/train/config.h"

namespace sherd::train {

/// Prices of steps of so many ranks of this job. Looks for a calibration once.
class StepPrices {
 public:
  struct Times {
    double seconds = 0;
    double exposed = 0;            ///< of these rank 0 waits: for transfers, other ranks, and room in queues
    bool is_extrapolated = false;  ///< some price lies beyond the sizes and types that were measured
  };

  StepPrices(Device device, int ranks);

  bool are_known() const { return made_.has_value(); }
  /// "calibrated today", and what differs here; or "not calibrated", with the reason and what mends it.
  const std::string& text() const { return text_; }
  /// Plays the step on links that are shaped so. Error where nothing prices a call of it, or if are_known() is false.
  Times of(const Timeline& step, const Links& links) const;

 private:
  const int ranks_;
  std::optional<Calibration> made_;
  std::string text_;
};

}  // namespace sherd::train
