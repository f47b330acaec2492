#include "tests/comm/backends.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <new>
#include <thread>

#include "runtime/comm/board/shm_group.h"
#include "runtime/comm/board/thread_group.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {

namespace {

constexpr auto kDeadline = std::chrono::seconds(30);

std::vector<std::string> run_as_threads(int count, const RankBody& body) {
  std::vector<std::string> messages(static_cast<std::size_t>(count));
  run_ranks(count, [&](const std::shared_ptr<ProcessGroup>& group) {
    group->set_deadline(kDeadline);
    try {
      body(group->host());
    } catch (const std::exception& error) {
      group->abort(error.what());
      messages[static_cast<std::size_t>(group->rank())] = error.what();
    }
  });
  return messages;
}

std::vector<std::string> run_as_processes(int count, const RankBody& body, const ShmGroupOptions& options) {
  const std::vector<RankEnd> ends = fork_ranks(count, [&](Store& store, int rank) {
    const std::shared_ptr<ProcessGroup> group = make_shm_group(store, rank, count, options);
    group->set_deadline(kDeadline);
    try {
      body(group->host());
    } catch (const std::exception& error) {
      group->abort(error.what());
      throw;
    }
  });
  std::vector<std::string> messages;
  for (const RankEnd& end : ends) {
    messages.push_back(end.message);
    EXPECT_TRUE(end.status == 0 || !end.message.empty())
        << "a rank failed an expectation or was killed: status " << end.status;
  }
  return messages;
}

}  // namespace

std::vector<Backend> all_backends() {
  const auto with_window = [](std::size_t window_bytes) {
    return [window_bytes](int count, const RankBody& body) {
      return run_as_processes(count, body, {.window_bytes = window_bytes});
    };
  };
  return {{"threads", 7, run_as_threads},
          {"processes", 4, with_window(ShmGroupOptions{}.window_bytes)},
          {"small_windows", 4, with_window(4096)}};
}

SharedFlag::SharedFlag() {
  void* start = ::mmap(nullptr, sizeof(*word_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check(start != MAP_FAILED, "no memory for a shared flag");
  word_ = ::new (start) std::atomic<std::uint32_t>(0);
}

SharedFlag::~SharedFlag() { ::munmap(word_, sizeof(*word_)); }

void SharedFlag::set() { word_->store(1); }

bool SharedFlag::is_set() const { return word_->load() != 0; }

void SharedFlag::wait() const {
  while (!is_set()) std::this_thread::yield();
}

}  // namespace sherd::testing
