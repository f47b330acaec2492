// Ranks that call collectives of two communicators in two orders, which NCCL does not notice: the host's group names
// them. Oracle: the orders that the test makes; that NCCL says nothing is shown by the groups on which it may.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/comm/group/host_group.h"
#include "runtime/cuda/nccl/call_order.h"
#include "runtime/exec/context.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/nccl/failing_calls.h"
#include "tests/cuda/nccl/fake_ranks.h"
#include "tests/cuda/nccl/nccl_engine.h"
#include "tests/support/ranks.h"

namespace sherd::cuda::nccl {
namespace {

using namespace sherd::testing;  // NOLINT
using FakeCallOrder = FakeNccl;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A rank may have made groups in between that others are not in, and calls of these do not count.
TEST(CallOrder, PlacesAreThoseOfTheGroupAndOfThoseAroundIt) {
  CallOrder one, other;
  one.add({0, 1, 2, 3}), other.add({0, 1, 2, 3});
  one.add({0}), other.add({1, 3});
  one.add({0, 2}), other.add({3, 1});
  one.add({1, 0}), other.add({1, 0});
  EXPECT_EQ(one.next(0), "call 1 over all queues");
  EXPECT_EQ(other.next(0), "call 1 over all queues");
  one.next(1), one.next(2), other.next(1), other.next(1), other.next(2);
  EXPECT_EQ(one.next(3), "call 1 over all queues, behind 1 of wider groups");
  EXPECT_EQ(other.next(3), "call 1 over all queues, behind 1 of wider groups");
  EXPECT_EQ(other.next(2), "call 2 over all queues, behind 1 and 2 of wider groups") << "two groups of ranks 1 and 3";
  one.restart();
  EXPECT_EQ(one.next(3), "call 1 over all queues, behind 0 of wider groups");
}

/// Leaves out ranks that were told nothing: a device may be done before the ranks have met, and tell of it later.
std::vector<std::string> heard(std::vector<std::string> told) {
  std::erase(told, "");
  EXPECT_FALSE(told.empty()) << "no rank was told";
  return told;
}

/// What ranks are told where rank 1 calls the second of two things first; after reset() they call them in one order.
std::vector<std::string> told_of_two_orders(bool in_two_groups) {
  std::vector<std::string> told(3);
  run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& host) {
    const Device device = device_of_rank(host->rank());
    NcclGroupOptions options = quick_options();
    options.deadline = std::chrono::seconds(5);
    const auto world = group_over(host, options);
    const auto pair = world->subgroup(host->rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2}, "tp");
    const FailingCall first(device, 7, false), in_pair(device, 9, true), second(device, 5, true);
    const auto issue_both = [&](bool swaps) {
      const auto call_second = [&] { in_two_groups ? in_pair.issue(*pair) : second.issue(*world); };
      if (swaps) call_second();
      first.issue(*world);
      if (!swaps) call_second();
      first.look(), in_pair.look(), second.look();
    };
    try {
      issue_both(host->rank() == 1);
      RankContext::current().drain_queues();  // the device may have been done before the ranks had met
      RankContext::current().device(device).synchronize();
    } catch (const CommError& error) { told[static_cast<std::size_t>(host->rank())] = error.what(); }
    RankContext::current().drain_queues();
    world->reset();
    issue_both(false);
  });
  return told;
}

TEST_F(FakeCallOrder, TwoOrdersOverQueuesAreNamedByRankAndCall) {
  start({.refuses_orders = false});
  for (const std::string& text : heard(told_of_two_orders(false)))
    EXPECT_THAT(
        text,
        AllOf(HasSubstr("rank 1 calls all_"), HasSubstr("for blocks.0 [f32 x"), HasSubstr("ranks 0, 2 call"),
              HasSubstr("call 1 over all queues"), HasSubstr("call 2 over all queues"),
              HasSubstr("must make the same calls in the same order"), ::testing::Not(HasSubstr("from_local()"))));
}

TEST_F(FakeCallOrder, TwoOrdersOverGroupsAreNamedByRankAndCall) {
  start({.refuses_orders = false});
  std::vector<std::string> told = told_of_two_orders(true);
  told.pop_back();  // rank 2, which is in neither place: it may have ended both of its calls before
  for (const std::string& text : heard(told))
    EXPECT_THAT(text, AllOf(HasSubstr("rank 0 calls all_reduce #"), HasSubstr("rank 1 calls all_reduce #"),
                            HasSubstr("behind 0 of wider groups"), HasSubstr("behind 1 of wider groups")));
}

}  // namespace
}  // namespace sherd::cuda::nccl
