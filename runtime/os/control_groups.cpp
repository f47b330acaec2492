#include "runtime/os/control_groups.h"

#include <fstream>
#include <sstream>

namespace sherd {

namespace {

void add_with_those_above(std::vector<ControlGroup>& groups, const std::string& top, std::string path, int version) {
  groups.push_back({top, version});
  while (path.size() > 1) {
    groups.push_back({top + path, version});
    path.resize(path.rfind('/'));
  }
}

}  // namespace

std::vector<ControlGroup> cpu_control_groups(const std::string& root) {
  std::ifstream lines(root + "/proc/self/cgroup");
  std::vector<ControlGroup> groups;
  for (std::string line; std::getline(lines, line);) {  // "NUMBER:CONTROLLER,CONTROLLER:/PATH"; version 2 is "0::/PATH"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (!path.starts_with('/')) continue;
    if (controllers.empty()) add_with_those_above(groups, root + "/sys/fs/cgroup", path, 2);
    std::istringstream names(controllers);
    for (std::string name; std::getline(names, name, ',');)
      if (name == "cpu") add_with_those_above(groups, root + "/sys/fs/cgroup/cpu", path, 1);
  }
  return groups;
}

}  // namespace sherd
