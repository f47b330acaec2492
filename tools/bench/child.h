#pragma once
// Our side of a comparison: `sherd bench --child NAME FLAGS` in a process of its own, so that its memory and threads
// are those of a fresh program. It speaks the protocol of side.h.
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/comm/group/process_group.h"
#include "tools/bench/side.h"
#include "tools/train/flags.h"

namespace sherd::bench {

using namespace train;

/// A kind of work that is ready to be asked.
struct Ready {
  nlohmann::json greeting;
  std::function<nlohmann::json(const std::string& request)> answer;
  std::shared_ptr<ProcessGroup> group{};  ///< of several ranks: all of them answer, and rank 0 is heard
};
/// A kind that makes a Run of the arguments, and lets it answer.
template <class Run>
Ready ready(nlohmann::json greeting, const std::shared_ptr<ProcessGroup>& group, auto&&... arguments) {
  const auto run = std::make_shared<Run>(arguments...);
  return {std::move(greeting), [run](const std::string& request) { return run->answer(request); }, group};
}
/// What most kinds say first.
inline nlohmann::json sherd_greeting() { return {{"peer", "sherd"}}; }
/// Each kind by its name: takes its flags, and makes ready.
using Works = std::span<const std::pair<std::string_view, Ready (*)(std::span<const std::string_view> args)>>;
Works call_works();     // call_works.cpp
Works state_works();    // state_works.cpp
Works step_works();     // step_works.cpp
Works program_works();  // program_works.cpp
Works gpu_works();      // gpu_works.cpp
Works shm_works();      // shm_limit.cpp

/// Runs a child, the words after --child: prints the greeting, then answers each line of stdin until its end. An Error
/// becomes the answer {"error": text}. With `--group thread` among its flags the ranks are threads of rank 0's process.
/// Returns the exit status.
int run_child(std::span<const std::string_view> args);

/// This program as a side, by the words after --child: one process, or so many ranks under `sherd run`.
SideCommand child(const std::vector<std::string>& words, int ranks = 1);

using Flags = std::vector<std::pair<std::string, ConfigTarget>>;
/// Sets the targets of the flags that are given, and returns the words that are no flags.
std::vector<std::string> take_flags(std::span<const std::string_view> args, const Flags& flags);

/// A request of the form "hit|miss CALLS": words of choices, and positive numbers.
struct Asked {
  std::vector<std::string> words{};
  std::vector<std::int64_t> numbers{};
};
/// Error that says the form unless the request has it.
Asked asked(std::string_view request, std::string_view form);

/// Seconds that a work takes.
template <class Do>
double seconds_of(const Do& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
/// Seconds of one of so many calls in a row.
template <class Do>
double seconds_per_call(std::int64_t calls, const Do& call) {
  return seconds_of([&] {
           for (std::int64_t i = 0; i < calls; ++i) call();
         }) /
         static_cast<double>(calls);
}
/// So many samples of either.
template <class Sample>
std::vector<double> samples_of(std::int64_t count, const Sample& sample) {
  std::vector<double> samples(static_cast<std::size_t>(count));
  for (double& seconds : samples) seconds = sample();
  return samples;
}

/// Pins the calling thread, and those it starts later, to one CPU of those it may use: the one of its rank.
void pin_to_cpu(int rank);
/// The job's ranks, each pinned to the CPU of its rank if there are so many. Before threads start.
std::shared_ptr<ProcessGroup> pinned_group(int least_ranks = 1);

/// take_flags(), of which one more is `--group`: the group of the pinned ranks, which compute on CPUs. Error as
/// chosen_group().
std::shared_ptr<ProcessGroup> take_group(std::span<const std::string_view> args, Flags more = {});

/// "VmRSS" or "VmHWM" of /proc/self/status, in bytes.
std::int64_t process_memory_bytes(std::string_view field);

}  // namespace sherd::bench
