#pragma once
// Registers that a thread of a kernel may use, by a part of the kernel's name; the first line that fits. A
// multiprocessor has 65,536, so they are also the limit of a block's threads: the emulator refuses a launch of more,
// and tests/cuda/built_library.py, which reads the lines below, that nvcc used more.
#include <string_view>

namespace sherd::cuda::emulated {

struct RegisterLimit {
  std::string_view part;
  int registers;
};
inline constexpr RegisterLimit kRegisterLimits[] = {
    {"flash_", 248},  // tiles of products in registers: few, fat warps; blocks of 256 threads
    {"tiled_", 248},
    {"power_total", 64},   // one block of 1024
    {"block_reduce", 64},  // the same, of tests
    {"", 128},             // teams of 512
};
inline constexpr int kBlockRegisters = 65536;

constexpr int register_limit(std::string_view kernel) {
  for (const RegisterLimit& limit : kRegisterLimits)
    if (kernel.find(limit.part) != std::string_view::npos) return limit.registers;
  return 0;  // not reached: the last line fits all
}

/// Whether a block of so many threads has the registers it may need: they are given to warps, by 8 a thread.
constexpr bool registers_fit(std::string_view kernel, unsigned threads) {
  const int rounded = (register_limit(kernel) + 7) / 8 * 8, warps = static_cast<int>((threads + 31) / 32);
  return rounded * warps * 32 <= kBlockRegisters;
}

}  // namespace sherd::cuda::emulated
