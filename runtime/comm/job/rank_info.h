#pragma once
// Place of this process among the ranks. Ranks come from a launcher only; its environment variables say how many there
// are and which one this process is.
#include <string>

#include "runtime/os/settings.h"

namespace sherd {

/// This process among the ranks. Without a launcher: rank 0 of 1, source "none".
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  /// Among the ranks of this host.
  int local_rank = 0;
  int local_world_size = 1;
  /// From SHERD_STORE=host:port, or of torchrun on several hosts; empty and 0 without.
  std::string store_host;
  int store_port = 0;
  /// From SHERD_SECRET.
  std::string secret;
  /// Whose variables these are: "sherd run", "torchrun", "Open MPI", "Flux", "Slurm", "PALS" (mpiexec of HPE Cray),
  /// "Hydra" (mpirun of MPICH and Intel MPI) or "none".
  std::string source = "none";
  /// "Slurm says rank 5 of 8, on this host 1 of 4 (SLURM_PROCID, ...)"; empty without a launcher.
  std::string description;
  /// What tells this job from others on the same host, from the launcher's job id, or for Hydra the process that has
  /// started all ranks of the host; empty if there is neither. All starts of one `sherd run --restarts` share it.
  std::string job;
  /// From SHERD_RESTART: how often `sherd run` has started all ranks before this start.
  int restart = 0;
  /// From SHERD_SAVES: the folder in which an earlier start of the job has saved; empty if none has said so.
  std::string saves;
  /// From SHERD_FULL_WORLD_SIZE: the number of ranks of the first start; a restart may leave some out.
  int full_world_size = 1;
  /// From SHERD_SURVIVE: under `sherd run --survive` how often this rank has been started, 1 at first; else 0.
  int life = 0;
  /// From SHERD_GENERATION: the last group that the launcher had named by then; 0: the first one, of all ranks.
  int generation = 0;
  /// XDG_RUNTIME_DIR: the user's private folder for sockets and the like; empty without it.
  std::string runtime_folder;
};

/// Reads the variables of launchers, in the order above; the first launcher found counts, PALS and Hydra only if no
/// other is, since others set PMI_* and PALS_* as well. Error, naming the variables: some are missing, one is no number
/// or out of range, two launchers disagree, or PMI_SIZE and its like say that there are several ranks, but nothing says
/// which this is. One task per host that starts ranks by another launcher (srun torchrun ..., or Hydra in a Slurm job)
/// is nesting, no disagreement; a Slurm allocation without a step is no launcher.
RankInfo discover_rank(const Environment& environment);
RankInfo discover_rank();

}  // namespace sherd
