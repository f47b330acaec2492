#pragma once
// Instruction-set levels. The kernels of this folder are compiled once per level from the same sources
// (cmake/levels.cmake); one level is chosen when a process first needs a kernel, and stays. Results may differ between
// levels (vectors of another length add in another order), never within one.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/cpu/kernels.h"

namespace sherd::cpu {

/// The level's name and its kernels.
struct Level {
  std::string_view name;  ///< "x86-64-v3", "x86-64-v4" or "x86-64-v4+bf16"
  const Kernels& kernels;
};

/// The level of this process: the one SHERD_CPU_LEVEL names, else the highest that is built and that the CPU runs.
/// Throws Error, each time, if that is none; the message lists the levels that would do.
const Level& level();

/// Names of the levels that are built and that this CPU runs, lowest first.
std::vector<std::string_view> usable_levels();

}  // namespace sherd::cpu
