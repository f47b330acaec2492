// Frozen, busy, or waiting: what is said of ranks that do not come, and when they are given up. Ranks are frozen by
// SIGSTOP, and wait for nothing but flags and what is said.
#include "runtime/comm/board/life.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/comm/board/heartbeat.h"
#include "runtime/comm/board/shm_group.h"
#include "runtime/comm/board/thread_group_options.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/running_op.h"
#include "tests/comm/backends.h"
#include "tests/support/page_store.h"
#include "tests/support/processes.h"

namespace sherd::testing {
namespace {

using namespace std::chrono_literals;
using comm::Silence;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr int kKilled = 128 + SIGKILL;

/// Keeps what a rank says of its waits, and raises the flag at the first text with all the words that is said when this
/// is so old.
class Told {
 public:
  Told(std::vector<std::string> words, SharedFlag* flag, std::chrono::seconds age = 0s)
      : words_(std::move(words)), flag_(flag), since_(Clock::now() + age) {}
  WaitNotice notice() {
    return {.after = 20ms, .say = [this](const std::string& text) {
              const std::lock_guard lock(mutex_);
              all_ += text + "\n";
              bool has_all = Clock::now() >= since_;
              for (const std::string& word : words_) has_all = has_all && text.find(word) != text.npos;
              if (!has_all || !found_.empty()) return;
              found_ = text;
              if (flag_) flag_->set();
            }};
  }
  /// The first text with all the words, else all that was said.
  std::string text() {
    const std::lock_guard lock(mutex_);
    return found_.empty() ? "not among: " + all_ : found_;
  }

 private:
  const std::vector<std::string> words_;
  SharedFlag* const flag_;
  const Clock::time_point since_;
  std::mutex mutex_;
  std::string all_, found_;
};

void publish_process(Store& store, int rank) {
  store.set("process/" + std::to_string(rank), std::to_string(::getpid()));
}
pid_t process_of(Store& store, int rank) {
  return static_cast<pid_t>(std::stol(store.get("process/" + std::to_string(rank), 30s)));
}

std::string text_of_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return std::move(text).str();
}

std::string failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError& error) { return error.what(); }
  return "no error";
}

TEST(Life, SilenceCountsFromTheLastSignOrTheWaitWithoutOnesOwnPauses) {
  const auto silence = [](const Silence& s, std::chrono::nanoseconds beat) { return s.of(beat); };
  const Silence wait{.now = 100s, .waiting_since = 40s, .own_beat = 99s, .lost = 0s, .pause_end = 0s, .patience = 2s};
  EXPECT_EQ(silence(wait, 99s), 1s);
  EXPECT_EQ(silence(wait, 60s), 40s);
  EXPECT_EQ(silence(wait, 10s), 60s) << "it was silent before, but nobody waited";
  EXPECT_EQ(silence(wait, 0s), std::nullopt) << "ranks that give no signs";
  EXPECT_EQ(wait.waited(), 60s);
  Silence away = wait;
  away.own_beat = 95s;  // nor does this one's heart beat: the job was stopped, and has just gone on
  EXPECT_FALSE(away.is_known());
  EXPECT_EQ(silence(away, 60s), std::nullopt);
  Silence back = wait;
  back.lost = 38s;
  back.pause_end = 98s;
  EXPECT_EQ(silence(back, 60s), 2s);
  EXPECT_EQ(silence(back, 99s), 1s) << "a sign since the pause";
  EXPECT_EQ(back.waited(), 22s);
  back.pause_end = 41s;  // nearly all of it before the wait, though the heart has told of it since
  EXPECT_EQ(back.waited(), 59s);
  EXPECT_EQ(silence(back, 60s), 40s);
  const Silence threads{.now = 100s, .waiting_since = 40s, .own_beat = 0s, .lost = 0s, .pause_end = 0s, .patience = 2s};
  EXPECT_TRUE(threads.is_known()) << "their deadline counts";
}

