#include "compile/passes/pass.h"

#include "compile/ir/analysis/meaning.h"
#include "compile/ir/verify.h"
#include "compile/passes/place_eager.h"
#include "compile/passes/place_waits.h"
#include "compile/passes/ssa.h"
#include "compile/passes/temporaries.h"

namespace sherd::ir {

namespace {

// What Live names by index.
void check_tables(const Program& before, const Program& after) {
  check(before.modules == after.modules && before.layouts == after.layouts && before.settings == after.settings &&
            before.units == after.units && before.constants == after.constants,
        "the program has other modules, layouts, settings, units or constants than it had");
}

}  // namespace

// Scratch comes last of what makes values: how much a rank needs follows from the sizes of its local tensors, and the
// numbers of other values must not.
std::vector<Pass> standard_passes() {
  return {{"ssa", ssa},
          {"place_eager", place_eager},
          {"accumulate_apart", accumulate_apart},
          {"scratch_as_values", scratch_as_values},
          {"place_waits", place_waits}};
}

void run_passes(Program& program, std::span<const Pass> passes) {
  verify(program);
  if (passes.empty()) return;
  const Program recorded = program;
  const Meanings meant(recorded);
  for (const Pass& pass : passes) {
    try {
      pass.run(program);
      if (program == recorded) continue;  // is proved
      verify(program);
      check_tables(recorded, program);
      check_same_meaning(meant, program);
    } catch (Error& error) {
      error.add("pass", pass.name);
      throw;
    }
  }
}

}  // namespace sherd::ir
