#pragma once
// Instruction-set levels. The kernels of runtime/cpu are compiled once per level from the same sources
// (cmake/levels.cmake); one level is chosen when a process first needs a kernel, and stays. Results may differ between
// levels (vectors of another length add in another order), never within one.
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

namespace cpu {
struct Kernels;  // cpu/kernels.h
}
namespace comm {
struct RankKernels;  // comm/group/rank_kernels.h
}

/// What a level's object file offers; its parts are declared by the folders that use them.
struct LevelKernels {
  const cpu::Kernels* rows;
  const comm::RankKernels* ranks;
};

struct InstructionLevel {
  std::string_view name;                  ///< "x86-64-v3", "x86-64-v4" or "x86-64-v4+bf16"; empty: there is none
  const LevelKernels* kernels = nullptr;  ///< null: there is none
  std::string why_none;                   ///< for the Error of whoever needs a kernel: lists the levels that would do
};

/// The level of this process: the one SHERD_CPU_LEVEL names, else the highest that is built and that the CPU runs.
const InstructionLevel& instruction_level();

/// Names of the levels that are built and that this CPU runs, lowest first.
std::vector<std::string_view> usable_levels();

}  // namespace sherd
