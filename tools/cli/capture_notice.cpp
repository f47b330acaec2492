#include "tools/cli/capture_notice.h"

#include <utility>

namespace sherd {

std::string CaptureNotice::of(const StepMetrics& metrics) {
  constexpr int kBeforeReplay = 3;  // one eager step, two that are recorded
  if (!metrics.captured || ++num_steps_ <= kBeforeReplay) return {};
  const std::string reason = metrics.captured->is_replay ? "" : metrics.captured->why;
  if (std::exchange(said_, reason) == reason || reason.empty()) return {};
  return fmt::format("step {} is not captured: {}", metrics.step, reason);
}

}  // namespace sherd
