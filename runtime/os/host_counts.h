#pragma once
// What this process has had of its host: time of CPUs, pages, and how often it had to wait for either.
#include <string>

namespace sherd {

/// Counted since the process began, its threads together; `throttled` and `swap_in` are those of what it is part of.
struct HostCounts {
  double cpu = 0;                   ///< seconds on CPUs, in the kernel too
  double minor_faults = 0;          ///< pages that were mapped when they were touched
  double major_faults = 0;          ///< pages that were read from a disk for it
  double involuntary_switches = 0;  ///< times a thread lost its CPU to another one
  double throttled = 0;             ///< seconds that the control group stood still, its quota spent, on all its CPUs
  double swap_in = 0;               ///< pages that the host has read from swap

  HostCounts& operator+=(const HostCounts& other);
  HostCounts& operator-=(const HostCounts& other);
  HostCounts& operator*=(double factor);
};

/// The counts until now. What the host does not tell is 0. `root` is in front of /proc and /sys: for tests. Reads a few
/// files: some 50 us.
HostCounts host_counts(const std::string& root = "");

}  // namespace sherd
