// The table on the groups of ghosts. Oracle: what a group of threads counts for the same case.
#include <gtest/gtest.h>

#include "runtime/comm/group/ghost_group.h"
#include "runtime/exec/context.h"
#include "tests/comm/conformance/check_case.h"
#include "tests/comm/conformance/engines.h"

namespace sherd::testing {
namespace {

constexpr RankOptions kGhostRank{.ghost = true};

TEST(GhostConformance, IssuedCasesCountAsThoseOfRanksThatAreThere) {
  const Engine threads = host_engines().front();
  const std::vector<CollectiveCase> cases = pairwise_cases(threads.worlds);
  for (const int ranks : threads.worlds) {
    const auto messages = threads.run(ranks, [&](ProcessGroup& group, Device device) {
      for (const CollectiveCase& c : cases) {
        if (c.ranks != ranks) continue;
        const CommCounts before = group.host().counts();
        if (!check_case(group, c, device)) return;
        RankContext::current().drain_queues();
        CommCounts real = group.host().counts();
        real -= before;
        const bool receives = c.op == comm::CommOp::send && group.rank() % 2 == 1;
        const RankScope rank("", kGhostRank);
        check_issued_by_ghost(*make_ghost_group(group.rank(), ranks), c, real.of(receives ? comm::CommOp::recv : c.op));
      }
    });
    for (const std::string& message : messages) EXPECT_EQ(message, "") << ranks << " ranks";
  }
}

TEST(GhostConformance, WhatNeedsNoPeersIsAnsweredAndTheRestRefused) {
  const int worlds[] = {2, 3, 4, 7};
  const RankScope rank("", kGhostRank);
  for (const CollectiveCase& c : pairwise_cases(worlds))
    for (const int r : {0, c.ranks - 1}) check_run_by_ghost(*make_ghost_group(r, c.ranks), c);
}

}  // namespace
}  // namespace sherd::testing
