#include "runtime/os/allowed_cpus.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "runtime/os/control_groups.h"

namespace sherd {

namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

int num_online() { return std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN))); }

// A mask of 1024 CPUs, where that does not do (EINVAL) every CPU.
cpu_set_t mask_of_thread() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0 || CPU_COUNT(&mask) == 0)
    for (int cpu = 0; cpu < std::min(num_online(), CPU_SETSIZE); ++cpu) CPU_SET(cpu, &mask);
  return mask;
}

std::vector<int> cpus_of(const cpu_set_t& mask) {
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
  return cpus;
}

void bind_thread(const std::vector<int>& cpus) {
  if (cpus_of(mask_of_thread()) == cpus) return;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int cpu : cpus) CPU_SET(cpu, &mask);
  ::sched_setaffinity(0, sizeof mask, &mask);
}

cpu_set_t mask_at_start;
__attribute__((constructor)) void read_mask_at_start() { mask_at_start = mask_of_thread(); }

// cpu.max: "QUOTA PERIOD" in microseconds, or "max PERIOD".
double quota_of_version_2(const std::string& group) {
  std::ifstream file(group + "/cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period && quota > 0 && period > 0 ? quota / period : kUnlimited;
}

// The quota is -1 without a limit.
double quota_of_version_1(const std::string& group) {
  std::ifstream quota_file(group + "/cpu.cfs_quota_us"), period_file(group + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  return quota_file >> quota && period_file >> period && quota > 0 && period > 0 ? quota / period : kUnlimited;
}

}  // namespace

double cpu_quota(const std::string& root) {
  double least = kUnlimited;
  for (const ControlGroup& group : cpu_control_groups(root))
    least = std::min(least, group.version == 2 ? quota_of_version_2(group.folder) : quota_of_version_1(group.folder));
  return least;
}

int AllowedCpus::count() const {
  const double in_mask = static_cast<double>(cpus.size());
  return std::max(1, static_cast<int>(std::min(in_mask, std::ceil(quota))));
}

const AllowedCpus& allowed_cpus() {
  static const AllowedCpus allowed{num_online(), cpus_of(mask_at_start), cpu_quota()};
  return allowed;
}

std::vector<int> thread_cpus() { return cpus_of(mask_of_thread()); }

void use_allowed_cpus() { bind_thread(allowed_cpus().cpus); }

KeepAffinity::~KeepAffinity() { bind_thread(cpus_); }

}  // namespace sherd
