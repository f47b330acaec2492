// Ranks that wait for each other are told so, with both calls and what they are for; ranks that are late, however odd
// it looks, are waited for. Looks are milliseconds apart; nothing else depends on time.
#include "runtime/comm/board/wait_circle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <functional>
#include <thread>
#include <vector>

#include "runtime/comm/board/shm_group.h"
#include "runtime/comm/board/thread_group_options.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/exec/context.h"
#include "runtime/exec/purpose.h"
#include "tests/comm/backends.h"
#include "tests/support/processes.h"

namespace sherd::testing {
namespace {

using namespace std::chrono_literals;
using comm::CircleProof;
using comm::CommOp;
using comm::Hold;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// ---- the proof ----

Hold hold(int from, int to, std::uint64_t identity = 1, std::int64_t until = 0) {
  return {.from = {from, 0}, .to = {to, 0}, .is_call = true, .identity = identity, .found_until = until};
}

TEST(WaitCircle, IsWhatAChainEndsInFromItsLowestRankOn) {
  const auto ranks = [](std::vector<Hold> holds) {
    std::vector<int> result;
    for (const Hold& each : comm::circle_in(std::move(holds))) result.push_back(each.from.rank);
    return result;
  };
  EXPECT_EQ(ranks({hold(5, 3), hold(3, 2), hold(2, 4), hold(4, 3)}), (std::vector{2, 4, 3}));
  EXPECT_EQ(ranks({hold(0, 1), hold(1, 0)}), (std::vector{0, 1}));
  EXPECT_EQ(ranks({hold(1, 0), hold(0, 2)}), std::vector<int>()) << "rank 2 is held by nothing";
  EXPECT_EQ(ranks({}), std::vector<int>());
}

TEST(WaitCircle, IsProvenWhenEachRankHasFoundItAgainSinceTheFirstLook) {
  const auto circle = [](std::int64_t one, std::int64_t other) {
    return std::vector{hold(0, 1, 7, one), hold(1, 0, 9, other)};
  };
  CircleProof proof;
  EXPECT_FALSE(proof.is_proven(circle(90, 95), 100)) << "seen once";
  EXPECT_FALSE(proof.is_proven(circle(110, 95), 120)) << "rank 1 has not looked since: it may be stopped, and awaited";
  EXPECT_TRUE(proof.is_proven(circle(130, 125), 140)) << "held at 100";
  std::vector<Hold> other = circle(150, 150);
  other[1].identity = 10;
  EXPECT_FALSE(proof.is_proven(other, 160)) << "rank 1 went on, and waits again";
  EXPECT_TRUE(proof.is_proven(other = {hold(0, 1, 7, 170), hold(1, 0, 10, 170)}, 180));
  EXPECT_FALSE(proof.is_proven({}, 190));
  EXPECT_FALSE(proof.is_proven(other, 200)) << "it was open in between";
}

TEST(WaitCircle, AWordHoldsWhatAThreadDoes) {
  const comm::BetweenCalls said{.kind = ThreadState::Kind::waits, .lane = 4, .number = 123'456'789'012};
  const auto read = comm::BetweenCalls::from(said.packed());
  EXPECT_EQ(read.kind, said.kind);
  EXPECT_EQ(read.lane, said.lane);
  EXPECT_EQ(read.number, said.number);
}

// ---- ranks ----

using Ranks = std::function<void(ProcessGroup& world, int rank)>;

struct GroupKind {
  const char* name;
  std::function<void(int ranks, const WaitNotice& notice, const Ranks& body)> run;
};

constexpr auto kLook = 4ms;

void run_threads(int count, const WaitNotice& notice, const Ranks& body) {
  auto groups = make_thread_groups(count, {.say = notice.say, .say_after = notice.after, .look = kLook});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank)
    threads.emplace_back([&body, rank, group = std::move(groups[static_cast<std::size_t>(rank)])] {
      const RankScope scope;
      group->set_deadline(30s);
      body(*group, rank);
    });
  for (std::thread& thread : threads) thread.join();
}

void run_processes(int count, const WaitNotice& notice, const Ranks& body) {
  const std::vector<RankEnd> ends = fork_ranks(count, [&](Store& store, int rank) {
    const RankScope scope;
    const auto group = make_shm_group(store, rank, count, {.look = kLook, .window_bytes = 65536, .notice = notice});
    group->set_deadline(30s);
    body(*group, rank);
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

class WaitCircles : public ::testing::TestWithParam<GroupKind> {};
INSTANTIATE_TEST_SUITE_P(Groups, WaitCircles,
                         ::testing::Values(GroupKind{"threads", run_threads}, GroupKind{"processes", run_processes}),
                         [](const auto& param) { return param.param.name; });

Queue& queue(std::string_view name) { return RankContext::current().queue(name); }

/// Queues a collective of so many floats per rank, and waits for the queue.
void run_queued(ProcessGroup& group, CommOp op, std::string_view queue_name, std::size_t count) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<float> own(count * ranks), all(count * ranks);
  const auto buffer = [](std::vector<float>& v, std::size_t n) {
    return Buffer{v.data(), static_cast<std::int64_t>(n * sizeof(float)), Device::cpu()};
  };
  const bool gathers = op == CommOp::all_gather, flat = op == CommOp::all_reduce;
  const std::vector<std::int64_t> counts(flat ? 1 : ranks, static_cast<std::int64_t>(count));
  group.issue({.op = op,
               .parts = {{.in = buffer(own, gathers || flat ? count : count * ranks),
                          .out = buffer(all, gathers ? count * ranks : count),
                          .counts = counts}}},
              {.queue = queue(queue_name), .name = queue_name, .subject = "blocks.3"});
  queue(queue_name).record().wait();
}

/// The groups of a rank.
struct Groups {
  explicit Groups(ProcessGroup& all) : world(all) {
    std::vector<int> ranks;
    for (int rank = 0; rank < all.size(); ++rank) ranks.push_back(rank);
    axis = all.subgroup(ranks, "tp");
  }
  ProcessGroup& world;
  std::shared_ptr<ProcessGroup> axis;
};

/// A way to wait for other ranks, and what is said of it.
struct Way {
  const char* says;
  std::function<void(const Groups& groups)> wait;
};

const Way kWays[] = {
    {"for blocks.3 [f32 x ", [](const Groups& g) { run_queued(g.world, CommOp::all_gather, kGatherQueue, 3); }},
    {"reduce_scatter #", [](const Groups& g) { run_queued(g.world, CommOp::reduce_scatter, kReduceQueue, 9000); }},
    {"of lane 4 for blocks.3", [](const Groups& g) { run_queued(g.world, CommOp::all_reduce, kReplicateQueue, 2); }},
    {"(collective in ", [](const Groups& g) { run_queued(*g.axis, CommOp::all_reduce, kCollectiveQueue, 9000); }},
    {"all_gather #", [](const Groups& g) { gather_text(g.world, "here"); }},
    {"barrier #", [](const Groups& g) { g.axis->host().barrier(); }},
};

TEST_P(WaitCircles, EachPairOfCallsEndsWithBothCallsAndBothPurposes) {
  for (const int ranks : {2, 3, 4})
    GetParam().run(ranks, {}, [](ProcessGroup& world, int rank) {
      const Groups groups(world);
      int pair = 0;
      for (const Way& one : kWays)
        for (const Way& other : kWays) {
          if (&one == &other || (++pair + world.size()) % 3 != 0) continue;  // in all sizes together each pair once
          const bool is_odd_one = rank == pair % world.size();
          const std::string error = error_of([&] {
            const PurposeScope purpose(is_odd_one ? "save_checkpoint" : "clip_grad_norm");
            (is_odd_one ? one : other).wait(groups);
          });
          EXPECT_THAT(error, AllOf(HasSubstr("wait for each other, and none can go on: rank "), HasSubstr(one.says),
                                   HasSubstr(other.says), HasSubstr("save_checkpoint)"), HasSubstr("clip_grad_norm)"),
                                   HasSubstr("collectives must be called by all ranks")))
              << one.says << " on rank " << pair % world.size() << ", " << other.says << " elsewhere";
          world.reset();
        }
      gather_text(world, "all is well again");
    });
}

TEST_P(WaitCircles, GroupsThatShareARankCloseOne) {
  // rank 0 -> 1 (ranks 0,1), 1 -> 3 (ranks 1,3), 3 -> 2 (ranks 2,3), 2 -> 0 (ranks 0,2)
  GetParam().run(4, {}, [](ProcessGroup& world, int rank) {
    const auto row = world.subgroup(rank < 2 ? std::vector{0, 1} : std::vector{2, 3}, "dp");
    const auto column = world.subgroup(rank % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3}, "tp");
    const std::string error = error_of([&] { (rank == 0 || rank == 3 ? row : column)->host().barrier(); });
    EXPECT_THAT(error, AllOf(HasSubstr("the ranks 0, 1, 2, 3 wait for each other"),
                             HasSubstr("rank 0 waits for rank 1 in barrier #1 of ranks 0,1"),
                             HasSubstr("rank 2 waits for rank 0 in barrier #1 of ranks 0,2")));
  });
}

TEST_P(WaitCircles, WorkOfAQueueThatWaitsForAnotherQueueIsInOne) {
  // Rank 0's reduction comes after a gather that rank 1 does not make: it waits for the sum.
  GetParam().run(2, {}, [](ProcessGroup& world, int rank) {
    const std::string error = error_of([&] {
      if (rank == 1) return gather_text(world, "here").clear();
      const Event gathered = queue(kGatherQueue).submit({.name = "unshard", .run = [&world] {
                                                           world.host().lane(kGatherQueue).barrier();
                                                         }});
      queue(kReduceQueue).wait(gathered);
      queue(kReduceQueue).submit({.name = "reduce", .run = [] {}}).wait();
      gathered.wait();
    });
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0 waits for rank 1 in barrier #1 of lane 1 (unshard)"),
                             HasSubstr("rank 1 waits for rank 0 in all_gather #1 [i64 x 1,1]")));
  });
}

TEST_P(WaitCircles, AThreadThatWaitsForADiskThatWaitsForAQueueIsInOne) {
  GetParam().run(2, {}, [](ProcessGroup& world, int rank) {
    const std::string error = error_of([&] {
      if (rank == 1) return gather_text(world, "here").clear();
      const Event gathered = queue(kGatherQueue).submit({.name = "unshard", .run = [&world] {
                                                           world.host().lane(kGatherQueue).barrier();
                                                         }});
      queue("disk").wait(gathered);
      queue("disk").submit({.name = "write", .run = [] {}}).wait();
      gathered.wait();
    });
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0 waits for rank 1 in barrier #1 of lane 1 (unshard)"),
                             HasSubstr("rank 1 waits for rank 0 in all_gather #1 [i64 x 1,1]")));
  });
}

