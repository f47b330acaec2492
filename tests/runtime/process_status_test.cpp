// What /proc says of processes, beside what the system calls say.
#include "runtime/os/process_status.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sherd {
namespace {

/// The status of a child as it is when it has ended, before anybody has asked how.
std::optional<ProcessStatus> status_of_ended_child(const char* name) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_NAME, name);
    ::_exit(0);
  }
  siginfo_t end{};
  ::waitid(P_PID, static_cast<id_t>(child), &end, WEXITED | WNOWAIT);
  const std::optional<ProcessStatus> status = process_status(child);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(process_status(child).has_value()) << "there is none any more";
  return status;
}

TEST(ProcessStatus, IsWhatTheSystemCallsSay) {
  const std::optional<ProcessStatus> own = process_status(::getpid());
  ASSERT_TRUE(own.has_value());
  EXPECT_EQ(own->state, 'R');
  EXPECT_EQ(own->parent, ::getppid());
  EXPECT_EQ(own->group, ::getpgrp());
  EXPECT_FALSE(own->has_ended());
  const std::optional<ProcessStatus> child = status_of_ended_child("child");
  ASSERT_TRUE(child.has_value());
  EXPECT_EQ(child->parent, ::getpid());
  EXPECT_TRUE(child->has_ended());
  EXPECT_GE(std::stoull(child->started), std::stoull(own->started));
}

TEST(ProcessStatus, ANameMayHoldAnything) {
  for (const char* name : {"a) R 1 2 (b", "with space", ")"}) {
    const std::optional<ProcessStatus> child = status_of_ended_child(name);
    ASSERT_TRUE(child.has_value()) << name;
    EXPECT_EQ(child->name, name);
    EXPECT_EQ(child->parent, ::getpid()) << name;
  }
}

}  // namespace
}  // namespace sherd
