#include "tools/launch/launch.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <optional>
#include <variant>
#include <vector>

#include "runtime/comm/job/rank.h"
#include "runtime/tensor/nearest.h"
#include "runtime/tensor/quantity.h"
#include "tools/launch/supervise.h"
#include "tools/train/exit_status.h"

namespace sherd {
namespace {

constexpr std::string_view kHelp =
    "usage: sherd run -n N [flags] [--] COMMAND [ARGUMENTS...]\n"
    "\n"
    "Starts COMMAND as N ranks on this host and waits for all of them.\n"
    "  -n N                   number of ranks, at least 1\n"
    "  --save-grace SECONDS   from the first signal until the ranks are killed, 25 by default: time to save\n"
    "  --frozen-after SECONDS when all ranks that have not ended are stopped (SIGSTOP) for so long they are killed, 60 "
    "by\n"
    "                         default; peers give up a frozen rank themselves\n"
    "  --restarts N           after a failure start all ranks again, N times at most, 0 by default: `sherd train` "
    "goes\n"
    "                         on from its newest good save, other programs see SHERD_RESTART=1, 2, ...\n"
    "  --backoff SECONDS      before a restart, 1 by default; twice as long after each start that failed within 30 s,\n"
    "                         up to 60\n"
    "  --survive              when a rank dies go on with the replicas of it that are left (`sherd train` with a mesh "
    "of\n"
    "                         several: --mesh replicate=2,dp=2), and start its own replica again, which is given the\n"
    "                         state from memory; after --backoff, as often as it takes. --restarts N is for the case\n"
    "                         that no replica is left\n"
    "  --min-ranks M          leave out ranks that fail again within 30 s of a restart, while at least M remain;\n"
    "                         `sherd train` then takes the largest mesh of the same axes that the batch divides by\n"
    "Lines of output carry the rank in front, unless N is 1. When a rank fails, the others are stopped and its error\n"
    "is shown last; the exit status is that of the failed rank. Ctrl-C and SIGTERM stop all ranks, which have time to\n"
    "save; a second one kills them. SIGUSR1 is passed on to ranks that handle it: they save and go on. What a signal\n"
    "has ended, a wrong command line (exit status 2) and a run that has diverged (3) are not started again.\n";

// The store serves each rank over one connection, and more ranks than this on one host are surely a slip.
constexpr int kMaxRanks = 4096;
constexpr int kMaxRestarts = 1'000'000;

int count_of(std::string_view flag, std::string_view what, std::string_view text, int least, int most) {
  const std::optional<std::int64_t> count = parse_count(text);
  check_usage(count && *count >= least && *count <= most, "run: {} '{}' is no number of {} from {} to {}", flag, text,
              what, least, most);
  return static_cast<int>(*count);
}

std::chrono::milliseconds parse_seconds(std::string_view flag, std::string_view text) {
  constexpr double kMost = 86400;
  const std::optional<double> seconds = parse_number(text);
  check_usage(seconds && *seconds >= 0 && *seconds <= kMost, "run: {} '{}' is no number of seconds from 0 to {}", flag,
              text, kMost);
  return std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
}

/// A flag with one value: a count from `least` to `most`, or seconds.
struct Flag {
  std::string_view name, unit;
  std::variant<int*, std::chrono::milliseconds*> target;
  int least = 0, most = kMaxRanks;

  void set(std::string_view text) const {
    if (int* const* count = std::get_if<int*>(&target)) **count = count_of(name, unit, text, least, most);
    else *std::get<std::chrono::milliseconds*>(target) = parse_seconds(name, text);
  }
};

[[noreturn]] void fail_unknown(std::string_view name, std::span<const Flag> flags) {
  std::vector<std::string> known{"--survive", "--help"};
  for (const Flag& flag : flags) known.emplace_back(flag.name);
  throw ExitError(kUsage, fmt::format("run: unknown flag '{}'{}; known are {}, and what follows -- is the command",
                                      name, did_you_mean(name, known), fmt::join(known, ", ")));
}

}  // namespace

int run_launch(std::span<const std::string_view> args) {
  SuperviseOptions options;
  options.ranks = 0;
  RestartOptions& restart = options.restart;
  const Flag flags[] = {{"-n", "ranks", &options.ranks, 1},
                        {"--save-grace", "seconds", &options.save_grace},
                        {"--frozen-after", "seconds", &options.frozen_after},
                        {"--restarts", "restarts", &restart.restarts, 0, kMaxRestarts},
                        {"--backoff", "seconds", &restart.backoff},
                        {"--min-ranks", "ranks", &restart.min_ranks, 1}};
  while (!args.empty() && args[0].starts_with('-')) {
    const std::string_view name = args[0];
    args = args.subspan(1);
    if (name == "--") break;
    if (name == "--survive") {
      options.survive = true;
      continue;
    }
    if (name == "-h" || name == "--help") {
      fmt::print("{}", kHelp);
      return 0;
    }
    const Flag* const flag = std::ranges::find(flags, name, &Flag::name);
    if (flag == std::end(flags)) fail_unknown(name, flags);
    check_usage(!args.empty(), "run: {} needs the number of {} after it", name, flag->unit);
    flag->set(args[0]);
    args = args.subspan(1);
  }
  check_usage(options.ranks > 0, "run: the number of ranks is missing: sherd run -n N -- COMMAND");
  check_usage(!args.empty(), "run: the command is missing: sherd run -n {} -- COMMAND", options.ranks);
  check_usage(restart.min_ranks <= options.ranks, "run: --min-ranks {} is more than the {} ranks of -n",
              restart.min_ranks, options.ranks);
  check_usage(restart.min_ranks == 0 || restart.restarts > 0,
              "run: --min-ranks {} says what a restart may leave out; give --restarts N too", restart.min_ranks);
  check_usage(!options.survive || restart.min_ranks == 0,
              "run: --min-ranks {} leaves ranks out for good, --survive waits for them to come back; give one of them",
              restart.min_ranks);
  const RankInfo outside = discover_rank();
  check_usage(outside.full_world_size == 1,
              "run: {} has started this as rank {} of {}, and each of them would start {} ranks of a job of its own; "
              "give COMMAND itself to that launcher, or start sherd run once",
              outside.source, outside.rank, outside.full_world_size, options.ranks);
  options.command.assign(args.begin(), args.end());
  return supervise(options);
}

}  // namespace sherd
