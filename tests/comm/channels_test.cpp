// Channels: independent lanes of one group that fail together. Oracle: closed forms, and the text of errors on every
// rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "runtime/comm/group/channels.h"
#include "tests/comm/backends.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

/// Sum over ranks of `x` through any channel.
std::int64_t sum(HostGroup& channel, std::int64_t x) {
  const FlatPart part{&x, DType::i64, 1};
  channel.all_reduce(std::span(&part, 1), {});
  return x;
}

class Channels : public ::testing::TestWithParam<Backend> {
 protected:
  void run(int ranks, const RankBody& body) const {
    for (const std::string& message : GetParam().run(ranks, body)) EXPECT_EQ(message, "");
  }
};
INSTANTIATE_TEST_SUITE_P(Groups, Channels, ::testing::ValuesIn(all_backends()),
                         [](const auto& param) { return param.param.name; });

TEST_P(Channels, BelongToQueues) {
  run(2, [](HostGroup& group) {
    EXPECT_EQ(&channel_of(group, "gather"), &group.channel(1));
    EXPECT_EQ(&channel_of(group, kReduceQueue), &group.channel(2));
    EXPECT_EQ(&channel_of(group, "collective"), &group.channel(3));
    EXPECT_EQ(&channel_of(group, "experts"), &group.channel(5)) << "others by their first use";
    EXPECT_EQ(&channel_of(group, kReplicateQueue), &group.channel(4));
    EXPECT_EQ(&channel_of(group, "experts"), &group.channel(5));
    expect_error([&] { channel_of(group, "disk"); },
                 {"\"disk\" cannot communicate", "5 lanes", "gather, reduce, collective, replicate, experts"});
  });
}

TEST_P(Channels, TheFirstIsTheGroupAndOthersKnowTheirRank) {
  run(2, [](HostGroup& group) {
    EXPECT_EQ(&group.channel(0), &group);
    EXPECT_EQ(&group.channel(1).channel(0), &group);
    for (int i = 0; i < HostGroup::kNumChannels; ++i) {
      EXPECT_EQ(group.channel(i).rank(), group.rank());
      EXPECT_EQ(group.channel(i).size(), 2);
      EXPECT_EQ(group.channel(i).kind(), group.kind());
    }
    EXPECT_THROW(group.channel(-1), Error);
    EXPECT_THROW(group.channel(HostGroup::kNumChannels), Error);
  });
}

// Rank 0 uses the channels in one order, rank 1 in the other: only possible if they do not wait for each other.
TEST_P(Channels, F56_DoNotWaitForEachOther) {
  run(2, [](HostGroup& group) {
    for (int round = 0; round < 50; ++round) {
      std::thread other([&] { EXPECT_EQ(sum(group.channel(1), group.rank() + round), 1 + 2 * round); });
      if (group.rank() == 0) other.join();
      EXPECT_EQ(sum(group.channel(2), group.rank()), 1);
      if (group.rank() == 1) other.join();
    }
    EXPECT_EQ(group.counts().all_reduce.calls, 100);
    EXPECT_EQ(group.channel(1).counts().all_reduce.calls, 50);
    EXPECT_EQ(group.channel(3).counts().all_reduce.calls, 0);
  });
}

TEST_P(Channels, MoveLargeDataAtTheSameTime) {
  run(3, [](HostGroup& group) {
    constexpr std::int64_t kCount = 50'000;
    const auto gather = [&](int channel) {
      std::vector<std::int64_t> data(3 * kCount), counts(3, kCount);
      for (int round = 0; round < 5; ++round) {
        std::fill_n(data.begin() + group.rank() * kCount, kCount, group.rank() * 100 + channel * 10 + round);
        const GatherPart part{data.data(), DType::i64, counts};
        group.channel(channel).all_gather(std::span(&part, 1));
        for (int rank = 0; rank < 3; ++rank)
          EXPECT_EQ(std::count(data.begin() + rank * kCount, data.begin() + (rank + 1) * kCount,
                               rank * 100 + channel * 10 + round),
                    kCount);
      }
    };
    std::vector<std::thread> threads;
    for (int channel = 1; channel < HostGroup::kNumChannels; ++channel) threads.emplace_back(gather, channel);
    gather(0);
    for (std::thread& thread : threads) thread.join();
  });
}

