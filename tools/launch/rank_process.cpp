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

// Its error ends with "  fits    ...", below which each setting has a line of its own, the best one the first.
std::string what_fits(const RankProcess& rank) {
  const auto& tail = rank.err.lines.tail();
  const auto is_setting = [](const std::string& line) { return line.starts_with("    --"); };
  const auto fits =
      std::find_if(tail.rbegin(), tail.rend(), [](const std::string& l) { return l.starts_with("  fits "); });
  if (fits == tail.rend()) return "";
  const auto last = std::find_if_not(fits.base(), tail.end(), is_setting);
  const auto settings = last - fits.base();
  std::string text = settings > 0 ? *fits.base() : *fits;
  if (settings == 0) text.erase(0, std::string_view("  fits ").size());
  if (settings == 0 && text.find("no setting") == text.npos) return "";
  text.erase(0, text.find_first_not_of(' '));
  const auto both_blank = [](char a, char b) { return a == ' ' && b == ' '; };
  text.erase(std::unique(text.begin(), text.end(), both_blank), text.end());
  return settings > 1 ? fmt::format("{}; and {} more above", text, settings - 1) : text;
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
