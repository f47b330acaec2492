#pragma once
// Control groups that this process is in, as /proc and /sys show them.
#include <string>
#include <vector>

namespace sherd {

struct ControlGroup {
  std::string folder;  ///< where its files are
  int version = 2;
};

/// The groups that share out CPU time: those of this process, of version 1 or 2, and all above them. In a container the
/// path may be that outside of it, of which only the top, the container's own group, can be seen. `root` is in front of
/// /proc and /sys: for tests.
std::vector<ControlGroup> cpu_control_groups(const std::string& root = "");

}  // namespace sherd
