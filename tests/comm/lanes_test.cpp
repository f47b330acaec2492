// Independent lanes of one group that fail together. Oracle: closed forms, and the text of errors on every
// rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "runtime/comm/group/lanes.h"
#include "tests/comm/backends.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

/// Sum over ranks of `x` through any lane.
std::int64_t sum(HostGroup& lane, std::int64_t x) {
  lane.all_reduce({in_place(&x, DType::i64, 1)}, {});
  return x;
}

class Lanes : public OnAllBackends {};
INSTANTIATE_TEST_SUITE_P(Groups, Lanes, ::testing::ValuesIn(all_backends()),
                         [](const auto& param) { return param.param.name; });

TEST_P(Lanes, BelongToQueues) {
  run(2, [](HostGroup& group) {
    EXPECT_EQ(&lane_of(group, "gather"), &group.lane(1));
    EXPECT_EQ(&lane_of(group, kReduceQueue), &group.lane(2));
    EXPECT_EQ(&lane_of(group, "collective"), &group.lane(3));
    EXPECT_EQ(&lane_of(group, "experts"), &group.lane(5)) << "others by their first use";
    EXPECT_EQ(&lane_of(group, kReplicateQueue), &group.lane(4));
    EXPECT_EQ(&lane_of(group, "experts"), &group.lane(5));
    expect_error([&] { lane_of(group, "disk"); },
                 {"\"disk\" cannot communicate", "5 lanes", "gather, reduce, collective, replicate, experts"});
  });
}

TEST_P(Lanes, TheFirstIsTheGroupAndOthersKnowTheirRank) {
  run(2, [](HostGroup& group) {
    EXPECT_EQ(&group.lane(0), &group);
    EXPECT_EQ(&group.lane(1).lane(0), &group);
    for (int i = 0; i < HostGroup::kNumLanes; ++i) {
      EXPECT_EQ(group.lane(i).rank(), group.rank());
      EXPECT_EQ(group.lane(i).size(), 2);
      EXPECT_EQ(group.lane(i).kind(), group.kind());
    }
    EXPECT_THROW(group.lane(-1), Error);
    EXPECT_THROW(group.lane(HostGroup::kNumLanes), Error);
  });
}

// Rank 0 uses the lanes in one order, rank 1 in the other: only possible if they do not wait for each other.
TEST_P(Lanes, F56_DoNotWaitForEachOther) {
  run(2, [](HostGroup& group) {
    for (int round = 0; round < 50; ++round) {
      std::thread other([&] { EXPECT_EQ(sum(group.lane(1), group.rank() + round), 1 + 2 * round); });
      if (group.rank() == 0) other.join();
      EXPECT_EQ(sum(group.lane(2), group.rank()), 1);
      if (group.rank() == 1) other.join();
    }
    EXPECT_EQ(group.counts().all_reduce.calls, 100);
    EXPECT_EQ(group.lane(1).counts().all_reduce.calls, 50);
    EXPECT_EQ(group.lane(3).counts().all_reduce.calls, 0);
  });
}

TEST_P(Lanes, MoveLargeDataAtTheSameTime) {
  run(3, [](HostGroup& group) {
    constexpr std::int64_t kCount = 50'000;
    const auto gather = [&](int lane) {
      std::vector<std::int64_t> data(3 * kCount), counts(3, kCount);
      for (int round = 0; round < 5; ++round) {
        std::fill_n(data.begin() + group.rank() * kCount, kCount, group.rank() * 100 + lane * 10 + round);
        group.lane(lane).all_gather({in_place(data.data(), DType::i64, counts)});
        for (int rank = 0; rank < 3; ++rank)
          EXPECT_EQ(std::count(data.begin() + rank * kCount, data.begin() + (rank + 1) * kCount,
                               rank * 100 + lane * 10 + round),
                    kCount);
      }
    };
    std::vector<std::thread> threads;
    for (int lane = 1; lane < HostGroup::kNumLanes; ++lane) threads.emplace_back(gather, lane);
    gather(0);
    for (std::thread& thread : threads) thread.join();
  });
}

// Only rank 0 comes to lane 1, so it waits there until the mistake in lane 0.
TEST_P(Lanes, AMistakeInOneWakesTheOthers) {
  run(2, [](HostGroup& group) {
    const std::string text = "rank 0 calls barrier #1, rank 1 calls all_reduce #1 [i64 x 1 sum]";
    std::thread stream;
    if (group.rank() == 0)
      stream = std::thread([&] { EXPECT_THAT(error_of([&] { group.lane(1).barrier(); }), HasSubstr(text)); });
    EXPECT_THAT(error_of([&] { group.rank() == 0 ? group.barrier() : (void)sum(group, 1); }), HasSubstr(text));
    if (stream.joinable()) stream.join();
    EXPECT_THAT(error_of([&] { group.lane(2).barrier(); }), HasSubstr(text));
  });
}

TEST_P(Lanes, AbortWakesAWaitingLaneAndResetServesAll) {
  run(2, [](HostGroup& group) {
    for (int round = 0; round < 10; ++round) {
      std::string of_stream;
      std::thread stream([&] {
        of_stream = error_of([&] {
          for (;;) group.lane(1 + round % 3).barrier();
        });
      });
      if (group.rank() == round % 2) group.lane(2).abort(fmt::format("round {}", round));
      stream.join();
      EXPECT_THAT(of_stream, HasSubstr(fmt::format("aborted the group: round {}", round)));
      group.reset();
      for (int i = 0; i < HostGroup::kNumLanes; ++i) EXPECT_EQ(sum(group.lane(i), 1), 2);
    }
    EXPECT_THROW(group.lane(1).reset(), Error);
  });
}

// Rank 0 waits in lanes 0 and 1, rank 1 in 2 and 3: the report shows all four.
TEST_P(Lanes, ADeadlockAcrossLanesShowsTheCallsOfAll) {
  SharedFlag is_coming;
  run(2, [&](HostGroup& group) {
    const int first = group.rank() == 0 ? 0 : 2;
    if (group.rank() == 0) group.set_deadline(std::chrono::milliseconds(300));
    group.lane(first + 1).set_deadline(std::chrono::seconds(30));
    std::thread stream([&] { error_of([&] { group.lane(first + 1).barrier(); }); });
    if (group.rank() == 1) is_coming.set();
    if (group.rank() == 0) is_coming.wait();
    const std::string error = error_of([&] { group.lane(first).barrier(); });
    stream.join();
    EXPECT_THAT(error, HasSubstr("in barrier #1 (deadline 0.3 s), also in barrier #1 of lane 1, waiting for rank 1; "
                                 "not there: rank 1 (outside any collective of this group, its last call: none"));
    EXPECT_THAT(error, AllOf(HasSubstr("also in barrier #1 of lane 2, waiting for rank 0"),
                             HasSubstr("also in barrier #1 of lane 3, waiting for rank 0")));
  });
}

}  // namespace
}  // namespace sherd::testing
