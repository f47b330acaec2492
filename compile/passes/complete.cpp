#include "compile/passes/complete.h"

#include "compile/passes/place_waits.h"
#include "compile/passes/temporaries.h"

namespace sherd {

void complete(Program& program) {
  accumulate_apart(program);
  scratch_as_values(program);
  place_waits(program);
}

}  // namespace sherd
