// send, recv and all_to_all. Oracle: closed forms, and the text of errors on every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/comm/backends.h"

namespace sherd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void send(HostGroup& group, std::vector<float> data, int to) {
  group.send({in_place(data.data(), DType::f32, static_cast<std::int64_t>(data.size()))}, to);
}

std::vector<float> recv(HostGroup& group, std::size_t count, int from) {
  std::vector<float> data(count);
  group.recv({in_place(data.data(), DType::f32, static_cast<std::int64_t>(count))}, from);
  return data;
}

std::vector<float> numbers(std::size_t count, int first) {
  std::vector<float> data(count);
  std::iota(data.begin(), data.end(), static_cast<float>(first));
  return data;
}

class Pairs : public ::testing::TestWithParam<Backend> {
 protected:
  void run(int ranks, const RankBody& body) const {
    for (const std::string& message : GetParam().run(ranks, body)) EXPECT_EQ(message, "") << ranks << " ranks";
  }
};
INSTANTIATE_TEST_SUITE_P(Groups, Pairs, ::testing::ValuesIn(all_backends()),
                         [](const auto& param) { return param.param.name; });

// Rank 2 takes no part, and collectives in between do not disturb the numbers.
TEST_P(Pairs, MoveEverySizeInOrder) {
  run(3, [](HostGroup& group) {
    for (const std::size_t count : {0U, 1U, 1000U, 40'001U}) {
      for (int message = 0; message < 3; ++message) {
        if (group.rank() == 0) send(group, numbers(count, message), 1);
        if (group.rank() == 1) { EXPECT_EQ(recv(group, count, 0), numbers(count, message)); }
      }
      if (group.rank() == 1) send(group, numbers(count, 7), 0);
      if (group.rank() == 0) { EXPECT_EQ(recv(group, count, 1), numbers(count, 7)); }
      group.barrier();
    }
    EXPECT_EQ(group.counts().send.calls, group.rank() == 0 ? 12 : group.rank() == 1 ? 4 : 0);
    EXPECT_EQ(group.counts().recv.calls, group.rank() == 1 ? 12 : group.rank() == 0 ? 4 : 0);
  });
}

TEST_P(Pairs, MoveListsOfMixedTypes) {
  run(2, [](HostGroup& group) {
    std::vector<float> a(5000);
    std::vector<std::int64_t> b(3);
    bool c = false;
    if (group.rank() == 0) a = numbers(5000, 1), b = {4, 5, 6}, c = true;
    const std::vector<CollectivePart> parts{in_place(a.data(), DType::f32, 5000), in_place(b.data(), DType::i64, 3),
                                            in_place(&c, DType::boolean, 1)};
    if (group.rank() == 0) group.send(parts, 1);
    else group.recv(parts, 0);
    EXPECT_EQ(a, numbers(5000, 1));
    EXPECT_EQ(b, (std::vector<std::int64_t>{4, 5, 6}));
    EXPECT_TRUE(c);
  });
}

TEST_P(Pairs, ARingPassesOn) {
  run(4, [](HostGroup& group) {
    const int next = (group.rank() + 1) % 4, before = (group.rank() + 3) % 4;
    if (group.rank() == 0) {
      send(group, {1}, next);
      EXPECT_EQ(recv(group, 1, before), std::vector<float>{4});
    } else {
      send(group, {recv(group, 1, before)[0] + 1}, next);
    }
  });
}

TEST_P(Pairs, DifferentListsNameBothCalls) {
  run(2, [](HostGroup& group) {
    const std::string error = error_of([&] { group.rank() == 0 ? send(group, {1, 2}, 1) : (void)recv(group, 3, 0); });
    EXPECT_THAT(error, HasSubstr("rank 0 calls send #1 to rank 1 [f32 x 2], rank 1 calls recv #1 from rank 0 [f32 x "
                                 "3]; a send and its recv must agree in types and counts"));
    group.reset();
    if (group.rank() == 0) {
      send(group, {5}, 1);
    } else {
      EXPECT_EQ(recv(group, 1, 0), std::vector<float>{5});
    }
  });
}

TEST_P(Pairs, TwoSendsThatWaitForEachOtherAreNamed) {
  run(2, [](HostGroup& group) {
    if (group.rank() == 0) group.set_deadline(std::chrono::milliseconds(200));
    const std::string error = error_of([&] { send(group, {1}, 1 - group.rank()); });
    EXPECT_THAT(error, AllOf(HasSubstr("s in send #1 to rank 1 [f32 x 1] (deadline 0.2 s); not there: rank 1"),
                             HasSubstr("in send #1 to rank 0 [f32 x 1], waiting for rank 0")));
  });
}

TEST_P(Pairs, APeerThatLeavesIsNamed) {
  const auto messages = GetParam().run(3, [](HostGroup& group) {
    if (group.rank() == 0) recv(group, 1, 1);
  });
  EXPECT_THAT(messages[0], AllOf(HasSubstr("rank 1"), HasSubstr("has left the group while rank 0 waits for it in recv "
                                                                "#1 from rank 1 [f32 x 1]")));
}

TEST_P(Pairs, OneselfAndStrangersAreNoPeers) {
  run(2, [](HostGroup& group) {
    for (const int peer : {group.rank(), -1, 2}) {
      EXPECT_THROW(send(group, {1}, peer), Error);
      group.reset();
    }
  });
}

/// Rank s sends s * 100 + d * 10 + i to rank d, `counts(s, d)` elements.
template <class Counts>
void check_swap(HostGroup& group, Counts&& counts) {
  const int n = group.size(), me = group.rank();
  std::vector<std::int64_t> in_counts, out_counts;
  std::vector<float> in, expected;
  for (int peer = 0; peer < n; ++peer) {
    in_counts.push_back(counts(me, peer));
    out_counts.push_back(counts(peer, me));
    for (int i = 0; i < counts(me, peer); ++i) in.push_back(static_cast<float>(me * 100 + peer * 10 + i));
    for (int i = 0; i < counts(peer, me); ++i) expected.push_back(static_cast<float>(peer * 100 + me * 10 + i));
  }
  std::vector<float> out(expected.size());
  std::vector<std::int64_t> tags(static_cast<std::size_t>(n), me), seen(static_cast<std::size_t>(n), -1);
  const std::vector<std::int64_t> ones(static_cast<std::size_t>(n), 1);
  group.all_to_all(
      {{.in = {in.data()}, .out = {out.data()}, .counts = in_counts, .out_counts = out_counts},
       {.in = {tags.data()}, .out = {seen.data()}, .dtype = DType::i64, .counts = ones, .out_counts = ones}});
  EXPECT_EQ(out, expected);
  for (int peer = 0; peer < n; ++peer) EXPECT_EQ(seen[static_cast<std::size_t>(peer)], peer);
}

TEST_P(Pairs, AllToAllMovesEvenUnevenAndEmptyParts) {
  for (const int ranks : {1, 2, 3, 4}) {
    run(ranks, [](HostGroup& group) {
      check_swap(group, [](int, int) { return 3; });
      check_swap(group, [](int, int) { return 0; });
      check_swap(group, [](int from, int to) { return (from * 7 + to * 3) % 5; });
      check_swap(group, [](int from, int to) { return from == 0 && to == 1 ? 30'000 : to; });
      check_swap(group, [](int from, int to) { return 5000 + from - to; });
      EXPECT_EQ(group.counts().all_to_all.calls, 5);
    });
  }
}

TEST_P(Pairs, AllToAllNamesCountsThatDoNotFit) {
  run(2, [](HostGroup& group) {
    std::vector<float> in(8), out(8);
    const std::vector<std::int64_t> in_counts{1, 5}, out_counts{1, group.rank() == 1 ? 5 : 4};
    const std::vector<std::int64_t> from_first{group.rank() == 1 ? 4 : 1, 5};
    const CollectivePart part{.in = {in.data()},
                              .out = {out.data()},
                              .counts = in_counts,
                              .out_counts = group.rank() == 1 ? from_first : out_counts};
    const std::string error = error_of([&] { group.all_to_all({part}); });
    EXPECT_THAT(error, ::testing::AnyOf(HasSubstr("rank 0 sends 5 elements of tensor 0 to rank 1, which expects 4"),
                                        HasSubstr("rank 1 sends 1 elements of tensor 0 to rank 0, which expects 4")));
  });
}

}  // namespace
}  // namespace sherd::testing
