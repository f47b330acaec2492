// fork and exec by hand rather than posix_spawn, which cannot tie a child's life to its parent's.
#include "tools/launch/spawn.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/tensor/error.h"

namespace sherd {
namespace {

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// Everything after fork: only what is allowed in the child of a process with threads.
[[noreturn]] void become(const SpawnPlan& plan, char* const* arguments, char* const* environment, pid_t parent,
                         int report) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // It died before the line above.
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGCHLD, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &plan.mask, nullptr);
  if (plan.in != 0) ::dup2(plan.in, 0);
  if (plan.out != 1) ::dup2(plan.out, 1);
  if (plan.err != 2) ::dup2(plan.err, 2);
  ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  ::execvpe(arguments[0], arguments, environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &error, sizeof error);
  ::_exit(127);
}

}  // namespace

Pipe make_pipe() {
  int ends[2];
  const bool made = ::pipe2(ends, O_CLOEXEC) == 0;
  check(made, "cannot make a pipe to a rank: {}; raise the limit on open files (ulimit -n)", std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::vector<std::string> environment_without(std::span<const std::string_view> beginnings) {
  std::vector<std::string> kept;
  for (char** entry = ::environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    if (std::ranges::none_of(beginnings, [&](std::string_view left_out) { return text.starts_with(left_out); }))
      kept.emplace_back(text);
  }
  return kept;
}

pid_t spawn(const SpawnPlan& plan) {
  const auto arguments = pointers_to(plan.command);
  const auto environment = pointers_to(plan.environment);
  Pipe report = make_pipe();
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  check(child >= 0, "cannot start '{}': fork: {}", plan.command[0], std::strerror(errno));
  if (child == 0) become(plan, arguments.data(), environment.data(), parent, report.write.get());
  ::setpgid(child, child);  // Here too: whoever runs first, the group exists when we return.
  report.write.reset();
  int error = 0;
  ssize_t got;
  do got = ::read(report.read.get(), &error, sizeof error);
  while (got < 0 && errno == EINTR);
  if (got != sizeof error) return child;  // Closed by exec.
  ::waitpid(child, nullptr, 0);
  if (error == ENOENT)
    fail("command '{}' not found{}", plan.command[0],
         plan.command[0].find('/') == std::string::npos ? " on PATH" : ", or the interpreter its first line names");
  fail("cannot run '{}': {}", plan.command[0], std::strerror(error));
}

}  // namespace sherd
