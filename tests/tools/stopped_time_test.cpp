// How long ranks have been stopped: time in which the first process of each of their groups is.
#include "tools/launch/stopped_time.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/tensor/error.h"

namespace sherd::testing {

namespace {

using namespace std::chrono_literals;
using Clock = StoppedTime::Clock;

/// The first process of a group of its own, and a second one in it.
class TwoProcesses {
 public:
  TwoProcesses() {
    int ends[2];
    check(::pipe(ends) == 0, "no pipe");
    leader_ = ::fork();
    check(leader_ >= 0, "no process");
    if (leader_ == 0) {
      ::setpgid(0, 0);
      const pid_t other = ::fork();
      if (other != 0 && ::write(ends[1], &other, sizeof other) != sizeof other) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    EXPECT_EQ(::read(ends[0], &other_, sizeof other_), static_cast<ssize_t>(sizeof other_));
    ::close(ends[0]);
  }
  ~TwoProcesses() {
    ::kill(-leader_, SIGKILL);
    ::waitpid(leader_, nullptr, 0);
  }
  TwoProcesses(const TwoProcesses&) = delete;
  TwoProcesses& operator=(const TwoProcesses&) = delete;

  void stop_leader() const {
    ::kill(leader_, SIGSTOP);
    int status = 0;
    ::waitpid(leader_, &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  void go_on() const {
    ::kill(leader_, SIGCONT);
    ::waitpid(leader_, nullptr, WCONTINUED);
  }
  void stop_other() const { ::kill(other_, SIGSTOP); }
  pid_t group() const { return leader_; }

 private:
  pid_t leader_ = -1, other_ = -1;
};

TEST(StoppedTime, CountsWhileTheFirstProcessOfEachGroupIsStopped) {
  const TwoProcesses first, second;
  StoppedTime time(120ms);
  Clock::time_point now = Clock::now();
  const auto after = [&](Clock::duration longer) {  // a look at each interval
    for (const auto until = now + longer; now < until; now += time.interval())
      time.of({first.group(), second.group()}, now);
    return time.of({first.group(), second.group()}, now);
  };
  first.stop_leader();
  second.stop_other();  // what a rank has started, not the rank
  EXPECT_EQ(after(1s), 0ms);
  second.stop_leader();
  EXPECT_EQ(after(100ms), 100ms - time.interval()) << "from the first look on";
  first.go_on();
  EXPECT_EQ(after(100ms), 0ms) << "it begins anew";
}

TEST(StoppedTime, TimeInWhichNobodyLookedIsNotCounted) {
  const TwoProcesses processes;
  processes.stop_leader();
  StoppedTime time(120ms);
  const Clock::time_point now = Clock::now();
  time.of({processes.group()}, now);
  EXPECT_EQ(time.of({processes.group()}, now + 1h), 2 * time.interval()) << "the launcher was stopped itself";
}

}  // namespace
}  // namespace sherd::testing
