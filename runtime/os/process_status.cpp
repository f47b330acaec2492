#include "runtime/os/process_status.h"

#include <fstream>
#include <sstream>

namespace sherd {

std::optional<ProcessStatus> process_status(pid_t process) {
  std::ostringstream content;
  content << std::ifstream("/proc/" + std::to_string(process) + "/stat").rdbuf();  // Ended meanwhile: reads as empty.
  const std::string text = content.str();
  // The second field is the program's name in parentheses and may hold anything; the state follows it.
  const std::size_t name_begin = text.find('('), name_end = text.rfind(')');
  if (name_begin == text.npos || name_end == text.npos || name_end < name_begin) return std::nullopt;
  ProcessStatus status;
  status.name = text.substr(name_begin + 1, name_end - name_begin - 1);
  std::istringstream fields(text.substr(name_end + 1));
  fields >> status.state >> status.parent >> status.group;
  for (int field = 6; field <= 22; ++field) fields >> status.started;  // the last of these stays
  return fields ? std::optional(status) : std::nullopt;
}

}  // namespace sherd
