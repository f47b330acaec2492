// Parts of a rank's time. Oracles: a clock beside it; waits that the test counts itself.
#include "runtime/exec/step_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

namespace sherd::testing {
namespace {

using StepTestClock = std::chrono::steady_clock;

double of_part(const PartSeconds& seconds, StepPart part) { return seconds[static_cast<std::size_t>(part)]; }
double sum_of_parts(const PartSeconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }
double seconds_since(StepTestClock::time_point start) {
  return std::chrono::duration<double>(StepTestClock::now() - start).count();
}

void spin_for(double seconds) {
  for (const StepTestClock::time_point start = StepTestClock::now(); seconds_since(start) < seconds;) continue;
}

TEST(StepClock, PartsAddUpToWhatHasPassed) {
  StepClock clock;
  const StepTestClock::time_point outside = StepTestClock::now();
  const PartSeconds before = clock.seconds();
  const StepTestClock::time_point inside = StepTestClock::now();
  clock.enter(StepPart::data);
  spin_for(1e-3);
  clock.enter(StepPart::forward);
  spin_for(2e-3);
  {
    const StepClock::Scope scope(clock, StepPart::save);
    spin_for(1e-3);
  }
  EXPECT_EQ(clock.part(), StepPart::forward) << "the scope is over";
  const double least = seconds_since(inside);
  const PartSeconds after = clock.seconds();
  const double passed = sum_of_parts(after) - sum_of_parts(before);
  EXPECT_GE(passed, least);
  EXPECT_LE(passed, seconds_since(outside));
  EXPECT_GE(of_part(after, StepPart::data), 1e-3);
  EXPECT_GE(of_part(after, StepPart::forward), 2e-3);
  EXPECT_GE(of_part(after, StepPart::save), 1e-3);
  EXPECT_EQ(of_part(after, StepPart::evaluation), 0);
}

TEST(StepClock, PhasesOfAReplayCountWithinAnUpdateAlone) {
  StepClock clock;
  clock.seconds();
  clock.enter(StepPart::evaluation);
  clock.enter(StepPhase::backward);
  EXPECT_EQ(clock.part(), StepPart::evaluation);
  clock.enter(StepPart::forward);
  clock.enter(StepPhase::backward);
  EXPECT_EQ(clock.part(), StepPart::backward);
  clock.enter(StepPhase::optimizer);
  EXPECT_EQ(clock.part(), StepPart::optimizer);
}

TEST(StepClock, WaitsOfTheOptimizerAreNoneOfItsTime) {
  StepClock clock;
  double waited = 5;
  clock.count_waits_by([&] { return waited; });
  clock.seconds();
  clock.enter(StepPart::backward);
  waited += 1e-3;
  clock.enter(StepPart::optimizer);
  spin_for(4e-3);
  waited += 1e-3;
  clock.enter(StepPart::other);
  EXPECT_NEAR(of_part(clock.seconds(), StepPart::update_wait), 1e-3, 1e-9) << "those of backward are none";
  EXPECT_GE(of_part(clock.seconds(), StepPart::optimizer), 3e-3);
  EXPECT_EQ(name(StepPart::update_wait), "update_wait");
}

}  // namespace
}  // namespace sherd::testing
