#include "tools/cli/program.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "runtime/os/allowed_cpus.h"
#include "runtime/tensor/error.h"
#include "tools/train/exit_status.h"

namespace sherd {

using namespace train;

namespace {

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

}  // namespace

int run_printing_errors(std::span<const std::string_view> args, int (*run)(std::span<const std::string_view> args)) {
  try {
    return run(args);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "sherd: the system has no memory left\n");
    print_limits(kMemoryLimits);
  } catch (const ExitError& error) {
    fmt::print(stderr, "sherd: {}\n", error.what());
    return error.status();
  } catch (const CommError& error) {  // `sherd run` looks for this word: the fault is a peer's
    fmt::print(stderr, "sherd: CommError: {}\n", error.what());
  } catch (const OutOfMemory& error) {  // what would fit comes last
    const std::string_view text = error.what();
    const std::size_t fits = std::min(text.rfind("\n  fits "), text.size());
    fmt::print(stderr, "sherd: {}\n", text.substr(0, fits));
    print_limits(kMemoryLimits);
    if (fits < text.size()) fmt::print(stderr, "{}\n", text.substr(fits + 1));
  } catch (const std::exception& error) {
    // The standard library and oneTBB report a thread that did not start in different words.
    const std::string_view text = error.what();
    if (text.find("pthread_create") != text.npos || text == std::generic_category().message(EAGAIN))
      print_no_thread(error);
    else fmt::print(stderr, "sherd: {}\n", text);
  }
  return 1;
}

int run_program(int argc, char** argv, int (*run)(std::span<const std::string_view> args)) {
  // A file size limit then shows as a failed write, which names the file, instead of killing the process.
  std::signal(SIGXFSZ, SIG_IGN);
  use_allowed_cpus();
  const std::vector<std::string_view> args(argv + (argc > 0 ? 1 : 0), argv + argc);
  return run_printing_errors(args, run);
}

std::filesystem::path sibling_program(std::string_view name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

int exec_bench(std::span<const std::string_view> args) {
  const std::string program = sibling_program("sherd-bench").string();
  std::vector<std::string> words{program};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  fail(
      "sherd {} is a program of its own, which cannot be started: {}: {}; in the build tree, build the target "
      "sherd-bench (cmake --build build/release --target sherd-bench)",
      args[0], program, std::generic_category().message(errno));
}

}  // namespace sherd