TEST(Life, TheHeartTellsTheKernelAndSinceWhenWhileTheThreadIsInIt) {
  comm::LifeCell cell;
  const auto running = std::make_shared<RunningOp>();
  static constexpr std::string_view kName = "long_kernel";
  comm::Heartbeat heart(cell, running, 1ms);
  const auto beats = [&](int count) {
    for (; count > 0; --count)
      for (const std::int64_t seen = cell.beat; cell.beat == seen;) std::this_thread::yield();
  };
  beats(2);
  EXPECT_EQ(cell.kernel_since, 0);
  {
    const KernelMark mark(*running, kName);
    beats(2);  // the first may have begun before
    const std::int64_t since = cell.kernel_since;
    EXPECT_NE(since, 0);
    EXPECT_EQ(cell.kernel.load(), kName);
    beats(3);
    EXPECT_EQ(cell.kernel_since, since) << "the same kernel";
    EXPECT_LT(since, cell.beat);
  }
  beats(2);
  EXPECT_EQ(cell.kernel_since, 0);
  EXPECT_EQ(cell.interval, 1'000'000);
}

TEST(Life, PausesOfAProcessAreLostTime) {
  comm::LifeCell cell;
  const auto now = [] { return Clock::now().time_since_epoch() / 1ns; };
  cell.beat = now() - 10'000'000'000;  // of an earlier heart: this one finds that it is late
  const comm::Heartbeat heart(cell, nullptr, 100ms);
  EXPECT_GE(cell.lost, 9'900'000'000);
  EXPECT_LT(cell.lost, now() - cell.beat + 11'000'000'000);
}

TEST(Life, AForkedChildMayDropTheHeart) {
  comm::LifeCell cell;
  auto heart = std::make_unique<comm::Heartbeat>(cell, nullptr, 1ms);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    heart.reset();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Life, AStoppedRankIsNamedAndGivenUpByAll) {
  SharedFlag named;
  const std::vector<RankEnd> ends = fork_ranks(3, [&](Store& store, int rank) {
    Told told({"frozen: no sign of life for"}, &named);
    publish_process(store, rank);
    const auto group = make_shm_group(store, rank, 3, {.silence = 6s, .notice = told.notice()});
    group->host().barrier();
    if (rank == 2) ::raise(SIGSTOP);
    const auto start = Clock::now();
    const std::string error = failure_of([&] { group->host().barrier(); });
    EXPECT_THAT(error,
                AllOf(HasSubstr("rank 2 (process "), HasSubstr(") is frozen: no sign of life for 6"),
                      HasSubstr("(limit 6 s) while rank "), HasSubstr(" waits for it in barrier #2; outside any "),
                      HasSubstr("its last call: barrier #1")));
    EXPECT_LT(Clock::now() - start, 11s) << "deadline + 5 s";
    EXPECT_TRUE(named.is_set()) << "before it was given up";
    if (rank == 0) {
      EXPECT_THAT(told.text(), AllOf(HasSubstr("rank 0 has waited "), HasSubstr(" s in barrier #2"),
                                     HasSubstr("not there: rank 2 (outside any collective of this group"),
                                     HasSubstr("; frozen: no sign of life for ")));
      ::kill(process_of(store, 2), SIGKILL);
    }
  });
  EXPECT_EQ(ends[2].status, kKilled);
  for (const std::size_t rank : {0U, 1U}) EXPECT_EQ(ends[rank].status, 0) << ends[rank].message;
}

// With SHERD_TEST_BUSY_SECONDS=100, beside the limits that runs have by default.
TEST(Life, ARankInALongKernelIsBusyAndNotGivenUp) {
  const char* const asked = std::getenv("SHERD_TEST_BUSY_SECONDS");
  const std::chrono::seconds busy(asked ? std::atoi(asked) : 4);
  const auto silence = std::min<std::chrono::nanoseconds>(busy / 2, ShmGroupOptions{}.silence);
  SharedFlag long_enough;
  PageStore pages;
  const auto body = [&](Store& store, int rank) {
    RankContext::current();
    Told told({"busy in long_kernel for"}, &long_enough, busy);  // longer than a silent rank is given
    const auto group = make_shm_group(store, rank, 2, {.silence = silence, .notice = told.notice()});
    static constexpr std::string_view kName = "long_kernel";
    if (rank == 1) {
      const KernelMark mark(*running_op(), kName);
      while (!long_enough.is_set()) {}
    }
    group->host().barrier();
    if (rank == 0) {
      EXPECT_THAT(told.text(), AllOf(HasSubstr("not there: rank 1 ("), HasSubstr("; busy in long_kernel for ")));
    }
  };
  const std::vector<RankEnd> ends = fork_ranks(pages, 2, body, busy + std::chrono::minutes(1));
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

TEST(Life, TheEndOfAChainOfWaitsIsNamed) {
  // Rank 0 waits for rank 1, which waits for rank 3.
  SharedFlag named;
  const std::vector<RankEnd> ends = fork_ranks(4, [&](Store& store, int rank) {
    RankContext::current();
    Told told({"held up by rank 3: busy"}, rank == 0 ? &named : nullptr);
    const auto world = make_shm_group(store, rank, 4, {.notice = told.notice()});
    const std::vector<int> row = rank < 2 ? std::vector{0, 1} : std::vector{2, 3};
    const std::vector<int> column = rank % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3};
    const auto rows = world->subgroup(row, "dp"), columns = world->subgroup(column, "tp");
    static constexpr std::string_view kName = "long_kernel";
    if (rank == 3) {
      const KernelMark mark(*running_op(), kName);
      while (!named.is_set()) {}
    }
    if (rank % 2 == 1) columns->host().barrier();
    if (rank < 2) rows->host().barrier();
    if (rank == 0) {
      EXPECT_THAT(told.text(), AllOf(HasSubstr("rank 0 has waited "), HasSubstr("not there: rank 1 ("),
                                     HasSubstr("in barrier #1 of ranks 1,3"),
                                     HasSubstr(", held up by rank 3: busy in long_kernel for ")));
    }
    world->host().barrier();
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

TEST(Life, RanksThatWaitForEachOtherAreNamed) {
  const std::vector<RankEnd> ends = fork_ranks(2, [&](Store& store, int rank) {
    Told told({"wait for each other"}, nullptr);
    const auto group = make_shm_group(store, rank, 2, {.look = 500ms, .notice = told.notice()});
    const float x = 1;
    const std::string error =
        failure_of([&] { group->host().send({in_place(const_cast<float*>(&x), DType::f32, 1)}, 1 - rank); });
    EXPECT_THAT(error,
                AllOf(HasSubstr("rank 0 waits for rank 1 in send #1 to rank 1"), HasSubstr("rank 1 waits for ")));
    EXPECT_THAT(told.text(),
                HasSubstr(fmt::format(", held up in a circle: the ranks {}, {} wait for each other", 1 - rank, rank)));
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

TEST(Life, ARankThatComputesBesideAWaitingQueueIsInNoCircle) {
  // Rank 0's queue waits for rank 1, whose thread waits for rank 0's, which computes.
  SharedFlag named;
  const std::vector<RankEnd> ends = fork_ranks(2, [&](Store& store, int rank) {
    RankContext::current();
    Told told({"barrier #1 of lane 1", "held up by rank 0: busy"}, &named);
    const auto group = make_shm_group(store, rank, 2, {.notice = told.notice()});
    if (rank == 0) {
      std::thread queue([&] { group->host().lane(1).barrier(); });
      static constexpr std::string_view kName = "long_kernel";
      {
        const KernelMark mark(*running_op(), kName);
        while (!named.is_set()) {}
      }
      group->host().barrier();
      queue.join();
      EXPECT_THAT(told.text(), AllOf(HasSubstr("not there: rank 1 ("), HasSubstr(", held up by rank 0: busy in ")));
    } else {
      group->host().barrier();
      group->host().lane(1).barrier();
    }
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

TEST(Life, AFailureSaysWhereTheOthersWere) {
  SharedFlag killed;
  const std::vector<RankEnd> ends = fork_ranks(4, [&](Store& store, int rank) {
    RankContext::current();
    const auto world = make_shm_group(store, rank, 4);
    const std::vector<int> pair = rank < 2 ? std::vector{0, 1} : std::vector{2, 3};
    const auto pairs = world->subgroup(pair, "dp");
    if (rank == 0) ::raise(SIGKILL);
    static constexpr std::string_view kName = "long_kernel";
    std::optional<KernelMark> mark;
    if (rank == 3) mark.emplace(*running_op(), kName);  // and rank 2 waits for it
    while (rank == 3 && !killed.is_set()) {}
    const std::string error = failure_of([&] { pairs->host().barrier(); });
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0 (process "), HasSubstr(") died while rank 1 waits for it in barrier #1"),
                             HasSubstr("; meanwhile rank 2: "), HasSubstr(", rank 3: ")));
    killed.set();
  });
  EXPECT_EQ(ends[0].status, kKilled);
  for (const std::size_t rank : {1U, 2U, 3U}) EXPECT_EQ(ends[rank].status, 0) << ends[rank].message;
}

TEST(Life, ARankZeroThatIsStoppedWhileItGathersTheOthersIsGivenUp) {
  const std::vector<RankEnd> ends = fork_ranks(3, [&](Store& store, int rank) {
    Told told({"is frozen: no sign of life for"}, nullptr);
    publish_process(store, rank);
    if (rank == 2) {  // does not come, and stops rank 0 when rank 1 has
      const std::string maps = fmt::format("/proc/{}/maps", process_of(store, 1));
      while (text_of_file(maps).find("memfd:sherd") == std::string::npos) std::this_thread::yield();
      ::kill(process_of(store, 0), SIGSTOP);
      return;
    }
    const std::string error =
        failure_of([&] { make_shm_group(store, rank, 3, {.silence = 6s, .notice = told.notice()}); });
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0 is frozen: no sign of life for 6"),
                             HasSubstr(" s (limit 6 s), before all ranks had come")));
    EXPECT_THAT(told.text(), HasSubstr("for rank 0, which waits for all ranks to come and is frozen: no sign of life"));
    if (rank == 1) ::kill(process_of(store, 0), SIGKILL);
  });
  EXPECT_EQ(ends[0].status, kKilled);
  for (const std::size_t rank : {1U, 2U}) EXPECT_EQ(ends[rank].status, 0) << ends[rank].message;
}

// Rank 0 counts it among those that have come, and it has never told that it lives.
TEST(Life, ARankThatIsStoppedBetweenItsHelloAndItsFirstSignIsGivenUp) {
  SharedFlag listens, is_stopping;
  const std::vector<RankEnd> ends = fork_ranks(2, [&](Store& store, int rank) {
    publish_process(store, rank);
    ShmGroupOptions options{.silence = 1s};
    if (rank == 1) {
      while (!listens.is_set()) std::this_thread::yield();
      options.gives_up = [&] {  // asked for when the hello is said and nothing has come
        is_stopping.set();
        ::raise(SIGSTOP);
        return std::string();
      };
    } else {
      options.gives_up = [&] {
        listens.set();
        while (!is_stopping.is_set()) std::this_thread::yield();
        return std::string();
      };
    }
    const auto group = make_shm_group(store, rank, 2, options);
    group->set_deadline(10s);
    EXPECT_THAT(failure_of([&] { group->host().barrier(); }), HasSubstr("rank 1 is frozen: no sign of life for 1"));
    ::kill(process_of(store, 1), SIGKILL);
  });
  EXPECT_EQ(ends[0].status, 0) << ends[0].message;
  EXPECT_EQ(ends[1].status, kKilled);
}

TEST(Life, ThreadsHaveNoHeart) {
  SharedFlag missed;
  Told told({"not there: rank 1"}, &missed);
  const auto groups = make_thread_groups(2, {.say = told.notice().say, .say_after = told.notice().after});
  std::thread late([&] {
    missed.wait();
    groups[1]->host().barrier();
  });
  groups[0]->host().barrier();
  late.join();
  EXPECT_THAT(told.text(), HasSubstr("(outside any collective of this group, its last call: none)"));
}

}  // namespace
}  // namespace sherd::testing
