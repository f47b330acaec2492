#include "runtime/cpu/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <semaphore>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/os/allowed_cpus.h"
#include "runtime/tensor/error.h"
#include "tests/support/threads.h"

namespace sherd {
namespace {

using testing::Threads;

TEST(Parallel, EveryElementOnceInChunksCutBySizeOnly) {
  for (int count : {1, 2, 3}) {
    const Threads scope(count);
    for (std::int64_t n : {0, 1, 7, 64, 65, 1000}) {
      for (std::int64_t grain : {1, 7, 64, 5000}) {
        std::vector<int> visits(static_cast<std::size_t>(n));
        std::vector<std::int64_t> ends(static_cast<std::size_t>(num_chunks(n, grain)), -1);
        parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
          ASSERT_EQ(begin % grain, 0);
          ends[static_cast<std::size_t>(begin / grain)] = end;
          for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
        });
        for (int v : visits) ASSERT_EQ(v, 1) << "n " << n << " grain " << grain << " threads " << count;
        for (std::size_t c = 0; c < ends.size(); ++c)
          ASSERT_EQ(ends[c], std::min(n, (static_cast<std::int64_t>(c) + 1) * grain));
      }
    }
  }
}

TEST(Parallel, SumCombinedInChunkOrderHasTheSameBitsOnAnyNumberOfThreads) {
  std::vector<float> x(100'003);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1.0f / static_cast<float>(i + 1);
  const auto sum = [&x] {
    const auto n = static_cast<std::int64_t>(x.size());
    std::vector<float> partial(static_cast<std::size_t>(num_chunks(n, 1024)));
    parallel_for(n, 1024, [&](std::int64_t begin, std::int64_t end) {
      float s = 0;
      for (std::int64_t i = begin; i < end; ++i) s += x[static_cast<std::size_t>(i)];
      partial[static_cast<std::size_t>(begin / 1024)] = s;
    });
    float total = 0;
    for (float p : partial) total += p;
    return total;
  };
  const float expected = sum();
  for (int count : {2, 3, 5}) {
    const Threads scope(count);
    EXPECT_EQ(sum(), expected) << count << " threads";
  }
}

TEST(Parallel, TwoChunksRunAtTheSameTime) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one core";
  const Threads scope(2);
  // Each chunk waits for the other: this ends only if both run at once. (A real body must not block.)
  std::binary_semaphore first{0}, second{0};
  parallel_for(2, 1, [&](std::int64_t begin, std::int64_t) {
    (begin == 0 ? first : second).release();
    (begin == 0 ? second : first).acquire();
  });
}

TEST(Parallel, OneThreadRunsInOrderOnTheCaller) {
  std::vector<std::int64_t> begins;
  parallel_for(10, 3, [&](std::int64_t begin, std::int64_t) { begins.push_back(begin); });
  EXPECT_EQ(begins, (std::vector<std::int64_t>{0, 3, 6, 9}));
}

TEST(Parallel, NestedLoopRunsOnTheThreadOfItsBody) {
  const Threads scope(3);
  std::vector<int> inner(6 * 8);
  std::atomic<bool> moved = false;
  parallel_for(6, 1, [&](std::int64_t outer, std::int64_t) {
    const auto here = std::this_thread::get_id();
    parallel_for(8, 1, [&, here](std::int64_t i, std::int64_t) {
      if (std::this_thread::get_id() != here) moved = true;
      ++inner[static_cast<std::size_t>(outer * 8 + i)];
    });
  });
  EXPECT_FALSE(moved);
  for (int v : inner) EXPECT_EQ(v, 1);
}

TEST(Parallel, ExceptionOfABodyReachesTheCallerAndTheNextLoopWorks) {
  for (int count : {1, 2, 3}) {
    const Threads scope(count);
    for (std::int64_t bad : {0, 50, 99}) {
      try {
        parallel_for(100, 1, [bad](std::int64_t begin, std::int64_t) {
          if (begin == bad) fail("chunk {} is bad", begin);
        });
        FAIL() << "no exception";
      } catch (const Error& error) { EXPECT_EQ(error.message(), fmt::format("chunk {} is bad", bad)); }
      std::atomic<int> done = 0;
      parallel_for(100, 1, [&](std::int64_t, std::int64_t) { ++done; });
      EXPECT_EQ(done, 100);
    }
  }
}

TEST(Parallel, SettingBelongsToTheThreadAndIsChecked) {
  const Threads scope(3);
  EXPECT_EQ(threads(), 3);
  int elsewhere = 0;
  std::thread([&] { elsewhere = threads(); }).join();
  EXPECT_EQ(elsewhere, 1);
  EXPECT_THROW(set_threads(0), Error);
  EXPECT_THROW(set_threads(kMaxThreads + 1), Error) << "oneTBB crashes when it is asked for a billion";
  EXPECT_EQ(threads(), 3);
  EXPECT_THROW(parallel_for(2, 2, [](std::int64_t, std::int64_t) { fail("one chunk, on the caller"); }), Error);
}

TEST(Parallel, RanksThatAreThreadsHavePoolsOfTheirOwn) {
  std::atomic<std::int64_t> total = 0;
  std::vector<std::thread> ranks;
  for (int r = 0; r < 3; ++r)
    ranks.emplace_back([&] {
      set_threads(2);
      for (int round = 0; round < 200; ++round)
        parallel_for(16, 1, [&](std::int64_t begin, std::int64_t end) { total += end - begin; });
    });
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(total, 3 * 200 * 16);
}

// The pool that runs under ThreadSanitizer is tested in every build.
TEST(PlainPool, RunsEveryChunkOnceAndSpreadsThem) {
  for (int count : {1, 2, 4}) {
    const auto pool = make_plain_pool(count);
    for (std::int64_t chunks : {0, 1, 2, 3, 100}) {
      std::vector<int> visits(static_cast<std::size_t>(chunks));
      std::vector<std::thread::id> owners(static_cast<std::size_t>(chunks));
      pool->run(chunks, ChunkBody([&](std::int64_t i) {
                  ++visits[static_cast<std::size_t>(i)];
                  owners[static_cast<std::size_t>(i)] = std::this_thread::get_id();
                }));
      for (int v : visits) ASSERT_EQ(v, 1);
      const std::set<std::thread::id> distinct(owners.begin(), owners.end());
      EXPECT_EQ(static_cast<std::int64_t>(distinct.size()), std::min<std::int64_t>(chunks, count));
    }
  }
}

TEST(PlainPool, RethrowsFromAnyThreadAndStaysUsable) {
  const auto pool = make_plain_pool(3);
  for (std::int64_t bad = 0; bad < 6; ++bad) {
    EXPECT_THROW(pool->run(6, ChunkBody([bad](std::int64_t i) { check(i != bad, "chunk {}", i); })), Error);
    std::atomic<int> done = 0;
    pool->run(6, ChunkBody([&done](std::int64_t) { ++done; }));
    EXPECT_EQ(done, 6);
  }
}

}  // namespace
}  // namespace sherd
