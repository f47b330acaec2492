#include <gtest/gtest.h>

#include "compile/run/footprint.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/exec/context.h"
#include "tests/compile/recorded_step.h"

namespace sherd::testing {
namespace {

CategoryBytes plus(CategoryBytes a, const CategoryBytes& b, std::int64_t factor) {
  for (std::size_t c = 0; c < a.size(); ++c) a[c] += factor * b[c];
  return a;
}

TEST(Footprint, IsWhatAReplayHoldsToTheByteByCategory) {
  for_each_step([](const StepCase&, const RecordedStep& step) {
    const Footprint footprint = footprint_of(step.complete());
    const CategoryBytes rest = RankContext::current().allocator().accounting().current();
    const CategoryBytes beside = plus(rest, footprint.before, -1);
    const Outcome outcome = step.run(step.complete());
    EXPECT_EQ(describe(plus(footprint.most, beside, 1)), describe(outcome.peaks));
    EXPECT_EQ(plus(footprint.most, beside, 1), outcome.peaks);
    std::int64_t total = footprint.peak;
    for (const std::int64_t bytes : beside) total += bytes;
    EXPECT_EQ(total, outcome.peak);
  });
}

TEST(Footprint, NamesTheNodeOfThePeakAndWhatIsHeldThere) {
  for_each_step([](const StepCase&, const RecordedStep& step) {
    const Footprint footprint = footprint_of(step.complete());
    ASSERT_EQ(footprint.by_node.size(), step.complete().nodes.size());
    ASSERT_GE(footprint.node, 0);
    EXPECT_EQ(footprint.by_node[static_cast<std::size_t>(footprint.node)], footprint.at_peak);
    std::int64_t total = 0;
    for (const std::int64_t bytes : footprint.at_peak) total += bytes;
    EXPECT_EQ(total, footprint.peak);
  });
}

TEST(Footprint, LeavesTheRankAsItWas) {
  for_each_step([](const StepCase&, const RecordedStep& step) {
    const Accounting& account = RankContext::current().allocator().accounting();
    const CategoryBytes before = account.current(), peak = account.peak();
    const CommCounter counter;
    footprint_of(step.complete());
    EXPECT_EQ(account.current(), before);
    EXPECT_EQ(account.peak(), peak);
    EXPECT_TRUE(counter.entries().empty());
  });
}

}  // namespace
}  // namespace sherd::testing
