#include "tools/launch/supervise.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "runtime/comm/store/hmac.h"
#include "runtime/tensor/error.h"
#include "tools/launch/launch_guard.h"
#include "tools/launch/supervision.h"
#include "tools/train/exit_status.h"
#include "tools/train/stop_signals.h"

namespace sherd {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Returns the signal of the user that came meanwhile, 0 if none did, -1 if the launcher is dead.
int pause_for(milliseconds time, int control) {
  for (const auto until = Clock::now() + time;;) {
    pollfd poll{control, POLLIN, 0};
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    ::poll(&poll, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
    char signal = 0;
    const ssize_t got = ::read(control, &signal, 1);
    if (got == 0) return -1;
    if (got == 1 && signal != SIGUSR1) return signal;
    if (Clock::now() >= until) return 0;
  }
}

int run_starts(const SuperviseOptions& options, const sigset_t& mask, int control) {
  RestartPolicy policy(options.ranks, options.restart);
  for (JobStart start{random_hex(16), policy.slots(), 0};; ++start.restart) {
    const auto begin = Clock::now();
    const StartOutcome outcome = Supervision(options, start, mask, control).run();
    if (!outcome.failure || options.restart.restarts == 0) {
      if (start.restart > 0 && outcome.status == kDone)
        say_on_error_stream(fmt::format("done, after {} restart{}", start.restart, start.restart == 1 ? "" : "s"));
      return outcome.status;
    }
    const std::optional<NextStart> next =
        policy.after(*outcome.failure, std::chrono::duration_cast<milliseconds>(Clock::now() - begin));
    if (!next) {
      say_on_error_stream(fmt::format("no restart is left of {}", options.restart.restarts));
      return outcome.status;
    }
    say_on_error_stream(fmt::format(
        "restart {} of {}{}, {}", start.restart + 1, options.restart.restarts,
        next->pause.count() == 0 ? "" : fmt::format(" in {} s", std::chrono::duration<double>(next->pause).count()),
        next->text));
    if (const int signal = pause_for(next->pause, control); signal != 0) {
      if (signal > 0) say_on_error_stream(fmt::format("stopped by {}", signal_name(signal)));
      return signal > 0 ? 128 + signal : outcome.status;
    }
    start.slots = policy.slots();
    start.saves = outcome.saves;
  }
}

}  // namespace

int supervise(const SuperviseOptions& options) {
  check(options.ranks >= 1, "there must be at least 1 rank, not {}", options.ranks);
  check(!options.command.empty(), "there is no command to run");
  check_restarts(options.ranks, options.restart);
  sigset_t mask;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return run_guarded([&](int control) { return run_starts(options, mask, control); });
}

}  // namespace sherd
