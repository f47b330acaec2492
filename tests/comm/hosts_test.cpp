// How many hosts there are, from what launchers tell each rank.
#include "runtime/comm/job/hosts.h"

#include <gtest/gtest.h>

#include <atomic>
#include <utility>
#include <vector>

#include "runtime/os/host_name.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

/// The ranks of a launcher that fills hosts one after the other.
std::vector<RankInfo> ranks_on(const std::vector<int>& hosts) {
  std::vector<RankInfo> ranks;
  for (const int count : hosts)
    for (int local = 0; local < count; ++local) {
      RankInfo& info = ranks.emplace_back();
      info.rank = static_cast<int>(ranks.size()) - 1;
      info.local_rank = local;
      info.local_world_size = count;
    }
  for (RankInfo& info : ranks) info.world_size = static_cast<int>(ranks.size());
  return ranks;
}

TEST(CountHosts, IsTheRanksOverThoseOfAHost) {
  EXPECT_EQ(count_hosts(ranks_on({1})), 1);
  EXPECT_EQ(count_hosts(ranks_on({4})), 1);
  EXPECT_EQ(count_hosts(ranks_on({4, 4})), 2);
  EXPECT_EQ(count_hosts(ranks_on({1, 1, 1})), 3);
}

TEST(CountHosts, RanksThatNoLauncherHasStartedAreOnOne) {
  EXPECT_EQ(count_hosts(std::vector<RankInfo>(4)), 1) << "threads without a launcher";
  std::vector<RankInfo> threads(4, ranks_on({2, 2})[0]);
  EXPECT_EQ(count_hosts(threads), 1) << "threads of rank 0's process";
}

TEST(CountHosts, UnevenHostsAreNamed) {
  expect_error([] { count_hosts(ranks_on({3, 1})); },
               {"different numbers of ranks", "of 4 ranks, 3 are on the host of rank 0, 1 on that of rank 3"});
  expect_error([] { count_hosts(ranks_on({2, 4})); }, {"2 are on the host of rank 0, 4 on that of rank 2"});
  std::vector<RankInfo> lost = ranks_on({2, 2, 1});
  lost[4].local_world_size = 2;  // its neighbour is missing
  expect_error([&] { count_hosts(lost); }, {"5 ranks cannot lie on hosts of 2 each"});
}

TEST(CountHosts, RanksInAnotherOrderAreNamed) {
  std::vector<RankInfo> ranks = ranks_on({2, 2});
  std::swap(ranks[1].local_rank, ranks[2].local_rank);  // as dealt out to the hosts in turns
  expect_error([&] { count_hosts(ranks); }, {"not numbered host by host", "rank 1 is number 0 of the 2 on its host"});
}

TEST(OtherHosts, AreThereWhereALauncherSaysSo) {
  for (RankInfo info : ranks_on({2, 1})) {
    info.source = "Flux";
    EXPECT_TRUE(has_other_hosts(info));
    info.description = "Flux says so (FLUX_JOB_NNODES)";
    info.store_host = "node0";
    info.store_port = 1;
    expect_error(
        [&] { connect_store(info, std::chrono::seconds(0)); },
        {fmt::format("rank {} of 3 runs on host {} with {} of them", info.rank, host_name(), info.local_world_size),
         "SHERD_SECRET is not set", "openssl rand -hex 16", "(Flux says so (FLUX_JOB_NNODES))"});
  }
  for (const RankInfo& info : ranks_on({3})) EXPECT_FALSE(has_other_hosts(info));
  EXPECT_FALSE(has_other_hosts(RankInfo{}));
  RankInfo divided = ranks_on({2, 2})[3];
  divided.source = "sherd run";
  EXPECT_FALSE(has_other_hosts(divided)) << "one host, divided by hand to try strategies";
}

TEST(CountHosts, EveryRankHearsTheSame) {
  const std::vector<RankInfo> even = ranks_on({2, 2}), uneven = ranks_on({3, 1});
  std::atomic<int> errors = 0;
  run_ranks(4, [&](const std::shared_ptr<ProcessGroup>& group) {
    const auto rank = static_cast<std::size_t>(group->rank());
    EXPECT_EQ(count_hosts(*group, even[rank]), 2);
    expect_error([&] { count_hosts(*group, uneven[rank]); }, {"3 are on the host of rank 0"});
    ++errors;
  });
  EXPECT_EQ(errors, 4);
}

}  // namespace
}  // namespace sherd::testing
