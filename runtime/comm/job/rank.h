#pragma once
// Who am I among the ranks, and where do we meet? Ranks come from a launcher only; its environment variables say
// how many there are and which one this process is. This file and tools/ are all that reads the environment.
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "runtime/comm/store/store.h"

namespace sherd {

/// This process among the ranks. Without a launcher: rank 0 of 1, source "none".
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  /// Among the ranks of this host.
  int local_rank = 0;
  int local_world_size = 1;
  /// From SHERD_STORE=host:port; empty and 0 without it.
  std::string store_host;
  int store_port = 0;
  /// From SHERD_SECRET.
  std::string secret;
  /// Whose variables these are: "sherd run", "torchrun", "Open MPI", "Slurm" or "none".
  std::string source = "none";
  /// What tells this job from others on the same host, from the launcher's job id; empty if it gives none.
  std::string job;
  /// XDG_RUNTIME_DIR: the user's private folder for sockets and the like; empty without it.
  std::string runtime_folder;
};

/// std::getenv, or a test's map. nullptr: not set.
using Environment = std::function<const char*(const char*)>;

/// Reads, in this order, SHERD_*, torchrun's, Open MPI's and Slurm's variables; the first launcher found counts.
/// Error, naming the variables: some are missing, one is no number or out of range, or two launchers disagree. One
/// Slurm task per host that starts ranks by another launcher (srun torchrun ...) is nesting, no disagreement; a
/// Slurm allocation without a step is no launcher.
RankInfo discover_rank(const Environment& environment);
RankInfo discover_rank();

/// SHERD_CPU_LEVEL, the instruction-set level of the kernels (cpu/level.h); empty: the best this CPU runs.
std::string requested_cpu_level();
/// SHERD_CUDA_LIB, the file of the CUDA backend (exec/device_library.h); empty: the one beside libsherd.so.
std::string requested_cuda_library();
/// SHERD_ATTENTION, which kernels compute attention on a device (cuda/attention): fast, deterministic, own; empty:
/// fast.
std::string requested_attention();
/// SHERD_DEVICE_MEMORY, how a device's memory is mapped (cuda/device): "separate" for tools that watch accesses.
std::string requested_device_memory();
/// CUDA_LAUNCH_BLOCKING=1: the CUDA runtime waits for each kernel, so an error is that of the kernel just launched.
bool cuda_launches_block();
/// SHERD_MATMUL, how matrix products of a device are made (cuda/gemm): "untuned", "tf32" or both.
std::string requested_matmul();
/// Where findings that take long are kept between processes: SHERD_CACHE, else sherd in XDG_CACHE_HOME or ~/.cache.
/// Empty, and nothing is kept: SHERD_CACHE is set to nothing, or there is no home.
std::string cache_folder(const Environment& environment);
std::string cache_folder();

/// The store that all ranks of `rank`'s job share. Under `sherd run` the launcher hosts it; else rank 0 does, in a
/// thread for as long as it keeps the result: at SHERD_STORE if given, otherwise on a free loopback port that the
/// other ranks learn from a private file (rendezvous_file.h). Ranks on several hosts without SHERD_STORE are an
/// Error on every rank, as is a SHERD_STORE that is not on loopback without SHERD_SECRET. Blocks until connected,
/// at most `deadline`, then CommError.
std::unique_ptr<Store> connect_store(const RankInfo& rank, std::chrono::milliseconds deadline);
std::unique_ptr<Store> connect_store(const RankInfo& rank);  // 300 s

}  // namespace sherd
