// Finds the subcommand, prints what it throws.
#include "tools/cli/program.h"

#include <sys/resource.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "runtime/tensor/error.h"
#include "runtime/tensor/nearest.h"
#include "tools/cli/command.h"
#include "tools/train/exit_status.h"
#include "tools/train/version.h"

namespace sherd {

namespace {

constexpr std::array kCommands = {
    Command{"run", "start ranks and watch over them: sherd run -n N -- COMMAND", run_launch},
    Command{"train", "train a model: sherd train [CONFIG.toml] [--data PATH] [flags]", run_train},
    Command{"sample", "print text from a checkpoint: sherd sample DIR [flags]", run_sample},
    Command{"eval", "mean loss of a model over given tokens: sherd eval DIR --tokens FILE", run_eval},
    Command{"export", "write a model as a Hugging Face directory: sherd export DIR OUT", run_export},
    Command{"ckpt", "look into folders of saves: sherd ckpt ls|show|verify|diff|convert DIR", run_ckpt},
    Command{"info", "print what this build and this machine offer", run_info},
    Command{"walk", "compare strategies and levers of memory: sherd walk [CONFIG.toml]", run_walk},
    Command{"bench", "measure: sherd bench [NAME-PREFIX]", run_bench},
};

void print_help(std::FILE* out) {
  fmt::print(out, "sherd {}: trains models sharded over devices\n\n", kVersion);
  for (const Command& command : kCommands) fmt::print(out, "  sherd {:<8} {}\n", command.name, command.summary);
  fmt::print(out, "\n`sherd help COMMAND`, or `sherd COMMAND --help`, lists the flags of a command.\n");
}

struct Limit {
  __rlimit_resource resource;
  std::string_view name;
};
constexpr Limit kMemoryLimits[] = {{RLIMIT_AS, "ulimit -v (address space)"}, {RLIMIT_DATA, "ulimit -d (data)"}};
constexpr Limit kThreadLimits[] = {{RLIMIT_AS, "ulimit -v (address space)"},
                                   {RLIMIT_DATA, "ulimit -d (data, stacks of threads too)"},
                                   {RLIMIT_NPROC, "ulimit -u (threads of the user)"}};

/// Where the system has refused something: which of these limits it has, each a line, as it does not say which it was.
void print_limits(std::span<const Limit> limits) {
  for (const auto& [resource, name] : limits) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
      fmt::print(stderr, "  limit   {} is {}; raise it if that is too low\n", name, limit.rlim_cur);
  }
}

void print_no_thread(const std::exception& error) {
  fmt::print(stderr, "sherd: the system gives no further thread: {}\n  fewer --threads, or fewer ranks, may do\n",
             error.what());
  print_limits(kThreadLimits);
}

const Command& find_command(std::string_view name) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (command.name == name) return command;
    names.emplace_back(command.name);
  }
  throw ExitError(kUsage,
                  fmt::format("unknown command \"{}\"{}; `sherd help` lists all", name, did_you_mean(name, names)));
}

/// `sherd help`, or `sherd help COMMAND`, which is `sherd COMMAND --help`.
int run_help(std::span<const std::string_view> args) {
  constexpr std::array<std::string_view, 1> kHelp{"--help"};
  check_usage(args.size() <= 1, "sherd help takes one command, got \"{}\"", fmt::join(args, " "));
  if (!args.empty()) return find_command(args[0]).run(kHelp);
  print_help(stdout);
  return kDone;
}

int run_command(std::span<const std::string_view> args) {
  if (args.empty()) {
    print_help(stderr);
    return kUsage;
  }
  if (args[0] == "help") return run_help(args.subspan(1));
  if (args[0] == "--help" || args[0] == "-h") return run_help({});
  if (args[0] == "--version") {
    fmt::print("sherd {}\n", kVersion);
    return kDone;
  }
  return find_command(args[0]).run(args.subspan(1));
}

}  // namespace

int run_sherd(std::span<const std::string_view> args) {
  try {
    return run_command(args);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "sherd: the system has no memory left\n");
    print_limits(kMemoryLimits);
  } catch (const ExitError& error) {
    fmt::print(stderr, "sherd: {}\n", error.what());
    return error.status();
  } catch (const CommError& error) {  // `sherd run` looks for this word: the fault is a peer's
    fmt::print(stderr, "sherd: CommError: {}\n", error.what());
  } catch (const OutOfMemory& error) {
    fmt::print(stderr, "sherd: {}\n", error.what());
    print_limits(kMemoryLimits);
  } catch (const std::exception& error) {
    // Of threads the standard library and oneTBB say different things.
    const std::string_view text = error.what();
    if (text.find("pthread_create") != text.npos || text == std::generic_category().message(EAGAIN))
      print_no_thread(error);
    else fmt::print(stderr, "sherd: {}\n", text);
  }
  return kFailed;
}

}  // namespace sherd
