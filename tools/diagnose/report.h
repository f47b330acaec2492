#pragma once
// A diagnosis as people and programs read it.
#include <optional>
#include <string>
#include <vector>

#include "tools/diagnose/compare.h"

namespace sherd::diagnose {

struct Diagnosis {
  const RunFile& run;
  Shares shares;
  std::vector<Finding> findings;
  std::string bound;               ///< what bounds the run
  std::vector<std::string> notes;  ///< what the diagnosis rests on
  std::optional<Comparison> compared{};
};

/// The shares of a step, findings, and what to do about each; without one what bounds the run.
std::string to_text(const Diagnosis& diagnosis);
/// One object: {"run", "steps", "ranks", "tokens", "step_seconds", "shares": {share: seconds}, "findings": [{"id",
/// "seconds_per_step", "evidence": [{"text", "line"}], "command", "gain", "gain_by"}], "bound", "notes", "baseline":
/// {"shares", "difference", "settings", "sentence"}}. "step_seconds" is the sum of the shares.
std::string to_json(const Diagnosis& diagnosis);

}  // namespace sherd::diagnose
