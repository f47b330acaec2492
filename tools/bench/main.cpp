// The program `sherd-bench`, which `sherd bench` and `sherd walk` start: what measures is built when it is asked for.
#include <span>
#include <string_view>

#include "tools/cli/command.h"
#include "tools/cli/program.h"
#include "tools/train/exit_status.h"

namespace sherd {

namespace {

int run_measurement(std::span<const std::string_view> args) {
  const std::string_view name = args.empty() ? "" : args[0];
  if (name == "bench") return run_bench(args.subspan(1));
  if (name == "walk") return run_walk(args.subspan(1));
  throw ExitError(kUsage, "sherd-bench is started by `sherd bench` and `sherd walk`");
}

}  // namespace

}  // namespace sherd

int main(int argc, char** argv) { return sherd::run_program(argc, argv, sherd::run_measurement); }
