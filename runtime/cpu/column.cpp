// The CPU column of the op table, from the kernels of the instruction-set level that this process runs.
#include "runtime/cpu/kernels.h"
#include "runtime/os/instruction_level.h"

namespace sherd {

const cpu::Kernels& cpu::kernels() {
  const InstructionLevel& level = instruction_level();
  check(level.kernels != nullptr, "{}", level.why_none);
  return *level.kernels->rows;
}

void register_cpu(OpTable& table) {
  cpu::kernels().register_rows(table);
  cpu::register_collective(table);
}

}  // namespace sherd
