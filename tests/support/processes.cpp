#include "tests/support/processes.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "runtime/comm/board/shm_group.h"

namespace sherd::testing {

namespace {

constexpr int kFailedExpectation = 2;
constexpr int kThrew = 3;
using Text = std::array<char, 4096>;

/// One page of text per child, which survives it.
class Messages {
 public:
  explicit Messages(std::size_t count) : num_bytes_(count * sizeof(Text)) {
    void* start = ::mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(start != MAP_FAILED, "no memory for the messages of {} ranks", count);
    texts_ = static_cast<Text*>(start);
  }
  ~Messages() { ::munmap(texts_, num_bytes_); }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;
  Text& operator[](std::size_t rank) { return texts_[rank]; }

 private:
  std::size_t num_bytes_;
  Text* texts_ = nullptr;
};

[[noreturn]] void run_child(Store& store, int rank, pid_t parent, const std::function<void(Store&, int)>& body,
                            std::chrono::seconds limit, Text& message) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::alarm(static_cast<unsigned>(limit.count()));
  int status = 0;
  try {
    body(store, rank);
    if (::testing::Test::HasFailure()) status = kFailedExpectation;
  } catch (const std::exception& error) {
    std::strncpy(message.data(), error.what(), message.size() - 1);
    status = kThrew;
  }
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace

std::vector<RankEnd> fork_ranks(int count, const std::function<void(Store& store, int rank)>& body) {
  PageStore store;
  return fork_ranks(store, count, body);
}

std::vector<RankEnd> fork_ranks(PageStore& store, int count, const std::function<void(Store& store, int rank)>& body,
                                std::chrono::seconds limit) {
  Messages messages(static_cast<std::size_t>(count));
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  std::vector<pid_t> children;
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = ::fork();
    check(child >= 0, "cannot fork rank {}", rank);
    if (child == 0) run_child(store, rank, parent, body, limit, messages[static_cast<std::size_t>(rank)]);
    children.push_back(child);
  }
  std::vector<RankEnd> ends;
  for (const pid_t child : children) {
    int state = 0;
    while (::waitpid(child, &state, 0) < 0 && errno == EINTR) continue;
    ends.push_back({WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state), messages[ends.size()].data()});
  }
  return ends;
}

void run_processes(int count, const std::function<void(const std::shared_ptr<ProcessGroup>&)>& body) {
  const std::vector<RankEnd> ends =
      fork_ranks(count, [&](Store& store, int rank) { body(make_shm_group(store, rank, count)); });
  std::string failures;
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    if (ends[rank].status == 0) continue;
    failures += fmt::format("rank {} ended with status {}: {}\n", rank, ends[rank].status, ends[rank].message);
  }
  if (!failures.empty()) throw std::runtime_error(failures);
}

}  // namespace sherd::testing
