#pragma once
// What a step takes for what it holds.
#include <cstdint>
#include <vector>

#include "compile/run/fit.h"

namespace sherd {

struct BudgetPoint {
  std::int64_t peak = 0;  ///< bytes of the rank, what is beside the step included
  double seconds = 0;     ///< by the prices
};

/// Peak and time of a replay within `points` budgets, evenly apart, from the least that the step can hold to what it
/// holds without one. As fit_program() with each of them would have it, or nearly, but for gathers, which are those
/// that were recorded; options.budget and group are not read. No point if there is no pass `budget`. Local.
std::vector<BudgetPoint> budget_curve(const ir::Program& recorded, const FitOptions& options, int points = 10);

}  // namespace sherd
