#pragma once
// Captured steps as pictures: what they hold from node to node, and what they take for what they hold.
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "compile/ir/footprint.h"
#include "compile/ir/program.h"
#include "compile/run/budget_curve.h"

namespace sherd::table {

/// A complete program (compile/run/footprint.h) and what it holds.
struct DrawnProgram {
  std::string name;
  const ir::Program* program;
  const ir::Footprint* footprint;
};

/// Live bytes by category over the nodes, `beside` below them, one program below the other on one scale; the budget as
/// a line; the peak with its node and module, and the largest things that are held there. Values alike of equal blocks
/// are one thing.
std::string memory_svg(std::span<const DrawnProgram> programs, std::int64_t beside, std::optional<std::int64_t> budget);

/// Predicted time of a step over its peak. `curve` begins with the least that the step can hold; `run` is what runs.
std::string budget_svg(std::span<const BudgetPoint> curve, const BudgetPoint& run);

}  // namespace sherd::table
