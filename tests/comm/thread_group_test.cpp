// The thread group's own promises, and the helper that most tests use.
#include "runtime/comm/board/thread_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "runtime/comm/group/host_group.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

TEST(ThreadGroup, SizesOutOfRangeAreRefused) {
  EXPECT_THROW(make_thread_groups(0), Error);
  EXPECT_THROW(make_thread_groups(100000), Error);
}

TEST(ThreadGroup, GroupsAreIndependent) {
  const std::vector<std::shared_ptr<ProcessGroup>> one = make_thread_groups(1), other = make_thread_groups(1);
  one[0]->abort("stop");
  EXPECT_THROW(one[0]->host().barrier(), CommError);
  EXPECT_NO_THROW(other[0]->host().barrier());
}

TEST(ThreadGroup, MoreRanksThanCoresMakeProgress) {
  run_ranks(24, [](const std::shared_ptr<ProcessGroup>& group) {
    for (int i = 0; i < 20; ++i) {
      std::int64_t x = group->rank();
      group->host().all_reduce({in_place(&x, DType::i64, 1)}, {});
      ASSERT_EQ(x, 24 * 23 / 2);
    }
  });
}

// Rank 1 has nothing to read, so it waits while rank 0 still copies from its tensor. When the group fails there, the
// tensor must stay until the copy is done: without that this test reads unmapped memory.
TEST(ThreadGroup, TensorsOutliveTheirReadersWhenTheGroupFails) {
  constexpr std::int64_t kCount = 2'000'000;
  std::array<std::atomic<int>, 10> num_entered{};
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    const std::vector<std::int64_t> counts{0, kCount};
    for (std::size_t round = 0; round < num_entered.size(); ++round) {
      std::thread aborter;
      if (group->rank() == 1) {
        aborter = std::thread([&, round] {
          while (num_entered[round] < 2) std::this_thread::yield();
          // The instant is varied, not ordered: every one must be safe.
          const auto instant = std::chrono::steady_clock::now() + std::chrono::microseconds(40 * round);
          while (std::chrono::steady_clock::now() < instant) continue;
          group->abort("enough");
        });
      }
      const auto gather = [&] {
        const auto data = std::make_unique<float[]>(kCount);
        const CollectivePart part = in_place(data.get(), DType::f32, counts);
        num_entered[round] += 1;
        group->host().all_gather({part});
        for (;;) group->host().barrier();
      };
      // The abort comes during the gather or after it; the barriers never end without it.
      EXPECT_THROW(gather(), CommError);
      if (aborter.joinable()) aborter.join();
      group->reset();
    }
  });
}

TEST(RunRanks, RethrowsTheErrorThatStartedIt) {
  try {
    run_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
      if (group->rank() == 2) throw std::logic_error("the real reason");
      group->host().barrier();
    });
    FAIL() << "the error of rank 2 was swallowed";
  } catch (const std::logic_error& error) { EXPECT_STREQ(error.what(), "the real reason"); }
}

}  // namespace
}  // namespace sherd::testing
