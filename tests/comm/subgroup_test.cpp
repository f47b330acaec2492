// Dividing a group. Oracle: sums over the members by hand, and the text of errors on every rank of the whole group.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "runtime/comm/board/exposed.h"
#include "runtime/comm/board/shm_group.h"
#include "runtime/exec/context.h"
#include "tests/comm/backends.h"
#include "tests/support/expect_error.h"
#include "tests/support/processes.h"

namespace sherd::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Group = std::shared_ptr<ProcessGroup>;

std::int64_t sum(HostGroup& group, std::int64_t x) {
  group.all_reduce({in_place(&x, DType::i64, 1)}, {});
  return x;
}

/// Every rank's number in the whole group, as the members see them.
std::vector<std::int64_t> members(HostGroup& group, int number) {
  std::vector<std::int64_t> data(static_cast<std::size_t>(group.size())), counts(data.size(), 1);
  data[static_cast<std::size_t>(group.rank())] = number;
  group.all_gather({in_place(data.data(), DType::i64, counts)});
  return data;
}

void all_gather_floats(HostGroup& group, std::int64_t count_per_rank) {
  std::vector<float> data(static_cast<std::size_t>(count_per_rank * group.size()));
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), count_per_rank);
  group.all_gather({in_place(data.data(), DType::f32, counts)});
}

Group divide(HostGroup& group, std::vector<int> ranks) { return group.subgroup(ranks); }

/// {0,1} and {2,3}.
Group pair_of(HostGroup& group) { return group.rank() < 2 ? divide(group, {0, 1}) : divide(group, {2, 3}); }

class Subgroups : public OnAllBackends {};
INSTANTIATE_TEST_SUITE_P(Groups, Subgroups, ::testing::ValuesIn(all_backends()),
                         [](const auto& param) { return param.param.name; });

TEST_P(Subgroups, ArePartsThatWorkAtTheSameTime) {
  for (const int ranks : {1, 2, 3, 4})
    run(ranks, [=](HostGroup& group) {
      // Even ranks and odd ranks, then all in reverse order, then everybody alone.
      std::vector<int> same;
      for (int r = group.rank() % 2; r < ranks; r += 2) same.push_back(r);
      const Group half = divide(group, same);
      EXPECT_EQ(half->size(), static_cast<int>(same.size()));
      EXPECT_EQ(half->rank(), group.rank() / 2);
      EXPECT_EQ(half->kind(), group.kind());
      EXPECT_EQ(members(half->host(), group.rank()), std::vector<std::int64_t>(same.begin(), same.end()));

      std::vector<int> reversed;
      for (int r = ranks; r-- > 0;) reversed.push_back(r);
      const Group mirror = divide(group, reversed);
      EXPECT_EQ(mirror->rank(), ranks - 1 - group.rank());
      EXPECT_EQ(members(mirror->host(), group.rank()), std::vector<std::int64_t>(reversed.begin(), reversed.end()));

      const Group alone = divide(group, {group.rank()});
      EXPECT_EQ(alone->size(), 1);
      EXPECT_EQ(sum(alone->host(), 7), 7);
      for (int round = 0; round < 20; ++round) {  // the odd ranks make more calls than the even ones
        for (int i = 0; i <= group.rank() % 2; ++i) EXPECT_EQ(sum(half->host(), 1), half->size());
        EXPECT_EQ(sum(group, 1), ranks);
      }
    });
}

TEST_P(Subgroups, OfSubgroupsAndAfterOthersAreGone) {
  run(4, [](HostGroup& group) {
    for (int round = 0; round < 3; ++round) {
      const Group three = group.rank() == 2 ? divide(group, {2}) : divide(group, {3, 0, 1});
      if (group.rank() == 2) continue;
      // In `three` the ranks 3 0 1 are 0 1 2.
      const Group two = three->rank() == 1 ? divide(three->host(), {1}) : divide(three->host(), {2, 0});
      const std::vector<std::int64_t> expected =
          group.rank() == 0 ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{1, 3};
      EXPECT_EQ(members(two->host(), group.rank()), expected);
      const Group one = divide(two->host(), {two->rank()});
      EXPECT_EQ(sum(one->host(), 3), 3);
      EXPECT_EQ(sum(three->host(), 1), 3);
    }
    EXPECT_EQ(sum(group, 1), 4);
  });
}

