#include "tools/launch/rank_process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <string_view>

#include <fmt/format.h>

#include "tools/train/exit_status.h"
#include "tools/train/stop_signals.h"

namespace sherd {

using namespace train;

bool has_failed(int status) { return !WIFEXITED(status) || WEXITSTATUS(status) != 0; }

int shell_status(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

bool was_stopped(int status) {
  return WIFEXITED(status) && (WEXITSTATUS(status) == kStoppedAndSaved || WEXITSTATUS(status) == kStoppedWithoutSave);
}

std::string describe_end(const RankProcess& rank) {
  const int status = *rank.status;
  if (WIFEXITED(status)) return fmt::format("rank {} exited with status {}", rank.rank, WEXITSTATUS(status));
  const char* meaning = ::sigdescr_np(WTERMSIG(status));
  return fmt::format("rank {} was killed by {} ({})", rank.rank, signal_name(WTERMSIG(status)),
                     meaning ? meaning : "unknown");
}

bool blames_a_peer(const RankProcess& rank) {
  const auto& tail = rank.err.lines.tail();
  return std::any_of(tail.begin(), tail.end(), [&](const std::string& line) {
    constexpr std::string_view kTold = "sherd: rank ";
    if (line.find("CommError") != line.npos) return true;
    if (!line.starts_with(kTold)) return false;
    int peer = -1;
    const char* const last = line.data() + line.size();
    const auto [end, error] = std::from_chars(line.data() + kTold.size(), last, peer);
    return error == std::errc() && end != last && *end == ':' && peer != rank.rank;
  });
}

bool is_meant(int status) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
  }
  const int exit = WEXITSTATUS(status);
  return exit == kUsage || exit == kDiverged || was_stopped(status);
}

bool catches(pid_t pid, int signal) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  constexpr std::string_view kKey = "SigCgt:";
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(kKey)) return (std::stoull(line.substr(kKey.size()), nullptr, 16) >> (signal - 1) & 1) != 0;
  return false;
}

}  // namespace sherd
