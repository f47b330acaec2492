#pragma once
// Which CPUs the ranks of a host may use, and how they share them: the default of --threads, the first line of a run,
// and a warning when more threads are asked for than there are CPUs.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/group/process_group.h"
#include "runtime/os/allowed_cpus.h"

namespace sherd {

struct CpuShare {
  int threads = 1;            ///< of this rank
  std::string text;           ///< "2 of 8 allowed (affinity mask ...), 2 ranks of 1 thread"
  std::string warning;        ///< empty, or what is wrong with the number of threads
  std::string lines() const;  ///< what rank 0 prints: both
};

/// Collective. Ranks of one host share its CPUs, which they tell each other. `asked` threads, or with 0 this rank's
/// share: launchers may bind every rank to CPUs of its own, or none, so each CPU is divided among the ranks that may
/// use it. ExitError of kUsage unless asked is 0 to kMaxThreads.
CpuShare share_cpus(ProcessGroup& group, std::int64_t asked);

/// One rank's part in that.
struct RankCpus {
  AllowedCpus allowed;
  int asked = 0;
};
CpuShare share_cpus(std::span<const RankCpus> ranks, int rank);

/// "2 of 8 allowed (control group quota of 1.5)".
std::string describe(const AllowedCpus& allowed);

}  // namespace sherd
