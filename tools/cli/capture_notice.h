#pragma once
// What a run with --compile says of steps that are not replayed.
#include <string>

#include "tools/train/metrics.h"

namespace sherd {

class CaptureNotice {
 public:
  /// "step 90 is not captured: ran eagerly: ...", once for each reason in a row; empty for replays, and for the first
  /// steps, which run eagerly and are recorded.
  std::string of(const StepMetrics& metrics);

 private:
  int num_steps_ = 0;
  std::string said_;
};

}  // namespace sherd