TEST_P(Subgroups, HaveNamesThatAllRanksShareAndNoTwoGroups) {
  run(4, [](HostGroup& group) {
    EXPECT_EQ(group.name(), "world");
    EXPECT_EQ(divide(group, {group.rank()})->name(), "group#1");
    const std::vector<int> half = {group.rank() % 2, group.rank() % 2 + 2};
    const Group dp = group.subgroup(half, "dp"), again = group.subgroup(half, "dp");
    EXPECT_EQ(dp->name(), "dp#2");
    EXPECT_EQ(again->name(), "dp#3");
    EXPECT_EQ(dp->host().lane(1).name(), "dp#2");
    EXPECT_EQ(again->subgroup(std::vector<int>{again->rank()}, "ep")->name(), "ep#3.1");
  });
}

TEST_P(Subgroups, KeepTheirLanesCountsAndLargeCallsApart) {
  run(4, [](HostGroup& group) {
    const Group pair = pair_of(group);
    const CommCounts before = group.counts();
    std::thread other([&] { all_gather_floats(pair->host().lane(1), 30'000); });
    all_gather_floats(pair->host(), 50'000);
    other.join();
    std::vector<double> data(40'000, group.rank());
    pair->host().all_reduce({in_place(data.data(), DType::f64, 40'000)}, {});
    EXPECT_EQ(data, std::vector<double>(40'000, group.rank() < 2 ? 1 : 5));
    EXPECT_EQ(pair->host().counts().all_gather.calls, 2);
    EXPECT_EQ(pair->host().lane(1).counts().all_gather.calls, 1);
    EXPECT_EQ(group.counts().all_gather.calls, before.all_gather.calls);
    EXPECT_EQ(group.counts().all_reduce.calls, before.all_reduce.calls);
    const CommCounts with_pair = counts_with_subgroups(group);
    EXPECT_EQ(with_pair.all_gather.calls, before.all_gather.calls + 2);
    EXPECT_EQ(with_pair.all_reduce.bytes, before.all_reduce.bytes + 40'000 * 8);
    EXPECT_GT(comm_times(group).total, group.counts().seconds);
  });
}

TEST_P(Subgroups, ListsThatDoNotDivideTheGroupAreRefusedOnEveryRank) {
  struct Case {
    std::vector<std::vector<int>> lists;
    std::vector<std::string_view> parts;
  };
  const Case cases[] = {
      {{{0, 1}, {1, 2}, {2}}, {"rank 0 gives the ranks 0,1", "rank 1 the ranks 1,2", "equal, in the same order"}},
      {{{0, 1}, {1, 0}, {2}}, {"rank 0 gives the ranks 0,1", "rank 1 the ranks 1,0"}},
      {{{0}, {}, {2}}, {"rank 1 gives an empty list"}},
      {{{0}, {1}, {2, 3}}, {"rank 2 gives the ranks 2,3", "0..2"}},
      {{{0}, {1, -1}, {2}}, {"rank 1 gives the ranks 1,-1", "0..2"}},
      {{{0, 0}, {1}, {2}}, {"rank 0 gives the ranks 0,0", "once"}},
      {{{0}, {2}, {2}}, {"rank 1 gives the ranks 2", "rank 1 will be in"}},
  };
  run(3, [&](HostGroup& group) {
    for (const Case& each : cases) {
      const std::vector<int>& list = each.lists[static_cast<std::size_t>(group.rank())];
      for (const std::string_view part : each.parts) expect_error([&] { group.subgroup(list); }, {part});
      EXPECT_EQ(sum(group, 1), 3) << "the group goes on";
    }
    expect_error([&] { divide(group.lane(1), {0, 1, 2}); }, {"lane 1"});
  });
}

TEST_P(Subgroups, DisagreementsNameTheCallsByTheNumbersOfTheWholeGroup) {
  run(4, [](HostGroup& group) {
    const Group odd = divide(group, group.rank() % 2 == 1 ? std::vector<int>{1, 3} : std::vector<int>{0, 2});
    const std::string error = error_of([&] {
      if (group.rank() == 1) odd->host().barrier();
      if (group.rank() == 3) sum(odd->host(), 1);
      group.barrier();
    });
    EXPECT_THAT(error, HasSubstr("rank 1 calls barrier #1 of ranks 1,3, rank 3 calls all_reduce #1 of ranks 1,3 [i64 x "
                                 "1 sum]"));
    EXPECT_THAT(error, HasSubstr(fmt::format("{} of 4, in ", group.rank())));
    group.reset();
    EXPECT_EQ(sum(odd->host(), 1), 2);
    EXPECT_EQ(sum(group, 1), 4);
  });
}

// Poison goes down, up, and sideways to a subgroup that the failing rank is not in.
TEST_P(Subgroups, FailWithTheWholeGroupAndAreResetWithIt) {
  run(4, [](HostGroup& group) {
    const Group pair = pair_of(group);
    for (int round = 0; round < 10; ++round) {
      const bool aborts_below = round % 2 == 1;
      if (group.rank() == 3) (aborts_below ? *pair : group).abort(fmt::format("round {}", round));
      const std::string error = error_of([&] {
        if (group.rank() < 2)
          for (;;) pair->host().barrier();
        for (;;) group.barrier();
      });
      EXPECT_THAT(error, HasSubstr(fmt::format("rank 3 aborted the group: round {}", round)));
      // Whichever of its groups a rank resets, it is the whole.
      (group.rank() == 0 ? *pair : group).reset();
      EXPECT_EQ(sum(pair->host(), 1), 2);
      all_gather_floats(pair->host(), 20'000);
      EXPECT_EQ(sum(group, 1), 4);
    }
    const Group later = pair_of(group);  // made after resets
    EXPECT_EQ(sum(later->host(), 1), 2);
    group.barrier();
    if (group.rank() == 0) group.abort("again");
    EXPECT_THAT(error_of([&] { sum(later->host(), 1), sum(group, 1); }), HasSubstr("again"));
    later->reset();
    EXPECT_EQ(sum(later->host(), 1), 2);
  });
}

// Ranks 0 and 3 have no subgroup in common.
TEST_P(Subgroups, AFailureElsewhereWakesWhoWaitsInASubgroup) {
  SharedFlag is_waiting;
  run(4, [&](HostGroup& group) {
    const Group pair = pair_of(group);
    if (group.rank() == 0) {
      is_waiting.set();
      EXPECT_THAT(error_of([&] { pair->host().barrier(); }), HasSubstr("rank 3 aborted the group: enough"));
    } else if (group.rank() == 3) {
      is_waiting.wait();
      pair->abort("enough");
    }
    EXPECT_THAT(error_of([&] { group.barrier(); }), HasSubstr("enough"));
  });
}

TEST_P(Subgroups, ADeadlockBetweenGroupsPrintsBothCalls) {
  SharedFlag is_there;
  run(2, [&](HostGroup& group) {
    const Group both = divide(group, {0, 1});
    std::string error;
    if (group.rank() == 0) {
      group.set_deadline(std::chrono::milliseconds(300));  // of the subgroup too
      is_there.wait();
      error = error_of([&] { both->host().barrier(); });
      group.set_deadline(std::chrono::seconds(30));
    } else {
      is_there.set();
      error = error_of([&] { sum(group, 1); });
    }
    EXPECT_THAT(error, AnyOf(AllOf(HasSubstr("in barrier #1 of ranks 0,1 (deadline 0.3 s)"),
                                   HasSubstr("not there: rank 1 (outside any collective of this group, its last call: "
                                             "none, also in all_reduce #"))));
    group.reset();
    EXPECT_EQ(sum(both->host(), 1), 2);
  });
}

TEST_P(Subgroups, ARankThatLeavesIsNamed) {
  const std::vector<std::string> messages = GetParam().run(4, [](HostGroup& group) {
    const Group pair = pair_of(group);
    if (group.rank() == 3) return;
    if (group.rank() == 2) pair->host().barrier();
    if (group.rank() < 2) group.barrier();
  });
  EXPECT_EQ(messages[3], "");
  for (const std::size_t rank : {0U, 1U, 2U})
    EXPECT_THAT(messages[rank], AllOf(HasSubstr("rank 3"), HasSubstr("has left the group")));
}

TEST_P(Subgroups, LinksAreShapedAlikeUnlessToldOtherwise) {
  run(2, [](HostGroup& group) {
    using Clock = std::chrono::steady_clock;
    group.shape_link({.bytes_per_second = 1e12, .seconds = 10e-3});
    const Group slow = divide(group, {0, 1}), fast = divide(group, {0, 1});
    fast->host().shape_link({.bytes_per_second = 1e12, .seconds = 0});
    auto start = Clock::now();
    slow->host().barrier();
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(10));
    group.shape_link({.bytes_per_second = 1e12, .seconds = 3600});
    fast->host().barrier();  // a link of its own: it would take an hour
    slow->host().barrier();
  });
}

TEST(SubgroupOfOne, IsAGroupOfOne) {
  const Group group = make_single_group();
  const Group sub = divide(group->host(), {0});
  EXPECT_EQ(sum(sub->host(), 3), 3);
  expect_error([&] { divide(group->host(), {1}); }, {"rank 0 gives the ranks 1", "0..0"});
  group->abort("stop");
  EXPECT_THROW(sub->host().barrier(), CommError);
  sub->reset();
  group->host().barrier();
}

// A process dies inside a call of its subgroup. Its partner notices; the others, who wait in other groups, are told.
TEST(ShmSubgroup, ARankKilledInsideACallIsNamedEverywhere) {
  const std::vector<RankEnd> ends = fork_ranks(4, [](Store& store, int rank) {
    const Group group = make_shm_group(store, rank, 4);
    const Group pair = pair_of(group->host());
    if (rank == 3) std::raise(SIGKILL);
    const auto start = std::chrono::steady_clock::now();
    const std::string error = error_of([&] {
      if (rank == 2) all_gather_floats(pair->host(), 10);
      if (rank == 0) pair->host().barrier();  // rank 1 is not in it
      group->host().barrier();
    });
    EXPECT_THAT(error, AllOf(HasSubstr("rank 3 (process "), HasSubstr(") died while rank ")));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    EXPECT_THROW(pair->host().barrier(), CommError);
    EXPECT_THROW(pair->reset(), CommError) << "a dead rank cannot take part in a reset";
  });
  EXPECT_EQ(ends[3].status, 128 + SIGKILL);
  for (const std::size_t rank : {0U, 1U, 2U}) EXPECT_EQ(ends[rank].status, 0) << ends[rank].message;
}

TEST(ShmSubgroup, ARankKilledWhileTheGroupIsDividedIsNamed) {
  const std::vector<RankEnd> ends = fork_ranks(3, [](Store& store, int rank) {
    const Group group = make_shm_group(store, rank, 3);
    if (rank == 1) std::raise(SIGKILL);
    EXPECT_THAT(error_of([&] { divide(group->host(), {0, 1, 2}); }), HasSubstr("rank 1 (process "));
  });
  for (const std::size_t rank : {0U, 2U}) EXPECT_EQ(ends[rank].status, 0) << ends[rank].message;
}

}  // namespace
}  // namespace sherd::testing
