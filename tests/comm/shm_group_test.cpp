// What only processes can do: be killed, meet through the store, and leave things behind.
#include "runtime/comm/board/shm_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "runtime/comm/board/segment.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/store/unix_socket.h"
#include "runtime/exec/context.h"
#include "runtime/os/host_name.h"
#include "tests/comm/backends.h"
#include "tests/support/processes.h"

namespace sherd::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kKilledStatus = 128 + SIGKILL;

void gather(HostGroup& group, std::int64_t count_per_rank) {
  std::vector<float> data(static_cast<std::size_t>(count_per_rank * group.size()));
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), count_per_rank);
  group.all_gather({in_place(data.data(), DType::f32, counts)});
}

/// The process kills itself after `delay`, wherever it is then.
void kill_self_after(std::chrono::microseconds delay) {
  std::signal(SIGALRM, [](int) { ::kill(::getpid(), SIGKILL); });
  itimerval timer{};
  timer.it_value.tv_usec = delay.count();
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Name of the rendezvous socket of the group "world".
std::string socket_name(Store& store) {
  const std::string entry = store.get("shm_group/world", std::chrono::seconds(10));
  return entry.substr(0, entry.find(' '));
}

std::set<std::string> shared_memory_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) names.insert(entry.path().filename());
  return names;
}

// By its variables it is on one host: the check of comm/job/hosts.h has let it pass.
TEST(ShmGroup, ARankOnAnotherHostIsNamedThere) {
  const std::vector<RankEnd> ends = fork_ranks(2, [](Store& store, int rank) {
    if (rank == 1 && (::unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0 || ::sethostname("elsewhere", 9) != 0))
      throw CommError("not permitted");
    make_shm_group(store, rank, 2, {.silence = std::chrono::milliseconds(200)});
  });
  if (ends[1].message.find("not permitted") != std::string::npos)
    GTEST_SKIP() << "this user cannot make a network namespace";
  EXPECT_THAT(ends[1].message, AllOf(HasSubstr("cannot connect to the local socket of rank 0"),
                                     HasSubstr("rank 0 runs on host " + host_name() + ", rank 1 on elsewhere")));
}

TEST(ShmGroup, ARankKilledBeforeACallIsNamedSoon) {
  const std::vector<RankEnd> ends = fork_ranks(3, [](Store& store, int rank) {
    const std::shared_ptr<ProcessGroup> group = make_shm_group(store, rank, 3);
    group->host().barrier();
    if (rank == 1) std::raise(SIGKILL);
    const auto start = std::chrono::steady_clock::now();
    try {
      gather(group->host(), 10);
      FAIL() << "a gather from a dead rank succeeded";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("rank 1 (process "), HasSubstr(") died while rank "),
                        HasSubstr("all_gather #2 [f32 x 10,10,10]"), HasSubstr("its last call: barrier #1")));
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    }
    EXPECT_THROW(group->host().barrier(), CommError);
    EXPECT_THROW(group->reset(), CommError) << "a dead rank cannot take part in a reset";
  });
  EXPECT_EQ(ends[1].status, kKilledStatus);
  for (const std::size_t rank : {0U, 2U}) EXPECT_EQ(ends[rank].status, 0) << ends[rank].message;
}

// As main() does that returns: the group is there until the end of the process.
TEST(ShmGroup, ARankThatEndsHasNotDied) {
  for (const int status : {0, 3}) {
    const std::vector<RankEnd> ends = fork_ranks(2, [&](Store& store, int rank) {
      static std::shared_ptr<ProcessGroup> group;
      group = make_shm_group(store, rank, 2);
      RankContext::current().step = 2;
      group->host().barrier();
      if (rank == 1) std::exit(status);
      const std::string error = error_of([&] { group->host().barrier(); });
      EXPECT_THAT(
          error,
          AllOf(HasSubstr("rank 1 (process "),
                HasSubstr(fmt::format(") ended (status {}) after its 3rd step while rank 0 waits for it in barrier #2; "
                                      "outside any collective of this group, its last call: barrier #1",
                                      status))));
      group.reset();
    });
    EXPECT_EQ(ends[0].status, 0) << ends[0].message;
    EXPECT_EQ(ends[1].status, status);
  }
}

