// The program `sherd`: finds the subcommand.
#include <array>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tensor/error.h"
#include "runtime/tensor/nearest.h"
#include "tools/cli/command.h"
#include "tools/cli/program.h"
#include "tools/train/exit_status.h"
#include "tools/train/version.h"

namespace sherd {

namespace {

constexpr std::array kCommands = {
    Command{"run", "start ranks and watch over them: sherd run -n N -- COMMAND", run_launch},
    Command{"train", "train a model: sherd train CONFIG.toml [flags]", run_train},
    Command{"sample", "print text from a checkpoint: sherd sample DIR [flags]", run_sample},
    Command{"eval", "mean loss of a model over given tokens: sherd eval DIR --tokens FILE", run_eval},
    Command{"export", "write a model as a Hugging Face directory: sherd export DIR OUT", run_export},
    Command{"ckpt", "look into folders of saves: sherd ckpt ls|show|verify|diff|convert DIR", run_ckpt},
    Command{"info", "print what this build and this machine offer", run_info},
    Command{"walk", "compare strategies and levers of memory: sherd walk [CONFIG.toml]", nullptr},
    Command{"bench", "measure: sherd bench [NAME-PREFIX]", nullptr},
};

void print_help(std::FILE* out) {
  fmt::print(out, "sherd {}: trains models sharded over devices\n\n", kVersion);
  for (const Command& command : kCommands) fmt::print(out, "  sherd {:<8} {}\n", command.name, command.summary);
  fmt::print(out, "\n`sherd COMMAND --help` lists the flags of a command.\n");
}

int run_command(std::span<const std::string_view> args) {
  if (args.empty()) {
    print_help(stderr);
    return kUsage;
  }
  if (args[0] == "help" || args[0] == "--help" || args[0] == "-h") {
    print_help(stdout);
    return 0;
  }
  if (args[0] == "--version") {
    fmt::print("sherd {}\n", kVersion);
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (command.name == args[0]) return command.run ? command.run(args.subspan(1)) : exec_bench(args);
    names.emplace_back(command.name);
  }
  throw ExitError(kUsage, fmt::format("unknown command \"{}\"; did you mean {}? `sherd help` lists all", args[0],
                                      nearest(args[0], names)));
}

}  // namespace

}  // namespace sherd

int main(int argc, char** argv) { return sherd::run_program(argc, argv, sherd::run_command); }
