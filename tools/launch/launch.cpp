#include "tools/launch/launch.h"

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>

#include "tools/launch/supervise.h"
#include "tools/train/exit_status.h"

namespace sherd {
namespace {

constexpr std::string_view kHelp =
    "usage: sherd run -n N [--save-grace SECONDS] [--] COMMAND [ARGUMENTS...]\n"
    "\n"
    "Starts COMMAND as N ranks on this host and waits for all of them.\n"
    "  -n N                   number of ranks, at least 1\n"
    "  --save-grace SECONDS   from the first signal until the ranks are killed, 25 by default: time to save\n"
    "Lines of output carry the rank in front, unless N is 1. When a rank fails, the others are stopped and its error\n"
    "is shown last; the exit status is that of the failed rank. Ctrl-C and SIGTERM stop all ranks, which have time to\n"
    "save; a second one kills them. SIGUSR1 is passed on to ranks that handle it: they save and go on.\n";

// The store serves each rank over one connection, and more ranks than this on one host are surely a slip.
constexpr int kMaxRanks = 4096;

int parse_ranks(std::string_view text) {
  int ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  check_usage(error == std::errc() && end == text.data() + text.size() && ranks >= 1 && ranks <= kMaxRanks,
              "run: -n '{}' is no number of ranks from 1 to {}", text, kMaxRanks);
  return ranks;
}

std::chrono::milliseconds parse_grace(std::string_view text) {
  constexpr double kMost = 86400;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  check_usage(error == std::errc() && end == text.data() + text.size() && seconds >= 0 && seconds <= kMost,
              "run: --save-grace '{}' is no number of seconds from 0 to {}", text, kMost);
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

}  // namespace

int run_launch(std::span<const std::string_view> args) {
  SuperviseOptions options;
  std::optional<int> ranks;
  while (!args.empty() && args[0].starts_with('-')) {
    const std::string_view flag = args[0];
    args = args.subspan(1);
    if (flag == "--") break;
    if (flag == "-h" || flag == "--help") {
      fmt::print("{}", kHelp);
      return 0;
    }
    check_usage(flag == "-n" || flag == "--save-grace",
                "run: unknown flag '{}'; known are -n, --save-grace and --help, and what follows -- is the command",
                flag);
    check_usage(!args.empty(), "run: {} needs the number of {} after it", flag, flag == "-n" ? "ranks" : "seconds");
    if (flag == "-n") ranks = parse_ranks(args[0]);
    else options.save_grace = parse_grace(args[0]);
    args = args.subspan(1);
  }
  check_usage(ranks.has_value(), "run: the number of ranks is missing: sherd run -n N -- COMMAND");
  check_usage(!args.empty(), "run: the command is missing: sherd run -n {} -- COMMAND", *ranks);
  options.ranks = *ranks;
  options.command.assign(args.begin(), args.end());
  return supervise(options);
}

}  // namespace sherd