// Rank 0 misses rank 1 too, which is in no call until the others have raised.
TEST_P(WaitCircles, ARankThatIsNotThereYetHidesNone) {
  SharedFlag raised;
  GetParam().run(3, {}, [&](ProcessGroup& world, int rank) {
    const auto odd = world.subgroup(rank == 1 ? std::vector{1} : std::vector{0, 2}, "dp");
    if (rank == 1) raised.wait();
    const std::string error = error_of([&] { (rank == 2 ? *odd : world).host().barrier(); });
    raised.set();
    EXPECT_THAT(
        error, AllOf(HasSubstr("the ranks 0, 2 wait for each other"), HasSubstr("rank 0 waits for rank 2 in barrier #"),
                     HasSubstr("rank 2 waits for rank 0 in barrier #1 of ranks 0,2")));
  });
}

// ---- no false alarms ----

/// Raises the flag when a rank has waited for many looks, or raises.
void run_patiently(const GroupKind& kind, const std::function<void(ProcessGroup&, int, SharedFlag& passed)>& body) {
  SharedFlag passed;
  const WaitNotice notice{.after = 15 * kLook, .say = [&](const std::string& text) {
                            EXPECT_EQ(text.find("circle"), text.npos) << text;
                            passed.set();
                          }};
  kind.run(2, notice, [&](ProcessGroup& world, int rank) {
    try {
      body(world, rank, passed);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
      passed.set();
    }
  });
  EXPECT_TRUE(passed.is_set());
}

