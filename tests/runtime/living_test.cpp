// A table that keeps nothing alive, and does not fill.
#include "runtime/op/core/living.h"

#include <gtest/gtest.h>

namespace sherd::testing {
namespace {

TEST(Living, FindsWhatSomebodyKeeps) {
  Living<std::string, int> table;
  auto one = std::make_shared<const int>(1);
  table.add("a", one);
  EXPECT_EQ(table.find("a"), one);
  EXPECT_EQ(table.find("b"), nullptr);
  EXPECT_EQ(free_name(table, "a"), "a~2");
  one.reset();
  EXPECT_EQ(table.find("a"), nullptr);
  EXPECT_EQ(free_name(table, "a"), "a");
}

TEST(Living, SeveralMayHaveOneKey) {
  Living<int, int> table;
  auto one = std::make_shared<const int>(1);
  const auto two = std::make_shared<const int>(2), three = std::make_shared<const int>(3);
  table.add(7, one);
  table.add(7, two);
  EXPECT_EQ(table.find(7, [](int value) { return value == 2; }), two);
  EXPECT_EQ(table.find(7, [](int value) { return value == 3; }), nullptr);
  one.reset();
  table.add(7, three);  // where the first was
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(table.count_living(), 2u);
  EXPECT_EQ(table.find(7, [](int value) { return value == 3; }), three);
}

TEST(Living, DoesNotFill) {
  Living<int, int> table;
  std::vector<std::shared_ptr<const int>> kept;
  for (int i = 0; i < 100'000; ++i) {
    auto made = std::make_shared<const int>(i);
    table.add(i, made);
    if (i % 1000 == 0) kept.push_back(std::move(made));
    ASSERT_LE(table.size(), 2 * kept.size() + 66) << i;
  }
  for (const auto& living : kept) EXPECT_EQ(table.find(*living), living);
}

}  // namespace
}  // namespace sherd::testing
