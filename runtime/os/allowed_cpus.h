#pragma once
// How many CPUs this process may use, as it was started. Libraries that are opened later may bind the thread that opens
// them (libgomp does where the environment has OMP_PROC_BIND), and oneTBB counts the CPUs of the main thread.
#include <string>
#include <vector>

namespace sherd {

/// More than any host of today has, and far fewer than oneTBB can be asked for before it crashes.
inline constexpr int kMaxThreads = 1024;

struct AllowedCpus {
  int online = 1;            ///< of this host
  std::vector<int> cpus{0};  ///< in the affinity mask: what taskset, a launcher, a batch system or a cpuset leaves
  double quota = 0;          ///< CPUs' worth of time that control groups allow; infinity without a limit

  /// CPUs that can run at the same time: of the mask, or the quota, rounded up, if that is less. At least 1.
  int count() const;
};

/// The mask is that of the main thread when libsherd.so was loaded; the rest is read at the first call.
const AllowedCpus& allowed_cpus();

/// CPUs' worth of time that the control groups (version 1 or 2) of this process and those above them allow; infinity
/// without a limit. `root` is in front of /proc and /sys: for tests.
double cpu_quota(const std::string& root = "");

/// CPUs that the calling thread may run on.
std::vector<int> thread_cpus();

/// Gives the calling thread all of allowed_cpus(): for the start of a program, which other libraries that it is loaded
/// with, LD_PRELOAD's for example, may have bound since.
void use_allowed_cpus();

/// Puts the calling thread's affinity mask back at the end of a scope in which a library is opened.
class KeepAffinity {
 public:
  KeepAffinity() : cpus_(thread_cpus()) {}
  ~KeepAffinity();
  KeepAffinity(const KeepAffinity&) = delete;
  KeepAffinity& operator=(const KeepAffinity&) = delete;

 private:
  std::vector<int> cpus_;
};

}  // namespace sherd
