#include "tools/launch/process_tree.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <thread>

#include "runtime/os/process_status.h"
#include "runtime/tensor/quantity.h"

namespace sherd {
namespace {

std::optional<ProcessEntry> read_entry(std::string_view name) {
  const std::optional<pid_t> pid = number_of<pid_t>(name);
  const std::optional<ProcessStatus> status = pid ? process_status(*pid) : std::nullopt;
  if (!status) return std::nullopt;
  return ProcessEntry{*pid, status->parent, status->group, status->has_ended(), status->state == 'T'};
}

std::vector<ProcessEntry> all_processes() {
  std::vector<ProcessEntry> entries;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc"), ::closedir);
  while (const dirent* item = directory ? ::readdir(directory.get()) : nullptr)
    if (const auto entry = read_entry(item->d_name)) entries.push_back(*entry);
  return entries;
}

}  // namespace

std::vector<ProcessEntry> descendants() {
  const std::vector<ProcessEntry> all = all_processes();
  std::set<pid_t> known = {::getpid()};
  std::vector<ProcessEntry> found;
  // Numbers wrap around, so that a child may come before its parent: repeat until nothing is added.
  for (std::size_t before = 0; before != known.size();) {
    before = known.size();
    for (const ProcessEntry& entry : all)
      if (known.contains(entry.parent) && known.insert(entry.pid).second) found.push_back(entry);
  }
  return found;
}

bool is_stopped(pid_t pid, const std::vector<ProcessEntry>& entries) {
  return std::ranges::any_of(entries, [&](const ProcessEntry& entry) { return entry.pid == pid && entry.stopped; });
}

void signal_descendants(int signal) {
  for (const ProcessEntry& entry : descendants()) {
    if (entry.zombie) continue;
    ::kill(entry.pid, signal);
    if (signal != SIGKILL) ::kill(entry.pid, SIGCONT);
  }
}

bool kill_descendants(std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  for (;;) {
    signal_descendants(SIGKILL);
    pid_t reaped;
    do reaped = ::waitpid(-1, nullptr, WNOHANG);
    while (reaped > 0);
    if (reaped < 0 && errno == ECHILD) return true;
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

bool set_subreaper(bool on) {
  int before = 0;
  ::prctl(PR_GET_CHILD_SUBREAPER, &before);
  ::prctl(PR_SET_CHILD_SUBREAPER, on ? 1 : 0);
  return before != 0;
}

}  // namespace sherd
