#pragma once
// The pass that makes a step fit the bytes it is given.
#include "compile/passes/pass.h"

namespace sherd::ir {

/// Repeats nodes whose results are let go in between, and keeps gathered parameters that the recorded step releases and
/// gathers again, or releases and gathers those that it keeps, so that the program holds at most context.budget bytes,
/// for the fewest seconds. Without a budget it keeps what costs no byte more than was recorded. Gathers are left out
/// where all ranks can, and added where one rank must (context.on_all).
/// Needs a program as ssa() leaves it, and context.footprint, without which it does nothing. Error with the least that
/// it can hold, and what holds that, if that is over the budget.
void fit_budget(Program& program, PassContext& context);

/// The program within `points` budgets, evenly apart, from the least that it can hold to what it was recorded to hold;
/// gathers are as recorded. For the price of one budget or two: each goes on from the next higher one. Needs what
/// fit_budget() does.
std::vector<Program> within_budgets(const Program& program, PassContext& context, int points);

}  // namespace sherd::ir
