#include "runtime/comm/group/rank_kernels.h"

#include "runtime/os/instruction_level.h"
#include "runtime/tensor/error.h"

namespace sherd::comm {

const RankKernels& rank_kernels() {
  const InstructionLevel& level = instruction_level();
  check(level.kernels != nullptr, "{}", level.why_none);
  return *level.kernels->ranks;
}

}  // namespace sherd::comm
