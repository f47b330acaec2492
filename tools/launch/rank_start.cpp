#include "tools/launch/rank_start.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "runtime/comm/store/tcp_store.h"
#include "tools/launch/spawn.h"
#include "tools/train/restart.h"

namespace sherd {

using namespace train;

namespace {

/// What launchers tell their ranks.
constexpr std::string_view kOfRanks[] = {
    "SHERD_RANK=",  "SHERD_WORLD_SIZE=",      "SHERD_LOCAL_RANK=", "SHERD_LOCAL_WORLD_SIZE=",
    "SHERD_STORE=", "SHERD_SECRET=",          "SHERD_JOB=",        "SHERD_RESTART=",
    "SHERD_SLOT=",  "SHERD_FULL_WORLD_SIZE=", "SHERD_SURVIVE=",    "SHERD_GENERATION=",
    "SHERD_SAVES="};

}  // namespace

std::vector<std::string> RankStart::environment(int rank, Survival* survival) const {
  std::vector<std::string> all = environment_without(kOfRanks);
  for (const auto& [name, value] : {std::pair("SHERD_RANK", rank),
                                    {"SHERD_LOCAL_RANK", rank},
                                    {"SHERD_WORLD_SIZE", num_ranks()},
                                    {"SHERD_LOCAL_WORLD_SIZE", num_ranks()},
                                    {"SHERD_RESTART", start_.restart},
                                    {"SHERD_SLOT", start_.slots[static_cast<std::size_t>(rank)]},
                                    {"SHERD_FULL_WORLD_SIZE", options_.ranks}})
    all.push_back(fmt::format("{}={}", name, value));
  if (survival) {
    all.push_back(fmt::format("SHERD_SURVIVE={}", survival->life_of(rank)));
    all.push_back(fmt::format("SHERD_GENERATION={}", survival->generation()));
  }
  all.push_back("SHERD_JOB=" + start_.job);
  if (!start_.saves.empty()) all.push_back("SHERD_SAVES=" + start_.saves);
  all.push_back(fmt::format("SHERD_STORE=127.0.0.1:{}", server_.port()));
  all.push_back("SHERD_SECRET=" + secret_);
  return all;
}

std::unique_ptr<RankProcess> RankStart::start(int rank, OutputRelay& relay, Survival* survival) const {
  SpawnPlan plan{.command = options_.command, .environment = environment(rank, survival), .mask = rank_mask_};
  // A terminal's input goes to its foreground process group only, and no rank is in that.
  const bool reads_input = rank == 0 && ::isatty(0) == 0;
  const Descriptor nothing(reads_input ? -1 : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!reads_input) plan.in = nothing.get();
  Pipe out, err;
  if (num_ranks() > 1) {
    out = make_pipe(), err = make_pipe();
    plan.out = out.write.get(), plan.err = err.write.get();
    for (const int fd : {out.read.get(), err.read.get()}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
  }
  const std::string prefix = fmt::format("[{}] ", rank);
  const pid_t pid = spawn(plan);
  return std::make_unique<RankProcess>(
      RankProcess{rank,
                  start_.slots[static_cast<std::size_t>(rank)],
                  pid,
                  std::nullopt,
                  {std::move(out.read), RankLines(prefix, ::isatty(1) != 0, 0), &relay.out},
                  {std::move(err.read), RankLines(prefix, ::isatty(2) != 0, kTailLines), &relay.err}});
}

std::unique_ptr<Survival> RankStart::watch_replicas() const {
  TcpStoreOptions own{.port = server_.port(), .secret = secret_};
  own.call_deadline = std::chrono::hours(24);  // it is served by this process, which may be stopped meanwhile
  return std::make_unique<Survival>(std::make_unique<TcpStore>(own), num_ranks(), options_.restart.backoff);
}

std::string RankStart::told_saves() const {
  try {
    return TcpStore({.port = server_.port(), .secret = secret_}).get(kSavesOfJob, std::chrono::milliseconds(0));
  } catch (const CommError&) { return start_.saves; }
}

}  // namespace sherd
