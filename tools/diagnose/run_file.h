#pragma once
// A metrics file of `sherd train`, read back.
#include <cstdint>
#include <string>
#include <vector>

#include "tools/train/config.h"
#include "tools/train/metrics.h"

namespace sherd::diagnose {

using namespace train;

/// A step, and the line of the file that has it. Of the metrics those that say where time went are read.
struct StepLine {
  int line = 0;
  StepMetrics metrics{};
};

struct RunFile {
  std::string path{};
  std::string version{};  ///< of the program that wrote it
  TrainConfig config{};   ///< resolved; keys that this program does not know are left out
  int ranks = 1;
  std::vector<StepLine>
      settled{};  ///< steps behind those in which orders and graphs are recorded, at least kFewestSteps
  std::vector<std::string> notes{};  ///< what is odd about the file: a last line that was cut off

  /// The last settled line with an evaluation, which has the times of units and ranks. Never null.
  const StepLine& last_evaluation() const;
  /// Means over the settled steps.
  double step_seconds() const;
  double tokens() const;
};
inline constexpr std::size_t kFewestSteps = 5;

/// ExitError of usage that begins with the file, and the line where one is wrong: no metrics, those of two runs in one
/// file, of a version without parts of a step, too few steps, no evaluation, a line that is cut off with others behind
/// it, a number that is none. Time and memory are linear in the file.
RunFile read_run(const std::string& path);

}  // namespace sherd::diagnose
