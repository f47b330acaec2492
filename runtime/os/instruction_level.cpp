// The choice of the level. What differs between levels lies behind their entry points; this file runs on any CPU.
#include "runtime/os/instruction_level.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/os/settings.h"

// One entry point per level, renamed from the kernels' own by the build. A level that was not built has no address.
extern "C" {
const sherd::LevelKernels* sherd_cpu_kernels_v3() __attribute__((weak));
const sherd::LevelKernels* sherd_cpu_kernels_v4() __attribute__((weak));
const sherd::LevelKernels* sherd_cpu_kernels_v4_bf16() __attribute__((weak));
}

namespace sherd {

namespace {

bool runs_v3() { return __builtin_cpu_supports("x86-64-v3"); }
bool runs_v4() { return __builtin_cpu_supports("x86-64-v4"); }
bool runs_v4_bf16() { return runs_v4() && __builtin_cpu_supports("avx512bf16"); }

struct Candidate {
  std::string_view name;
  const LevelKernels* (*kernels)();
  bool (*runs)();
};
// From the lowest to the highest.
constexpr Candidate kCandidates[] = {
    {"x86-64-v3", sherd_cpu_kernels_v3, runs_v3},
    {"x86-64-v4", sherd_cpu_kernels_v4, runs_v4},
    {"x86-64-v4+bf16", sherd_cpu_kernels_v4_bf16, runs_v4_bf16},
};

bool usable(const Candidate& c) { return c.kernels != nullptr && c.runs(); }

InstructionLevel choose(std::string_view asked) {
  const Candidate* best = nullptr;
  for (const Candidate& c : kCandidates)
    if (usable(c) && (asked.empty() || asked == c.name)) best = &c;
  if (best) return {best->name, best->kernels(), {}};
  if (asked.empty()) return {{}, nullptr, "the kernels need x86-64-v3 (AVX2 and FMA), which this CPU does not have"};
  return {{},
          nullptr,
          fmt::format("SHERD_CPU_LEVEL asks for the kernels of {}; this CPU and build have {}", asked,
                      fmt::join(usable_levels(), ", "))};
}

}  // namespace

std::vector<std::string_view> usable_levels() {
  std::vector<std::string_view> names;
  for (const Candidate& c : kCandidates)
    if (usable(c)) names.push_back(c.name);
  return names;
}

const InstructionLevel& instruction_level() {
  static const InstructionLevel chosen = choose(requested_cpu_level());
  return chosen;
}

}  // namespace sherd
