// Collectives of devices tell who came last, by what they took on each rank. Oracle: a rank that comes late by a known
// time, when the other's device has begun.
#include <gtest/gtest.h>

#include "runtime/comm/group/lanes.h"
#include "runtime/comm/group/shared_times.h"
#include "runtime/comm/group/staged_group.h"
#include "runtime/exec/device_queue.h"
#include "runtime/exec/work_times.h"
#include "runtime/op/rows/ops.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/nccl/fake_ranks.h"
#include "tests/cuda/nccl/nccl_engine.h"
#include "tests/support/ranks.h"
#include "tests/support/thread_state.h"

namespace sherd::cuda::nccl {
namespace {

using namespace sherd::testing;  // NOLINT
using FakeTimes = FakeNccl;
using Group = std::shared_ptr<ProcessGroup>;

constexpr auto kLate = std::chrono::milliseconds(2);
constexpr int kCalls = 32;  // ranks compare after 16 and after 32

TEST_F(FakeTimes, TheRankThatComesFirstKnowsItsSkew) {
  for (const bool is_staged : {false, true})
    run_ranks(2, [&](const Group& host) {
      const Device there = device_of_rank(host->rank());
      const Group group = is_staged ? make_staged_group(host) : group_over(host);
      RankContext& rank = RankContext::current();
      const auto issue = [&] { return all_reduce(full({8}, 1.0, DType::f32, there), *group, ReduceKind::sum); };
      EXPECT_EQ(issue().to_vector<float>()[0], 2);  // what is made at first use is there
      const double before = rank.waited_skew_seconds;
      for (int call = 0; call < kCalls; ++call) {
        Tensor sum;
        if (host->rank() == 0) {
          sum = issue();
          const Event come = rank.queue(kCollectiveQueue, there).record();
          for (int look = 0; look < 200; ++look) (void)come.is_reached();  // the device works on
          host->host().barrier();
        } else {
          host->host().barrier();
          stay_busy(kLate);
          sum = issue();
        }
        EXPECT_EQ(sum.to_vector<float>()[0], 2);
      }
      host->host().barrier();
      (void)work_times();  // collects
      const double skew = rank.waited_skew_seconds - before;
      EXPECT_LE(skew, rank.waited_seconds);
      const double all = kCalls * std::chrono::duration<double>(kLate).count();
      if (host->rank() == 0) {
        EXPECT_GE(skew, all / 4) << (is_staged ? "staged" : "nccl");
      } else if (!is_staged) {  // there the other rank's queue may have no core and be late, too
        EXPECT_LE(skew, all / 8);
      }
    });
}

}  // namespace
}  // namespace sherd::cuda::nccl
