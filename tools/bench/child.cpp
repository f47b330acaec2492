#include "tools/bench/child.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/group_choice.h"
#include "runtime/comm/job/rank.h"
#include "runtime/comm/job/world.h"
#include "runtime/os/allowed_cpus.h"
#include "runtime/tensor/error.h"
#include "tools/cli/program.h"
#include "tools/cli/rank_threads.h"

namespace sherd::bench {

namespace {

void say(const nlohmann::json& object) {
  fmt::print("{}\n", object.dump());
  std::fflush(stdout);
}

void serve(const Ready& work) {
  say(work.greeting);
  for (std::string request; std::getline(std::cin, request);) {
    try {
      say(work.answer(request));
    } catch (const Error& error) { say({{"error", error.what()}}); }
  }
}

// Rank 0 reads, every rank answers, rank 0 prints its answer.
void serve_ranks(const Ready& work) {
  ProcessGroup& group = *work.group;
  group.set_deadline(std::chrono::hours(1));  // the ranks wait while other sides have their turns
  std::array<char, 256> line{};
  const CollectivePart part = in_place(line.data(), DType::u8, static_cast<std::int64_t>(line.size()));
  const auto share = [&](const std::string& request) {
    check(request.size() < line.size(), "a request has {} bytes, more than {}", request.size(), line.size() - 1);
    std::copy_n(request.c_str(), request.size() + 1, line.data());
    group.host().broadcast({part}, 0);
    return std::string(line.data());
  };
  if (group.rank() == 0) {
    serve({work.greeting, [&](const std::string& request) { return work.answer(share(request)); }});
    share("");
  } else {
    for (std::string request; !(request = share("")).empty();) work.answer(request);
  }
}

void serve_all(const Ready& work) {
  if (!work.answer) say(work.greeting);
  else work.group&& work.group->size() > 1 ? serve_ranks(work) : serve(work);
}

// Ranks have to be there before a kind takes its flags.
bool has_rank_threads(std::span<const std::string_view> args) {
  constexpr std::string_view kFlag = "--group", kWithValue = "--group=";
  std::string_view choice = "auto";
  for (std::size_t i = 0; i < args.size(); ++i)
    if (args[i].starts_with(kWithValue)) choice = args[i].substr(kWithValue.size());
    else if (args[i] == kFlag && i + 1 < args.size()) choice = args[i + 1];
  return GroupChoice(choice).kind() == GroupChoice::Kind::thread;
}

}  // namespace

int run_child(std::span<const std::string_view> args) {
  for (const auto works : {call_works, state_works, step_works, program_works, gpu_works, shm_works})
    for (const auto& [name, begin] : works()) {
      if (args.empty() || name != args[0]) continue;
      const auto serve_these = [begin, args] { serve_all(begin(args.subspan(1))); };
      const RankInfo rank = discover_rank();
      if (!has_rank_threads(args)) serve_these();
      else if (rank.rank == 0)  // other processes have nothing to do
        run_rank_threads(rank.world_size, [&](const std::shared_ptr<ProcessGroup>&) { serve_these(); });
      return 0;
    }
  fail("sherd bench --child {}: there is none of that name", args.empty() ? "" : args[0]);
}

SideCommand child(const std::vector<std::string>& words, int ranks) {
  const std::string program = sibling_program("sherd").string();
  SideCommand command;
  if (ranks > 1) command.words = {program, "run", "-n", std::to_string(ranks), "--"};
  command.words.insert(command.words.end(), {program, "bench", "--child"});
  command.words.insert(command.words.end(), words.begin(), words.end());
  return command;
}

std::vector<std::string> take_flags(std::span<const std::string_view> args, const Flags& flags) {
  ConfigTable table;
  for (const auto& [name, target] : flags) table.add(name, target, "");
  const CommandLine line = parse_command_line(table, args);
  apply_flags(table, line);
  return {line.words.begin(), line.words.end()};
}

Asked asked(std::string_view request, std::string_view form) {
  std::istringstream words{std::string(request)}, parts{std::string(form)};
  Asked result;
  for (std::string part; parts >> part;) {
    const bool is_choice = part.find('|') != std::string::npos;
    std::string word;
    std::int64_t number = 0;
    if (is_choice) words >> word;
    else words >> number;
    const bool is_listed = fmt::format("|{}|", part).find(fmt::format("|{}|", word)) != std::string::npos;
    check(is_choice ? is_listed && !word.empty() : number > 0, "\"{}\" is not {}", request, form);
    if (is_choice) result.words.push_back(word);
    else result.numbers.push_back(number);
  }
  return result;
}

void pin_to_cpu(int rank) {
  const std::vector<int>& cpus = allowed_cpus().cpus;
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(cpus[static_cast<std::size_t>(rank) % cpus.size()], &own);
  ::sched_setaffinity(0, sizeof own, &own);
}

std::shared_ptr<ProcessGroup> pinned_group(int least_ranks) {
  const std::shared_ptr<ProcessGroup> group = world_group();
  if (group->size() >= least_ranks) pin_to_cpu(group->rank());
  return group;
}

std::shared_ptr<ProcessGroup> take_group(std::span<const std::string_view> args, Flags more) {
  GroupChoice choice = "auto";
  more.emplace_back("group", text_field(choice));
  take_flags(args, more);
  return chosen_group(pinned_group(), Device::cpu(), choice).group;
}

std::int64_t process_memory_bytes(std::string_view field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(field)) return std::stoll(line.substr(field.size() + 1)) * 1024;
  return 0;
}

}  // namespace sherd::bench
