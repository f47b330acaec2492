// Waiting for a rank that comes late is told apart from moving data. Oracle: a rank that comes late by so much on
// purpose, once the others are seen asleep in the call.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "runtime/comm/board/exposed.h"
#include "tests/comm/backends.h"
#include "tests/support/thread_state.h"

namespace sherd::testing {
namespace {

using Call = std::function<void(HostGroup& group)>;

constexpr auto kLate = std::chrono::milliseconds(3);
// What the late rank's clock and the waiting ranks' may differ in: they have been seen asleep in the call.
constexpr double kAtLeast = 0.003;

std::vector<std::int64_t> threads_of(HostGroup& group) {
  std::vector<std::int64_t> threads(static_cast<std::size_t>(group.size())), counts(threads.size(), 1);
  threads[static_cast<std::size_t>(group.rank())] = ::gettid();
  group.all_gather({in_place(threads.data(), DType::i64, counts)});
  return threads;
}

// Runs `call` on all ranks, the last rank late.
CommTimes times_of_late_call(HostGroup& group, std::deque<SharedFlag>& begins, const Call& call) {
  const std::vector<std::int64_t> threads = threads_of(group);
  const CommTimes before = comm_times(group);
  if (group.rank() < group.size() - 1) {
    begins[static_cast<std::size_t>(group.rank())].set();
  } else {
    for (int rank = 0; rank + 1 < group.size(); ++rank) {
      begins[static_cast<std::size_t>(rank)].wait();
      await_sleep(static_cast<pid_t>(threads[static_cast<std::size_t>(rank)]));
    }
    stay_busy(kLate);
  }
  call(group);
  return comm_times(group) - before;
}

void expect_skew_of_others(int ranks, const Call& call) {
  for (const Backend& backend : all_backends()) {
    std::deque<SharedFlag> begins(static_cast<std::size_t>(ranks));
    const auto errors = backend.run(ranks, [&](HostGroup& group) {
      const CommTimes times = times_of_late_call(group, begins, call);
      const bool is_late = group.rank() == group.size() - 1;
      check(times.skew <= times.exposed, "skew {} of {} s", times.skew, times.exposed);
      if (is_late) check(times.skew == 0, "the late rank has waited {} s for others", times.skew);
      else check(times.skew >= kAtLeast, "rank {} has waited {} s for the late rank", group.rank(), times.skew);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << backend.name << ", " << ranks << " ranks";
  }
}

TEST(Skew, OfALateRankIsTheOthers) {
  for (const std::int64_t elements : {3, 40'000})  // staged, and in place where that is possible
    for (const int ranks : {2, 3})
      expect_skew_of_others(ranks, [elements](HostGroup& group) {
        std::vector<float> data(static_cast<std::size_t>(elements), 1);
        group.all_reduce({in_place(data.data(), DType::f32, elements)}, {});
      });
}

TEST(Skew, OfABroadcastFromALateRootAndOfABarrier) {
  expect_skew_of_others(3, [](HostGroup& group) {
    std::int64_t value = 0;
    group.broadcast({in_place(&value, DType::i64, 1)}, group.size() - 1);
  });
  expect_skew_of_others(3, [](HostGroup& group) { group.barrier(); });
}

TEST(Skew, OfALateSenderAndOfALateReceiver) {
  for (const int sender : {0, 1})
    expect_skew_of_others(2, [sender](HostGroup& group) {
      std::int64_t value = 7;
      const CollectivePart part = in_place(&value, DType::i64, 1);
      if (group.rank() == sender) group.send({part}, 1 - sender);
      else group.recv({part}, sender);
    });
}

TEST(Skew, TheLateRankKnowsHowLateItWas) {
  for (const Backend& backend : all_backends()) {
    std::deque<SharedFlag> begins(3);
    const auto errors = backend.run(3, [&](HostGroup& group) {
      threads_of(group);  // groups count from their first call on
      const Lateness before = lateness_of(group);
      times_of_late_call(group, begins, [](HostGroup& g) { g.barrier(); });
      Lateness lateness = lateness_of(group);
      lateness -= before;
      // The agreement on threads, in which anybody may be late, and the barrier: two very late calls more make the
      // later of these two the median.
      check(lateness.calls() == 2, "{} calls were seen", lateness.calls());
      for (int i = 0; i < 2; ++i) lateness.add(60'000'000'000);
      lateness.add(0);
      if (group.rank() == 2)
        check(lateness.median_seconds() >= 0.87 * kAtLeast, "{} s late", lateness.median_seconds());
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << backend.name;
  }
}

TEST(Lateness, AMedianIsRightToAnEighth) {
  EXPECT_EQ(Lateness().median_seconds(), 0);
  for (double nanoseconds = 1; nanoseconds < 1e12; nanoseconds *= 1.7) {
    Lateness lateness;
    for (const double factor : {0.01, 0.5, 1.0, 3.0, 100.0})
      lateness.add(static_cast<std::int64_t>(std::ceil(factor * nanoseconds)));
    EXPECT_EQ(lateness.calls(), 5);
    EXPECT_NEAR(lateness.median_seconds(), std::ceil(nanoseconds) * 1e-9, 0.13 * std::ceil(nanoseconds) * 1e-9);
  }
  Lateness mostly_first;
  for (const std::int64_t late : {0, 0, 5}) mostly_first.add(late);
  EXPECT_EQ(mostly_first.median_seconds(), 0);
}

TEST(Skew, OneRankHasNone) {
  const auto group = make_single_group();
  const CommTimes before = comm_times(*group);
  group->host().barrier();
  EXPECT_EQ((comm_times(*group) - before).skew, 0);
}

}  // namespace
}  // namespace sherd::testing
