#include "tools/launch/launch.h"

#include <charconv>
#include <cstdio>
#include <optional>

#include "tools/launch/supervise.h"
#include "tools/train/exit_status.h"

namespace sherd {
namespace {

constexpr std::string_view kHelp =
    "usage: sherd run -n N [--] COMMAND [ARGUMENTS...]\n"
    "\n"
    "Starts COMMAND as N ranks on this host and waits for all of them.\n"
    "  -n N   number of ranks, at least 1\n"
    "Lines of output carry the rank in front, unless N is 1. When a rank fails, the others are stopped and its error\n"
    "is shown last; the exit status is that of the failed rank. Ctrl-C stops all ranks, which have 25 s to save; a "
    "second\n"
    "one kills them.\n";

// The store serves each rank over one connection, and more ranks than this on one host are surely a slip.
constexpr int kMaxRanks = 4096;

int parse_ranks(std::string_view text) {
  int ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  check_usage(error == std::errc() && end == text.data() + text.size() && ranks >= 1 && ranks <= kMaxRanks,
              "run: -n '{}' is no number of ranks from 1 to {}", text, kMaxRanks);
  return ranks;
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
    check_usage(flag == "-n", "run: unknown flag '{}'; known are -n and --help, and what follows -- is the command",
                flag);
    check_usage(!args.empty(), "run: -n needs the number of ranks after it");
    ranks = parse_ranks(args[0]);
    args = args.subspan(1);
  }
  check_usage(ranks.has_value(), "run: the number of ranks is missing: sherd run -n N -- COMMAND");
  check_usage(!args.empty(), "run: the command is missing: sherd run -n {} -- COMMAND", *ranks);
  options.ranks = *ranks;
  options.command.assign(args.begin(), args.end());
  return supervise(options);
}

}  // namespace sherd
