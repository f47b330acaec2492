#pragma once
// What makes a step of a run longer than it had to be, each finding with what shows it, what to do, and what that
// gains.
#include <string>
#include <string_view>
#include <vector>

#include "tools/diagnose/priced_run.h"

namespace sherd::diagnose {

struct Evidence {
  std::string text;
  int line;  ///< of the metrics file; 0: of all settled steps
};

struct Finding {
  std::string_view id;
  double seconds = 0;  ///< of a step, that are lost
  std::vector<Evidence> evidence{};
  std::string command{};  ///< flags to paste, or what to do outside
  double gain = 0;        ///< seconds per step of as many tokens, that the command gives
  bool is_simulated = false;
  std::string_view gain_by() const { return is_simulated ? "simulated" : "measured"; }
};

/// What findings are made from.
struct RunCase {
  const RunFile& run;
  Shares shares;
  const PricedRun& priced;
  double step() const { return shares.total(); }
  const StepLine& last() const { return run.last_evaluation(); }
};

/// Findings below this share of a step are no findings.
inline constexpr double kWeight = 0.03;

/// Looks for settings that the simulator says are faster otherwise.
void find_in_settings(const RunCase& facts, std::vector<Finding>& findings);
/// Looks for what the run has measured: of the host, the ranks, the loop and the link.
void find_on_host(const RunCase& facts, std::vector<Finding>& findings);
/// All of weight, the one that costs most first.
std::vector<Finding> findings_of(const RunCase& facts);
/// What bounds a step and how far it is from that, a sentence.
std::string bound_of(const RunCase& facts);

}  // namespace sherd::diagnose
