#include "tools/cli/commands.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/tensor/error.h"
#include "tools/cli/command.h"
#include "tools/cli/program.h"
#include "tools/diagnose/diagnose.h"
#include "tools/launch/launch.h"
#include "tools/plan/plan.h"
#include "tools/plan/simulate.h"
#include "tools/train/exit_status.h"
#include "tools/train/flags.h"
#include "tools/train/version.h"

namespace sherd {

namespace {

constexpr std::array kCommands = {
    Command{"run", "start ranks and watch over them: sherd run -n N -- COMMAND", run_launch},
    Command{"train", "train a model: sherd train [CONFIG.toml] [--data PATH] [flags]", run_train},
    Command{"sample", "print text from a checkpoint: sherd sample DIR [flags]", run_sample},
    Command{"eval", "mean loss of a model: sherd eval DIR --data TEXT, or --tokens FILE", run_eval},
    Command{"export", "write a model as a Hugging Face directory: sherd export DIR OUT", run_export},
    Command{"ckpt", "look into folders of saves: sherd ckpt ls|show|verify|diff|convert DIR", run_ckpt},
    Command{"plan", "choose a strategy before there is a cluster: sherd plan CONFIG.toml --ranks N [flags]", run_plan},
    Command{"simulate", "play a step on all ranks, some of them slow: sherd simulate CONFIG.toml --ranks N [flags]",
            run_simulate},
    Command{"diagnose", "say why a run is slow: sherd diagnose RUN.jsonl [flags]", run_diagnose},
    Command{"calibrate", "measure this machine, for predictions of its runs: sherd calibrate [--ranks N]",
            run_calibrate},
    Command{"info", "print what this build and this machine offer", run_info},
    Command{"walk", "compare strategies and levers of memory: sherd walk [CONFIG.toml] (needs the target sherd-bench)",
            nullptr},
    Command{"bench", "measure: sherd bench [NAME-PREFIX] (needs the target sherd-bench)", nullptr},
};

void print_help(std::FILE* out) {
  fmt::print(out, "sherd {}: trains models sharded over devices\n\n", kVersion);
  for (const Command& command : kCommands) fmt::print(out, "  sherd {:<9} {}\n", command.name, command.summary);
  fmt::print(out, "\n`sherd help COMMAND`, or `sherd COMMAND --help`, lists the flags of a command.\n");
}

const Command& find_command(std::string_view name) {
  const auto* const found = std::ranges::find(kCommands, name, &Command::name);
  check_usage(found != kCommands.end(), "unknown command \"{}\"{}; `sherd help` lists all", name,
              did_you_mean(name, kCommands));
  return *found;
}

/// Runs a command with the words after its name; one that sherd-bench has, by going on as that.
int run(const Command& command, std::span<const std::string_view> args) {
  if (command.run) return command.run(args);
  std::vector<std::string_view> words{command.name};
  words.insert(words.end(), args.begin(), args.end());
  return exec_bench(words);
}

/// `sherd help`, or `sherd help COMMAND`, which is `sherd COMMAND --help`.
int run_help(std::span<const std::string_view> args) {
  constexpr std::array<std::string_view, 1> kHelp{"--help"};
  check_usage(args.size() <= 1, "sherd help takes one command, got \"{}\"", fmt::join(args, " "));
  if (!args.empty() && args[0] != "help") return run(find_command(args[0]), kHelp);
  print_help(stdout);
  return kDone;
}

}  // namespace

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
  return run(find_command(args[0]), args.subspan(1));
}

}  // namespace sherd