TEST_P(WaitCircles, AQueueThatReadsADiskIsInNone) {
  // Rank 0's thread waits for its gather, for which rank 1's comes after a disk; and rank 1's thread for rank 0's.
  for (const bool on_own_queue : {true, false})
    run_patiently(GetParam(), [&](ProcessGroup& world, int rank, SharedFlag& passed) {
      HostGroup& lane = world.host().lane(kGatherQueue);
      const auto read = [&] { passed.wait(); };
      if (rank == 1 && !on_own_queue) queue(kGatherQueue).wait(queue("disk").submit({.name = "read", .run = read}));
      const Event event = queue(kGatherQueue).submit({.name = "unshard", .run = [&] {
                                                        if (rank == 1 && on_own_queue) read();
                                                        lane.barrier();
                                                      }});
      if (rank == 0) event.wait();
      gather_text(world, "here");
      event.wait();
    });
}

TEST_P(WaitCircles, AThreadOfTheUsersWithAGroupOfItsOwnIsInNone) {
  // Rank 0's thread waits for rank 1's, which waits for its user's thread, which waits for that of rank 0.
  run_patiently(GetParam(), [](ProcessGroup& world, int rank, SharedFlag& passed) {
    const std::vector<int> both{0, 1};
    const auto log = world.subgroup(both, "log");
    std::string error;
    std::thread user([&] {
      error = error_of([&] {
        if (rank == 0) passed.wait();
        log->host().barrier();
      });
    });
    if (rank == 1) user.join();
    const std::string own = error_of([&] { world.host().barrier(); });
    if (rank == 0) user.join();
    EXPECT_THAT(own, HasSubstr("no CommError"));
    EXPECT_THAT(error, HasSubstr("no CommError"));
  });
}

