// `sherd info`: what this build has and what this machine offers.
#include <cstdio>
#include <string>

#include <unistd.h>

#include "runtime/comm/job/rank.h"
#include "runtime/cpu/gemm/onednn.h"
#include "runtime/memory/accounting.h"
#include "runtime/op/core/device_library.h"
#include "runtime/op/core/op.h"
#include "runtime/os/instruction_level.h"
#include "runtime/os/machine.h"
#include "tools/cli/built_with.h"
#include "tools/cli/command.h"
#include "tools/cli/cpu_share.h"
#include "tools/train/exit_status.h"
#include "tools/train/flags.h"
#include "tools/train/version.h"

namespace sherd {

namespace {

std::string kernel_levels() {
  std::string text;
  for (const std::string_view name : usable_levels()) text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  return fmt::format("{} (of {})", instruction_level().name, text);
}

std::string matrix_engines() {
  const cpu::OnednnLibrary& library = cpu::onednn_library();
  if (library.gemm)
    return fmt::format("own blocked kernel, oneDNN ({}); of bf16: {}", library.path, cpu::bf16_engine());
  return fmt::format("own blocked kernel; no oneDNN: {}", library.reason);
}

std::string rank_text() {
  try {
    const RankInfo rank = discover_rank();
    if (rank.source == "none") return "1 rank, no launcher";
    return fmt::format("rank {} of {} ({})", rank.rank, rank.world_size, rank.source);
  } catch (const Error& error) { return fmt::format("not usable: {}", error.message()); }
}

// What was found of CUDA, with versions, or why there is none.
std::string cuda_text() {
  const DeviceLibrary& library = cuda_library();
  const std::string_view why = why_built_without_cuda();
  const bool found = library.path.find('/') != library.path.npos;  // else only the loader was asked
  if (!library.backend && !found && !why.empty())
    return fmt::format("cuda             built without CUDA: {}; -DSHERD_CUDA=ON\n", why);
  if (!library.backend) return fmt::format("cuda             not available: {}\n", library.reason);
  std::string text = fmt::format("cuda             {}\n", library.path);
  for (const BackendFact& fact : library.backend->facts()) text += fmt::format("  {:<15}{}\n", fact.name, fact.value);
  return text;
}

}  // namespace

int run_info(std::span<const std::string_view> args) {
  ConfigTable table;
  const auto words = read_command_line(table, args, "sherd info: prints what this build and this machine offer");
  if (!words) return 0;
  check_usage(words->empty(), "sherd info takes no arguments, got \"{}\"", words->empty() ? "" : words->front());
  const std::string cpus = describe(allowed_cpus());  // before oneDNN brings an OpenMP library
  const std::int64_t memory = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  std::fputs(fmt::format("sherd            {}\n"
                         "cpu              {}, {} memory\n"
                         "cpus             {}\n"
                         "kernels          {}\n"
                         "matrix products  {}\n"
                         "ops              {} rows\n"
                         "devices          cpu, meta{}\n"
                         "{}"
                         "process groups   thread, shm; of GPUs nccl, staged; of several hosts store\n"
                         "launcher         {}\n",
                         kVersion, cpu_model(), format_bytes(memory), cpus, kernel_levels(), matrix_engines(),
                         op_table().rows().size(),
                         cuda_library().backend && cuda_library().backend->num_devices() > 0 ? ", cuda" : "",
                         cuda_text(), rank_text())
                 .c_str(),
             stdout);
  return 0;
}

}  // namespace sherd
