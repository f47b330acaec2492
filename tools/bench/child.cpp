#include "tools/bench/child.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>

#include "runtime/comm/group/host_group.h"
#include "runtime/tensor/error.h"
#include "tools/cli/program.h"

namespace sherd::bench {

namespace {

struct Child {
  std::string_view name;
  int (*run)(std::span<const std::string_view> args);
};
constexpr std::array kChildren = {
    Child{"step", run_step_child},
    Child{"gemm", run_gemm_child},
    Child{"dispatch", run_dispatch_child},
    Child{"dtensor", run_dtensor_child},
    Child{"collectives", run_collectives_child},
    Child{"fma", run_fma_child},
    Child{"gpu_op", run_gpu_op_child},
    Child{"gpu_probe", run_gpu_probe_child},
    Child{"loss", run_loss_child},
    Child{"units", run_units_child},
    Child{"guards", run_guards_child},
    Child{"train", run_train_child},
    Child{"ghost", run_ghost_child},
    Child{"offload", run_offload_child},
    Child{"save", run_save_child},
    Child{"program", run_program_child},
};

void say(const nlohmann::json& object) {
  fmt::print("{}\n", object.dump());
  std::fflush(stdout);
}

}  // namespace

void serve(const nlohmann::json& greeting, const std::function<nlohmann::json(const std::string& request)>& answer) {
  say(greeting);
  for (std::string request; std::getline(std::cin, request);) {
    try {
      say(answer(request));
    } catch (const Error& error) { say({{"error", error.what()}}); }
  }
}

void serve_ranks(ProcessGroup& group, const nlohmann::json& greeting,
                 const std::function<nlohmann::json(const std::string& request)>& answer) {
  if (group.size() == 1) return serve(greeting, answer);
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
    serve(greeting, [&](const std::string& request) { return answer(share(request)); });
    share("");
  } else {
    for (std::string request; !(request = share("")).empty();) answer(request);
  }
}

int run_child(std::span<const std::string_view> args) {
  for (const Child& child : kChildren)
    if (!args.empty() && child.name == args[0]) return child.run(args.subspan(1));
  fail("sherd bench --child {}: there is none of that name", args.empty() ? "" : args[0]);
}

SideCommand child(std::string_view name, std::vector<std::string> flags, int ranks) {
  const std::string program = sibling_program("sherd").string();
  SideCommand command;
  if (ranks > 1) command.words = {program, "run", "-n", std::to_string(ranks), "--"};
  for (const std::string& word : {program, std::string("bench"), std::string("--child"), std::string(name)})
    command.words.push_back(word);
  command.words.insert(command.words.end(), flags.begin(), flags.end());
  return command;
}

void pin_to_cpu(int rank) {
  cpu_set_t allowed, one;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int left = rank % CPU_COUNT(&allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || left-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ::sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

std::int64_t process_memory_bytes(std::string_view field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(field)) return std::stoll(line.substr(field.size() + 1)) * 1024;
  return 0;
}

}  // namespace sherd::bench
