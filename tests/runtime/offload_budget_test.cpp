// What leaves memory where a part may stay, on sizes at random: against what the rule promises.
#include "runtime/op/copy/offload_budget.h"

#include <gtest/gtest.h>

#include <random>

namespace sherd {
namespace {

TEST(OffloadBudget, F174_TheLargestLeaveFirstAndTheOthersFit) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> bytes(random() % 12);
    std::int64_t all = 0;
    for (std::int64_t& b : bytes) all += b = static_cast<std::int64_t>(random() % 20);
    std::vector<bool> kept_by_less(bytes.size(), false);
    for (std::int64_t budget = 0; budget <= all + 1; ++budget) {
      const std::vector<bool> kept = kept_in_memory(bytes, budget);
      ASSERT_EQ(kept, kept_in_memory(bytes, budget));
      std::int64_t sum = 0, largest_kept = -1, smallest_left = std::numeric_limits<std::int64_t>::max();
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        ASSERT_TRUE(kept[i] || !kept_by_less[i]) << "a larger budget keeps all that a smaller one does";
        if (kept[i]) sum += bytes[i];
        if (kept[i]) largest_kept = std::max(largest_kept, bytes[i]);
        else smallest_left = std::min(smallest_left, bytes[i]);
      }
      ASSERT_LE(sum, budget);
      ASSERT_LE(largest_kept, smallest_left);
      if (sum < all) { ASSERT_GT(sum + smallest_left, budget) << "no more than has to leave"; }
      ASSERT_TRUE(budget < all || sum == all);
      kept_by_less = kept;
    }
  }
}

TEST(OffloadBudget, OfEqualOnesTheLastLeavesFirst) {
  const std::int64_t bytes[] = {4, 4, 9, 4};
  EXPECT_EQ(kept_in_memory(bytes, 8), (std::vector{true, true, false, false}));
}

}  // namespace
}  // namespace sherd
