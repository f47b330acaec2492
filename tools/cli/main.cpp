// The program `sherd`.
#include <csignal>
#include <string_view>
#include <vector>

#include "runtime/os/allowed_cpus.h"
#include "tools/cli/program.h"

int main(int argc, char** argv) {
  // A file size limit then shows as a failed write, which names the file, instead of killing the process.
  std::signal(SIGXFSZ, SIG_IGN);
  sherd::use_allowed_cpus();
  const std::vector<std::string_view> args(argv + (argc > 0 ? 1 : 0), argv + argc);
  return sherd::run_sherd(args);
}
