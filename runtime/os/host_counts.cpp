#include "runtime/os/host_counts.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>

#include "runtime/os/control_groups.h"

namespace sherd {

namespace {

constexpr double HostCounts::* kCounts[] = {&HostCounts::cpu,          &HostCounts::minor_faults,
                                            &HostCounts::major_faults, &HostCounts::involuntary_switches,
                                            &HostCounts::throttled,    &HostCounts::swap_in};

/// The number behind a word of a file of "WORD NUMBER" lines; 0 without one.
double number_of(const std::string& path, const std::string& word) {
  std::ifstream file(path);
  std::string key;
  for (double value = 0; file >> key >> value;)
    if (key == word) return value;
  return 0;
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

}  // namespace

HostCounts& HostCounts::operator+=(const HostCounts& other) {
  for (const auto count : kCounts) this->*count += other.*count;
  return *this;
}

HostCounts& HostCounts::operator-=(const HostCounts& other) {
  for (const auto count : kCounts) this->*count -= other.*count;
  return *this;
}

HostCounts& HostCounts::operator*=(double factor) {
  for (const auto count : kCounts) this->*count *= factor;
  return *this;
}

HostCounts host_counts(const std::string& root) {
  HostCounts counts;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  counts.cpu = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  counts.minor_faults = static_cast<double>(usage.ru_minflt);
  counts.major_faults = static_cast<double>(usage.ru_majflt);
  counts.involuntary_switches = static_cast<double>(usage.ru_nivcsw);
  // A group that stands still does so with all below it: the sums are of one and the same time, or less.
  for (const ControlGroup& group : cpu_control_groups(root)) {
    const std::string file = group.folder + "/cpu.stat";
    counts.throttled = std::max(counts.throttled, group.version == 2 ? 1e-6 * number_of(file, "throttled_usec")
                                                                     : 1e-9 * number_of(file, "throttled_time"));
  }
  counts.swap_in = number_of(root + "/proc/vmstat", "pswpin");
  return counts;
}

}  // namespace sherd
