#pragma once
// A run beside another one: where the difference of their steps is, per token.
#include <string>
#include <vector>

#include "tools/diagnose/findings.h"

namespace sherd::diagnose {

struct Comparison {
  double tokens = 0;                    ///< of a step of this run: what both are compared by
  Shares before{}, now{};               ///< of so many tokens
  std::vector<std::string> settings{};  ///< "prefetch true -> false": those that differ and decide how fast a run is
  std::vector<std::string> notes{};     ///< what makes both hard to compare
  std::string sentence{};               ///< "throughput fell 20 %: 14 % exposed gathers of blocks.*, 5 % ..."
};

Comparison compare(const RunFile& before, const RunFile& now);

/// Findings by what they cost more than in the other run, which come first.
void rank_by_difference(std::vector<Finding>& findings, const std::vector<Finding>& before);

}  // namespace sherd::diagnose