TEST_P(WaitCircles, ARankThatComputesIsInNone) {
  run_patiently(GetParam(), [](ProcessGroup& world, int rank, SharedFlag& passed) {
    HostGroup& lane = world.host().lane(kGatherQueue);
    const Event event = queue(kGatherQueue).submit({.name = "unshard", .run = [&] { lane.barrier(); }});
    if (rank == 0) passed.wait();  // it computes, while its queue waits for rank 1's, which waits for nobody
    gather_text(world, "here");
    event.wait();
  });
}

TEST_P(WaitCircles, ACallOnASlowLinkIsInNone) {
  run_patiently(GetParam(), [](ProcessGroup& world, int rank, SharedFlag&) {
    const std::vector<int> both{0, 1};
    const auto slow = world.subgroup(both, "dp");
    const double seconds = std::chrono::duration<double>(20 * kLook).count();
    if (rank == 0) slow->host().shape_link({.bytes_per_second = 1e9, .seconds = seconds});
    const Event event =
        queue(kGatherQueue)
            .submit({.name = "unshard", .run = [&] {
                       float both_halves[2] = {};
                       const std::vector<std::int64_t> ones{1, 1};
                       slow->host().lane(kGatherQueue).all_gather({in_place(both_halves, DType::f32, ones)});
                     }});
    if (rank == 0) event.wait();  // for the link, while rank 1 waits
    gather_text(world, "here");
    event.wait();
  });
}

TEST(WaitCircle, ARankThatIsStoppedInACallThatIsOverIsInNone) {
  // Rank 1 sleeps for rank 0 and is stopped; rank 0 comes, and goes on to wait for rank 1.
  SharedFlag is_asleep;
  const std::vector<RankEnd> ends = fork_ranks(2, [&](Store& store, int rank) {
    Clock::time_point start;
    bool is_stopped = false;
    pid_t peer = 0;
    const auto say = [&](const std::string& text) {
      if (text.find(" in barrier #") == text.npos) return;
      if (rank == 1) return is_asleep.set();
      if (is_stopped && Clock::now() - start > 20 * kLook) ::kill(peer, SIGCONT);
    };
    store.set(std::to_string(rank), std::to_string(::getpid()));
    const auto group =
        make_shm_group(store, rank, 2, {.look = kLook, .notice = {.after = rank == 1 ? 1ms : 8ms, .say = say}});
    if (rank == 0) {
      peer = static_cast<pid_t>(std::stol(store.get("1", 30s)));
      is_asleep.wait();
      ::kill(peer, SIGSTOP);
      is_stopped = true;
      start = Clock::now();
    }
    try {
      for (int i = 0; i < 3; ++i) group->host().barrier();
    } catch (...) {
      if (rank == 0) ::kill(peer, SIGCONT);
      throw;
    }
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

}  // namespace
}  // namespace sherd::testing
