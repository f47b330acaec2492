// Which row of a plan is taken, and where another one would be. Oracles: numbers written out here.
#include <gtest/gtest.h>

#include <cmath>

#include "tools/plan/recommend.h"

namespace sherd::plan {

namespace {

const std::vector<Candidate> kRows{{"fast", 1.00, 70}, {"lean", 1.015, 30}, {"slow", 1.3, 10}, {"large", 0.9, 100}};

TEST(PlanChoice, TiesAreDecidedByMemoryAndWhatDoesNotFitIsNamed) {
  const Choice choice = choose(kRows, 80, 0.02);
  EXPECT_EQ(choice.best, 1u) << "1.5 % slower is a tie, and holds 40 less";
  EXPECT_EQ(choice.ties, std::vector<std::size_t>{0});
  EXPECT_EQ(choice.runner_up, 2u);
  EXPECT_EQ(choice.refused, 3u);
}

TEST(PlanChoice, TheFastestIsTakenWhereItIsFasterThanTheError) {
  const Choice choice = choose(kRows, 80, 0.01);
  EXPECT_EQ(choice.best, 0u);
  EXPECT_TRUE(choice.ties.empty());
  EXPECT_EQ(choice.runner_up, 1u);
  EXPECT_EQ(choose(kRows, 0, 0.01).best, 3u) << "without a limit all fit";
  EXPECT_FALSE(choose(kRows, 0, 0.01).refused);
}

TEST(PlanChoice, NothingIsTakenWhereNothingFits) {
  const Choice choice = choose(kRows, 9, 0.02);
  EXPECT_FALSE(choice.best || choice.runner_up || choice.refused);
}

TEST(PlanChoice, StepsOfOtherLengthsAreComparedByToken) {
  const std::vector<Candidate> rows{{"one", 1.0, 10, 100}, {"four", 3.0, 10, 400}};
  EXPECT_EQ(choose(rows, 0, 0.02).best, 1u);
}

TEST(PlanFlip, BisectionFindsTheThreshold) {
  int asked = 0;
  const auto winner = [&asked](double x) {
    ++asked;
    return x >= 37.5 ? std::string("b") : "a";
  };
  const auto up = find_flip(10, 1000, 0.01, false, "a", winner);
  ASSERT_TRUE(up);
  EXPECT_EQ(up->name, "b");
  EXPECT_NEAR(up->at, 37.5, 0.01 * 37.5);
  EXPECT_GE(up->at, 37.5);
  EXPECT_LT(asked, 16);
  const auto down = find_flip(1000, 1, 0.01, false, "b", winner);
  ASSERT_TRUE(down);
  EXPECT_NEAR(down->at, 37.5, 0.01 * 37.5);
  EXPECT_LE(down->at, 37.5);
}

TEST(PlanFlip, CountsAreWhole) {
  const auto winner = [](double x) {
    EXPECT_EQ(x, std::floor(x));
    return x >= 11 ? std::string("b") : "a";
  };
  const auto flip = find_flip(2, 64, 0.01, true, "a", winner);
  ASSERT_TRUE(flip);
  EXPECT_EQ(flip->at, 11);
}

TEST(PlanFlip, NothingIsFoundBeyondTheBounds) {
  const auto winner = [](double x) { return x >= 37.5 ? std::string("b") : "a"; };
  EXPECT_FALSE(find_flip(10, 37, 0.01, false, "a", winner));
  EXPECT_FALSE(find_flip(10, 1, 0.01, false, "a", winner));
  EXPECT_FALSE(find_flip(1, 1, 0.01, true, "a", winner));
}

}  // namespace

}  // namespace sherd::plan
