#pragma once
// From the recorded program to the one that runs: a list of passes, each of which is proved when it has run.
//
//   recorded -> verify -> ssa -> verify, meaning -> ... -> place_waits -> verify, meaning -> an executor
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "compile/ir/program.h"

namespace sherd::ir {

struct Pass {
  std::string name;  ///< for errors
  /// Leaves a program that verify() accepts, that means what it did, and whose tables of names are as they were.
  std::function<void(Program&)> run;
};

/// What compile() runs unless it is told otherwise: ssa and place_eager, between which passes that move, merge or
/// replace nodes have their place; then sums that rows cannot add up, scratch and waits become nodes and values.
/// Results and memory are those of the recorded run: bit for bit, byte for byte.
std::vector<Pass> standard_passes();

/// Runs the passes one after the other. Error naming the pass, and the node where there is one, if the program that it
/// leaves is not sound (verify.h), does not mean what the recorded one does (meaning.h), or has other tables of names,
/// by which a rank knows what they stand for. A pass that leaves the recorded program, as it was or again, leaves
/// nothing to prove. Without passes it is verify(). A failed call leaves the program as the pass left it.
void run_passes(Program& program, std::span<const Pass> passes);

}  // namespace sherd::ir
