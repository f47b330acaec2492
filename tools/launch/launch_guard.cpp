#include "tools/launch/launch_guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string>

#include "runtime/tensor/error.h"
#include "runtime/tensor/no_copy.h"
#include "tools/launch/process_tree.h"
#include "tools/launch/spawn.h"

namespace sherd {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1};

/// This process as the outer one: SIGCHLD and the signals to pass on are blocked, those left out that it ignores
/// (nohup), and orphans become its children. All of it is undone.
class OuterProcess : NoCopy {
 public:
  OuterProcess() : was_subreaper_(set_subreaper(true)) {
    ::sigemptyset(&set_);
    ::sigaddset(&set_, SIGCHLD);
    for (const int signal : kSignals) {
      struct sigaction action{};
      ::sigaction(signal, nullptr, &action);
      if (action.sa_handler != SIG_IGN) ::sigaddset(&set_, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &set_, &mask_before_);
    // Ignored by the caller's caller, SIGCHLD would make waitpid forget how a child ended.
    struct sigaction standard{};
    standard.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &standard, &child_before_);
  }
  ~OuterProcess() {
    set_subreaper(was_subreaper_);
    ::sigaction(SIGCHLD, &child_before_, nullptr);
    ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  }

  int wait() const {
    int signal;
    do signal = ::sigwaitinfo(&set_, nullptr);
    while (signal < 0 && errno == EINTR);
    return signal;
  }

 private:
  sigset_t set_{}, mask_before_{};
  struct sigaction child_before_{};
  const bool was_subreaper_;
};

/// A closed standard stream would be the number of our next pipe, and be mistaken for a stream again.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", O_RDWR);
}

[[noreturn]] void run_inner(const std::function<int(int)>& body, int control, int errors) {
  set_subreaper(true);  // Not inherited by fork.
  int status = 1;
  try {
    status = body(control);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    [[maybe_unused]] const ssize_t written = ::write(errors, text.data(), text.size());
  }
  ::_exit(status);
}

/// Until the child has ended; returns its wait status.
int forward_signals(const OuterProcess& signals, pid_t child, int control) {
  for (;;) {
    const int signal = signals.wait();
    if (signal == SIGCHLD) {
      int status = 0;
      if (::waitpid(child, &status, WNOHANG) == child) return status;
      continue;
    }
    const char byte = static_cast<char>(signal);
    [[maybe_unused]] const ssize_t written = ::write(control, &byte, 1);
  }
}

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(got));
  return text;
}

}  // namespace

int run_guarded(const std::function<int(int control)>& body) {
  open_standard_streams();
  const OuterProcess signals;
  Pipe control = make_pipe(), errors = make_pipe();
  // A child that is slow to listen must not make us wait: what does not fit tells it nothing new.
  ::fcntl(control.write.get(), F_SETFL, O_NONBLOCK);
  const pid_t child = ::fork();
  check(child >= 0, "cannot start the launcher's second process: {}", std::strerror(errno));
  if (child == 0) {
    control.write.reset();
    errors.read.reset();
    run_inner(body, control.read.get(), errors.write.get());
  }
  control.read.reset();
  errors.write.reset();
  // A child that is gone must not end us by SIGPIPE before we have looked after what it left.
  struct sigaction ignore{}, before{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before);
  const int status = forward_signals(signals, child, control.write.get());
  ::sigaction(SIGPIPE, &before, nullptr);
  if (WIFSIGNALED(status)) {
    kill_descendants(kKillLimit);
    fail("the launcher's second process was killed by signal {} ({}); all ranks were killed", WTERMSIG(status),
         ::strsignal(WTERMSIG(status)));
  }
  const std::string error = read_all(errors.read.get());
  check(error.empty(), "{}", error);
  return WEXITSTATUS(status);
}

}  // namespace sherd