// Only rank 0 comes to channel 1, so it waits there until the mistake in channel 0.
TEST_P(Channels, AMistakeInOneWakesTheOthers) {
  run(2, [](HostGroup& group) {
    const std::string text = "rank 0 calls barrier #1, rank 1 calls all_reduce #1 [i64 x 1 sum]";
    std::thread stream;
    if (group.rank() == 0)
      stream = std::thread([&] { EXPECT_THAT(error_of([&] { group.channel(1).barrier(); }), HasSubstr(text)); });
    EXPECT_THAT(error_of([&] { group.rank() == 0 ? group.barrier() : (void)sum(group, 1); }), HasSubstr(text));
    if (stream.joinable()) stream.join();
    EXPECT_THAT(error_of([&] { group.channel(2).barrier(); }), HasSubstr(text));
  });
}

TEST_P(Channels, AbortWakesAWaitingChannelAndResetServesAll) {
  run(2, [](HostGroup& group) {
    for (int round = 0; round < 10; ++round) {
      std::string of_stream;
      std::thread stream([&] {
        of_stream = error_of([&] {
          for (;;) group.channel(1 + round % 3).barrier();
        });
      });
      if (group.rank() == round % 2) group.channel(2).abort(fmt::format("round {}", round));
      stream.join();
      EXPECT_THAT(of_stream, HasSubstr(fmt::format("aborted the group: round {}", round)));
      group.reset();
      for (int i = 0; i < HostGroup::kNumChannels; ++i) EXPECT_EQ(sum(group.channel(i), 1), 2);
    }
    EXPECT_THROW(group.channel(1).reset(), Error);
  });
}

// Rank 0 waits in channels 0 and 1, rank 1 in 2 and 3: the report shows all four.
TEST_P(Channels, ADeadlockAcrossChannelsShowsTheCallsOfAll) {
  SharedFlag is_coming;
  run(2, [&](HostGroup& group) {
    const int first = group.rank() == 0 ? 0 : 2;
    if (group.rank() == 0) group.set_deadline(std::chrono::milliseconds(300));
    group.channel(first + 1).set_deadline(std::chrono::seconds(30));
    std::thread stream([&] { error_of([&] { group.channel(first + 1).barrier(); }); });
    if (group.rank() == 1) is_coming.set();
    if (group.rank() == 0) is_coming.wait();
    const std::string error = error_of([&] { group.channel(first).barrier(); });
    stream.join();
    EXPECT_THAT(error, HasSubstr("in barrier #1 (deadline 0.3 s), also in barrier #1 of channel 1, waiting for rank 1; "
                                 "not there: rank 1 (outside any collective of this group, its last call: none"));
    EXPECT_THAT(error, AllOf(HasSubstr("also in barrier #1 of channel 2, waiting for rank 0"),
                             HasSubstr("also in barrier #1 of channel 3, waiting for rank 0")));
  });
}

TEST_P(Channels, DifferentCallsNameTheChannel) {
  run(2, [](HostGroup& group) {
    const std::string error =
        error_of([&] { group.rank() == 0 ? group.channel(1).barrier() : (void)sum(group.channel(1), 1); });
    EXPECT_THAT(error, HasSubstr("rank 0 calls barrier #1 of channel 1, rank 1 calls all_reduce #1 of channel 1 [i64"));
  });
}

// Rank 0's queue waits for rank 1, which dies; rank 0 itself is outside.
TEST_P(Channels, ARankThatLeavesIsNamedInAChannel) {
  const auto messages = GetParam().run(2, [](HostGroup& group) {
    if (group.rank() == 0) group.channel(1).barrier();
  });
  EXPECT_THAT(messages[0], AllOf(HasSubstr("rank 1"), HasSubstr("has left the group while rank 0 waits for it in "
                                                                "barrier #1 of channel 1")));
}

}  // namespace
}  // namespace sherd::testing
