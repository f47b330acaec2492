#include "compile/run/budget_curve.h"

#include <algorithm>

#include "compile/ir/analysis/seconds.h"
#include "compile/passes/budget/budget.h"
#include "compile/run/footprint.h"

namespace sherd {

// The pass is asked for the curve in its own place, where what comes before it has been done.
std::vector<BudgetPoint> budget_curve(const ir::Program& recorded, const FitOptions& options, int points) {
  std::vector<ir::Program> found;
  std::vector<ir::Pass> passes(options.passes.begin(), options.passes.end());
  const auto budget = std::ranges::find(passes, "budget", &ir::Pass::name);
  if (budget == passes.end()) return {};
  budget->run = [&](ir::Program& program, ir::PassContext& context) {
    if (!context.footprint) return;
    found = within_budgets(program, context, points);
    for (ir::Program& within : found) context.finish(within);
  };
  fit_program(recorded, {.budget = "100%",
                         .passes = passes,
                         .recorded = options.recorded,
                         .prices = options.prices,
                         .moves_out = options.moves_out});
  std::vector<BudgetPoint> curve;
  for (const ir::Program& within : found) {
    const double seconds = options.prices ? step_seconds(within, *options.prices).seconds : 0;
    curve.push_back({footprint_of(within).peak + options.beside, seconds});
  }
  return curve;
}

}  // namespace sherd
