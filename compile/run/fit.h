#pragma once
// From a recorded step to one that fits its bytes: the passes, with what they decide by on this rank.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compile/passes/pass.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/exec/price.h"
#include "runtime/memory/memory_budget.h"

namespace sherd {

struct FitOptions {
  MemoryBudget budget{};
  std::span<const ir::Pass> passes{};
  /// Bytes that the rank holds beside the program while it runs.
  std::int64_t beside = 0;
  /// Ranks that fit the same program together, and decide alike what they must; null: this one alone decides nothing
  /// that others must do too.
  ProcessGroup* group = nullptr;
  /// What the program holds as the passes leave it without a budget; null: it is found anew.
  const ir::Footprint* recorded = nullptr;
  /// What passes decide by; null: all nodes cost nothing.
  const Prices* prices = nullptr;
  bool moves_out = false;  ///< bytes of activations may be in homes meanwhile (compile/run/homes.h)
  /// PassContext::observe.
  std::function<void(std::string_view name, const ir::Program& program)> observe{};
};

/// A program to run, and what is known of it before it does.
struct Fitted {
  ir::Program program{};
  ir::Footprint footprint{};         ///< of a replay
  std::int64_t recorded_peak = 0;    ///< what a replay of the recorded program holds, beside excluded
  double seconds = 0;                ///< of a replay, by the prices
  std::vector<std::string> notes{};  ///< what passes have done, a line each
};

/// Waits for the queues. What this rank holds now and while `program` runs, whose footprint is `alone`, and is not the
/// program's. `has_arguments`: those of the call are held now.
CategoryBytes bytes_beside(const ir::Program& program, const ir::Footprint& alone, bool has_arguments);

/// Runs the passes over a recorded program. Collective over the group: Error of one rank is an Error of all. The
/// program's groups are to be known here by name.
Fitted fit_program(ir::Program recorded, const FitOptions& options);

}  // namespace sherd
