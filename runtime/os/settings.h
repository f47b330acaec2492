#pragma once
// What the environment asks of the library. settings.cpp and tools/ are all that reads variables; which rank this
// process is, of which job, is read from them in comm/job/rank.h.
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace sherd {

/// std::getenv, or a test's map. nullptr: not set.
using Environment = std::function<const char*(const char*)>;
/// Environment of this process, by std::getenv.
const Environment& process_environment();
/// A variable's text; empty if it is not set.
std::string text_of(const Environment& environment, const char* name);

/// SHERD_CPU_LEVEL, the instruction-set level of the kernels (os/instruction_level.h); empty: the best this CPU runs.
std::string requested_cpu_level();
/// SHERD_CUDA_LIB, the file of the CUDA backend (op/device_library.h); empty: the one beside libsherd.so.
std::string requested_cuda_library();
/// SHERD_NCCL_LIB, the file of NCCL (cuda/nccl); empty: the one that is found.
std::string requested_nccl_library();
/// SHERD_ATTENTION, which kernels compute attention on a device (cuda/attention): fast, deterministic, own; empty:
/// fast.
std::string requested_attention();
/// SHERD_DEVICE_MEMORY, how a device's memory is mapped (cuda/device): "separate" for tools that watch accesses.
std::string requested_device_memory();
/// CUDA_LAUNCH_BLOCKING=1: the CUDA runtime waits for each kernel, so an error is that of the kernel just launched.
bool cuda_launches_block();
/// SHERD_MATMUL, how matrix products of a device are made (cuda/gemm): "untuned", "tf32" or both.
std::string requested_matmul();
/// SHERD_CHECK_PROGRAMS=1: every captured step is written as text, read back and bound here, and an Error says if it
/// differs.
bool checks_programs();
/// Where findings that take long are kept between processes: SHERD_CACHE, else sherd in XDG_CACHE_HOME or ~/.cache.
/// Empty, and nothing is kept: SHERD_CACHE is set to nothing, or there is no home.
std::string cache_folder(const Environment& environment);
std::string cache_folder();

}  // namespace sherd