// Its peers wait for it meanwhile.
TEST(ShmGroup, TheEndOfAForkedChildIsNotThatOfItsRank) {
  const std::vector<RankEnd> ends = fork_ranks(2, [](Store& store, int rank) {
    static bool is_child = false;
    // Comes after the last word, and before a sanitizer would look for leaks of threads that the child does not have.
    std::atexit([] {
      if (is_child) ::_exit(0);
    });
    static std::shared_ptr<ProcessGroup> group;
    group = make_shm_group(store, rank, 2);
    group->host().barrier();
    if (rank == 1) {
      const pid_t child = ::fork();
      is_child = child == 0;
      if (is_child) std::exit(0);
      int status = 0;
      ::waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
    }
    group->host().barrier();
    group.reset();
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

// The kill comes at an arbitrary instant inside a call: while staging, copying, ringing or asleep.
TEST(ShmGroup, ARankKilledInsideACallIsNamedSoon) {
  for (const int delay : {1000, 5003, 10007, 20011, 30013}) {
    const std::vector<RankEnd> ends = fork_ranks(3, [&](Store& store, int rank) {
      const std::shared_ptr<ProcessGroup> group = make_shm_group(store, rank, 3, {.window_bytes = 4096});
      group->host().barrier();
      if (rank == 2) kill_self_after(std::chrono::microseconds(delay));
      auto last_good = std::chrono::steady_clock::now();
      try {
        for (;;) {
          gather(group->host(), 5000);
          last_good = std::chrono::steady_clock::now();
        }
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 2 (process "), HasSubstr(") died while rank ")));
        EXPECT_LT(std::chrono::steady_clock::now() - last_good, std::chrono::seconds(5));
      }
    });
    EXPECT_EQ(ends[2].status, kKilledStatus);
    for (const std::size_t rank : {0U, 1U}) EXPECT_EQ(ends[rank].status, 0) << ends[rank].message;
  }
}

TEST(ShmGroup, NothingIsLeftWhenAllAreKilled) {
  const std::set<std::string> before = shared_memory_files();
  PageStore store;
  const std::vector<RankEnd> ends = fork_ranks(store, 3, [](Store& shared, int rank) {
    const std::shared_ptr<ProcessGroup> group = make_shm_group(shared, rank, 3);
    group->host().barrier();
    ASSERT_THAT(text_of("/proc/net/unix"), ::testing::Not(HasSubstr(socket_name(shared))))
        << "the name outlives the rendezvous";
    kill_self_after(std::chrono::milliseconds(20));
    for (;;) {
      try {
        gather(group->host(), 50000);
      } catch (const CommError&) { ::pause(); }
    }
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, kKilledStatus) << end.message;
  EXPECT_EQ(shared_memory_files(), before);
  EXPECT_THAT(text_of("/proc/net/unix"), ::testing::Not(HasSubstr(socket_name(store))));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child process is left";
  EXPECT_EQ(errno, ECHILD);
}

/// Kills its process as soon as a key has been set.
class DeadlyStore final : public Store {
 public:
  explicit DeadlyStore(Store& store) : store_(store) {}
  void set(std::string_view key, std::string_view value) override {
    store_.set(key, value);
    std::raise(SIGKILL);
  }
  std::string get(std::string_view key, std::chrono::milliseconds deadline) override {
    return store_.get(key, deadline);
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override { return store_.add(key, amount); }

 private:
  Store& store_;
};

TEST(ShmGroup, AKillDuringTheRendezvousLeavesNoSocket) {
  PageStore store;
  const std::vector<RankEnd> ends = fork_ranks(store, 1, [](Store& shared, int) {
    DeadlyStore deadly(shared);
    make_shm_group(deadly, 0, 2);
  });
  EXPECT_EQ(ends[0].status, kKilledStatus);
  EXPECT_THAT(text_of("/proc/net/unix"), ::testing::Not(HasSubstr(socket_name(store))));
}

TEST(ShmGroup, MissingRanksAreNamedAfterTheDeadline) {
  const std::vector<RankEnd> ends = fork_ranks(2, [](Store& store, int rank) {
    const auto deadline = rank == 0 ? std::chrono::milliseconds(300) : std::chrono::seconds(30);
    make_shm_group(store, rank, 4, {.rendezvous_deadline = deadline});
  });
  EXPECT_THAT(ends[0].message,
              AllOf(HasSubstr("shm_group world: ranks "), HasSubstr("2, 3 have not come within 0.3 s")));
  // On a busy machine rank 1 may come when rank 0 has already gone.
  EXPECT_THAT(ends[1].message, AnyOf(HasSubstr("ranks 2, 3 have not come within 0.3 s"), HasSubstr("cannot connect")));
}

TEST(ShmGroup, ADeathDuringTheRendezvousIsNoticed) {
  std::string message;
  // Rank 1 must have said hello before it is killed; on a busy machine that takes a while.
  for (const int delay : {20, 200, 900}) {
    message =
        fork_ranks(2,
                   [&](Store& store, int rank) {
                     if (rank == 1) kill_self_after(std::chrono::milliseconds(delay));
                     make_shm_group(store, rank, 3, {.rendezvous_deadline = std::chrono::milliseconds(delay + 1000)});
                   })[0]
            .message;
    if (message.find("died") != std::string::npos) break;
  }
  EXPECT_THAT(message, HasSubstr("rank 1 died before all ranks had come"));
}

// Its life line is open, and its end of the connection is not.
TEST(ShmGroup, APeerThatCannotBeToldThatAllHaveComeIsNamed) {
  const std::vector<RankEnd> ends = fork_ranks(2, [](Store& store, int rank) {
    if (rank == 0) {
      make_shm_group(store, 0, 2, {.rendezvous_deadline = std::chrono::seconds(5)});
      return;
    }
    std::istringstream entry(store.get("shm_group/world", std::chrono::seconds(5)));
    std::string name, token;
    entry >> name >> token;
    const std::array<std::int32_t, 4> numbers{4, 1, 2, 77};  // version, rank, size, process
    auto [near_end, far_end] = comm::socket_pair();
    {
      const auto sent = std::move(far_end);  // closed here, so that rank 0 has the only one
      const std::array<int, 1> fds{sent.get()};
      const auto connection = comm::connect_abstract(name);
      ::shutdown(connection.get(), SHUT_RD);  // now, for rank 0 may answer before it is closed
      comm::send_message(connection, std::string(reinterpret_cast<const char*>(numbers.data()), sizeof numbers) + token,
                         fds);
    }
    while (!comm::is_hung_up(near_end)) std::this_thread::yield();
  });
  EXPECT_THAT(ends[0].message, HasSubstr("shm_group world: rank 1 (process 77) has gone before all ranks had come"));
}

TEST(ShmGroup, TwoProcessesWithOneRankAreRefused) {
  const std::vector<RankEnd> ends = fork_ranks(3, [](Store& store, int rank) {
    make_shm_group(store, std::min(rank, 1), 3, {.rendezvous_deadline = std::chrono::seconds(5)});
  });
  for (const RankEnd& end : ends)
    EXPECT_THAT(end.message, AllOf(HasSubstr("two processes say they are rank 1: "), HasSubstr(" and ")));
}

TEST(ShmGroup, TwoProcessesThatAreRankZeroAreBothTold) {
  const std::vector<RankEnd> ends = fork_ranks(
      2, [](Store& store, int) { make_shm_group(store, 0, 2, {.rendezvous_deadline = std::chrono::seconds(5)}); });
  for (const RankEnd& end : ends) EXPECT_THAT(end.message, HasSubstr("two processes say they are rank 0: "));
}

TEST(ShmGroup, ProgramsOfARankMayMeetOneAfterTheOther) {
  for (PageStore store; const int program : {1, 2}) {
    const std::vector<RankEnd> ends =
        fork_ranks(store, 1, [](Store& shared, int rank) { make_shm_group(shared, rank, 1)->host().barrier(); });
    EXPECT_EQ(ends[0].status, 0) << program << ends[0].message;
    // Rank 0 of two comes where nobody listens any more.
    const RankEnd alone = fork_ranks(store, 1, [](Store& shared, int) {
      make_shm_group(shared, 0, 2, {.rendezvous_deadline = std::chrono::milliseconds(50)});
    })[0];
    EXPECT_THAT(alone.message, HasSubstr("ranks 1 have not come within 0.05 s"));
  }
}

TEST(ShmGroup, SizesThatDifferAreRefused) {
  const std::vector<RankEnd> ends = fork_ranks(2, [](Store& store, int rank) {
    make_shm_group(store, rank, rank == 0 ? 2 : 3, {.rendezvous_deadline = std::chrono::seconds(5)});
  });
  for (const RankEnd& end : ends)
    EXPECT_THAT(end.message, AllOf(HasSubstr("rank 0 has a group of 2 ranks, rank 1 (process "),
                                   HasSubstr(") one of 3; start all ranks with the same number of ranks")));
}

TEST(ShmGroup, RanksOutOfRangeAreRefused) {
  PageStore store;
  EXPECT_THROW(make_shm_group(store, 2, 2), Error);
  EXPECT_THROW(make_shm_group(store, 0, 0), Error);
  EXPECT_THROW(make_shm_group(store, 0, 1000), Error);
}

TEST(ShmGroup, StrangersAtTheRendezvousAreIgnored) {
  const std::vector<RankEnd> ends = fork_ranks(2, [](Store& store, int rank) {
    if (rank == 1) {
      const std::string name = socket_name(store);
      const Descriptor silent = comm::connect_abstract(name);
      comm::send_message(silent, "hello", {});
      const Descriptor liar = comm::connect_abstract(name);
      const auto [near_end, far_end] = comm::socket_pair();
      const int number = far_end.get();
      comm::send_message(liar, std::string(40, 'x'), std::span(&number, 1));
    }
    make_shm_group(store, rank, 2)->host().barrier();
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

TEST(ShmGroup, AStrangerThatSaysNothingIsNotWaitedFor) {
  const std::vector<RankEnd> ends = fork_ranks(2, [](Store& store, int rank) {
    std::vector<Descriptor> silent;
    if (rank == 1)
      for (int i = 0; i < 100; ++i) silent.push_back(comm::connect_abstract(socket_name(store)));
    make_shm_group(store, rank, 2, {.rendezvous_deadline = std::chrono::seconds(10)})->host().barrier();
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

std::ptrdiff_t num_entries(const std::string& folder) {
  std::error_code gone;
  std::filesystem::directory_iterator at(folder, gone);
  std::ptrdiff_t count = 0;
  for (; at != std::filesystem::directory_iterator(); at.increment(gone)) ++count;
  return count;
}

TEST(ShmGroup, RanksThatDieTogetherAreBothNamed) {
  const std::vector<RankEnd> ends = fork_ranks(3, [&](Store& store, int rank) {
    const std::shared_ptr<ProcessGroup> group = make_shm_group(store, rank, 3);
    store.set(fmt::format("process {}", rank), std::to_string(::getpid()));
    group->host().barrier();
    if (rank != 0) std::raise(SIGKILL);
    for (const int dead : {1, 2}) {  // until both have ended; their parent buries rank 0 first
      const std::string process = store.get(fmt::format("process {}", dead), std::chrono::seconds(1));
      // With all of its threads: sockets are open until the last of them has gone.
      const auto has_ended = [folder = "/proc/" + process] {
        return text_of(folder + "/stat").find(") Z ") != std::string::npos && num_entries(folder + "/task") <= 1;
      };
      while (!has_ended()) std::this_thread::yield();
    }
    EXPECT_THAT(error_of([&] { gather(group->host(), 10); }),
                AllOf(HasSubstr("rank 1 (process "), HasSubstr(") died while rank 0 waits for it in all_gather #2"),
                      HasSubstr("; rank 2 (process "), HasSubstr(") died too")));
  });
  EXPECT_EQ(ends[0].status, 0) << ends[0].message;
}

// ---- address space ----

constexpr std::size_t kGiB = std::size_t{1} << 30;

TEST(ShmGroup, HeapsFitIntoTheAddressSpace) {
  EXPECT_EQ(comm::heap_bytes_for(2, 64 * kGiB, 1 << 20), 0U) << "nothing is left";
  EXPECT_EQ(comm::heap_bytes_for(2, 64 * kGiB, 131072 * kGiB), 64 * kGiB) << "as much as the host has";
  for (const int ranks : {1, 2, 64, 252})
    for (const std::size_t memory : {16 * kGiB, 2048 * kGiB, 32768 * kGiB})
      for (const std::size_t space : {8 * kGiB, 131072 * kGiB}) {
        const std::size_t heap = comm::heap_bytes_for(ranks, memory, space);
        EXPECT_LE(heap * static_cast<std::size_t>(ranks), space / 2) << ranks << " ranks";
        EXPECT_GE(heap, std::min(memory, space / 2 / static_cast<std::size_t>(ranks)) - (std::size_t{2} << 20));
      }
  EXPECT_GT(comm::default_heap_bytes(2), 0U);
}

/// To `bytes` more than it uses.
void limit_address_space(std::size_t bytes) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit limit{pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + bytes, RLIM_INFINITY};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
}

TEST(ShmGroup, ALimitOnAddressSpaceMakesHeapsSmaller) {
  const std::vector<RankEnd> ends = fork_ranks(2, [](Store& store, int rank) {
    limit_address_space(kGiB);
    const auto group = make_shm_group(store, rank, 2);
    group->host().barrier();
    const std::size_t heap = group->host().shared_heap().bytes;
    EXPECT_GT(heap, kGiB / 8);
    EXPECT_LE(heap, kGiB / 4);
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

TEST(ShmGroup, AnAddressSpaceThatIsTooSmallIsNamedWithTheRemedy) {
  const std::vector<RankEnd> ends = fork_ranks(1, [](Store& store, int) {
    limit_address_space(kGiB);
    make_shm_group(store, 0, 2, {.heap_bytes = kGiB});
  });
  EXPECT_THAT(ends[0].message, AllOf(HasSubstr("no room for a memory segment of "), HasSubstr("ulimit -v"),
                                     HasSubstr("start fewer ranks")));
}

TEST(ShmGroup, SixtyFourRanksMeet) {
  const std::vector<RankEnd> ends = fork_ranks(
      64, [](Store& store, int rank) { make_shm_group(store, rank, 64, {.window_bytes = 4096})->host().barrier(); });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

TEST(ShmGroup, SeveralGroupsLiveInOneStore) {
  const std::vector<RankEnd> ends = fork_ranks(3, [](Store& store, int rank) {
    const std::shared_ptr<ProcessGroup> world = make_shm_group(store, rank, 3);
    // Ranks 0 and 2 form a second group, in reverse order.
    const std::shared_ptr<ProcessGroup> pair =
        rank == 1 ? nullptr : make_shm_group(store, rank == 0 ? 1 : 0, 2, {.name = "pair"});
    auto x = static_cast<float>(rank);
    const CollectivePart part = in_place(&x, DType::f32, 1);
    if (pair) pair->host().broadcast({part}, 0);
    EXPECT_EQ(x, rank == 1 ? 1.0f : 2.0f);
    world->host().all_reduce({part}, {});
    EXPECT_EQ(x, 5.0f);
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

}  // namespace
}  // namespace sherd::testing
