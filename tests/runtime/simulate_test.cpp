// Steps as they would run. Oracles: clocks played by hand, and closed forms.
#include "runtime/exec/simulate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/exec/price_json.h"
#include "runtime/exec/trace_json.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

/// `ranks` ranks of one host, where a FLOP takes a second, and bytes on a link one each.
Cluster seconds_cluster(int ranks, int hosts = 1) {
  FabricModel in, out;
  in.name = "in";
  in.link = {0, 0, 1};
  out.name = "out";
  out.link = {0, 0, 1};
  out.nics = 1;
  return {.device = parse_device_model(R"({"device": "d", "memory_bytes": 1, "launch_s": 0, "flops": {"f32": 1},
                                           "read_bytes_per_s": 1, "source": "s"})",
                                       "d"),
          .hosts = {hosts, ranks / hosts},
          .in = in,
          .out = out};
}

Timeline timeline_of(int ranks, const std::string& groups, const std::string& body) {
  return Timeline::parse(fmt::format("sherd timeline 1\nrank 0 of {}\nbase 0 0 0 0 0 0 0\n{}{}", ranks, groups, body));
}
std::string compute_line(double seconds) { return fmt::format("call linear contraction f32 {} 0 x\n", seconds); }
/// A gather of two ranks that takes so many seconds.
std::string gather_line(int item, double seconds, std::string_view after = "-", std::string_view queue = "gather") {
  return fmt::format("item {} {} unshard b{} dp#1 gather {} after {} uses -\n", item, queue, item, 2 * seconds, after);
}
std::string wait_line(int item) { return fmt::format("wait {} touch\n", item); }
constexpr const char* kPairOfRanks = "group dp#1 dp 2x1\n";

// Blocks whose gathers are asked for one block ahead.
Timeline chain_of_blocks(int blocks, double gathers, double computes) {
  std::string body = gather_line(0, gathers);
  for (int i = 0; i < blocks; ++i) {
    if (i + 1 < blocks) body += gather_line(i + 1, gathers);
    body += wait_line(i) + compute_line(computes);
  }
  return timeline_of(2, kPairOfRanks, body);
}

TEST(Simulate, GathersHideBehindBlocksThatTakeLonger) {
  const Simulation s = simulate(chain_of_blocks(5, 2, 3), seconds_cluster(2));
  EXPECT_DOUBLE_EQ(s.seconds, 2 + 5 * 3) << "the first gather is exposed";
  EXPECT_DOUBLE_EQ(s.of(1).transfer, 2);
  EXPECT_DOUBLE_EQ(s.of(1).compute, 15);
  EXPECT_DOUBLE_EQ(s.of(0).busy[0], 10);
  EXPECT_EQ(s.ranks.size(), 1u) << "one rank stands for both";
  ASSERT_EQ(s.axes.size(), 1u);
  EXPECT_EQ(s.axes[0].name + " " + s.axes[0].fabric, "dp in");
  EXPECT_DOUBLE_EQ(s.axes[0].wire_bytes, 10);
  EXPECT_DOUBLE_EQ(s.axes[0].calls, 5);
  ASSERT_EQ(s.units.size(), 5u);
  EXPECT_DOUBLE_EQ(s.units[0].transfer, 2);
  EXPECT_DOUBLE_EQ(s.units[1].transfer, 0);
}

TEST(Simulate, AStepOfLongGathersIsAsLongAsTheyAre) {
  const Simulation s = simulate(chain_of_blocks(5, 4, 3), seconds_cluster(2));
  EXPECT_DOUBLE_EQ(s.seconds, 5 * 4 + 3);
  EXPECT_DOUBLE_EQ(s.of(0).transfer, 23 - 15);
}

TEST(Simulate, AllRanksAreAsTheOneThatStandsForThem) {
  const Timeline t = chain_of_blocks(7, 2, 2.5);
  const Simulation one = simulate(t, seconds_cluster(2)), all = simulate(t, seconds_cluster(2), {.compute = {1, 1}});
  EXPECT_EQ(all.ranks.size(), 2u);
  EXPECT_DOUBLE_EQ(all.seconds, one.seconds);
  EXPECT_DOUBLE_EQ(all.axes[0].transfer, one.axes[0].transfer);
  EXPECT_DOUBLE_EQ(all.axes[0].wire_bytes, one.axes[0].wire_bytes);
}

// Rank 1 computes half as fast again: rank 0 waits for it.
TEST(Simulate, TheOthersWaitForASlowRank) {
  const Timeline t = timeline_of(2, kPairOfRanks, compute_line(10) + gather_line(0, 3) + wait_line(0));
  const Simulation s = simulate(t, seconds_cluster(2), {.compute = {1, 1.5}});
  EXPECT_DOUBLE_EQ(s.seconds, 15 + 3);
  EXPECT_DOUBLE_EQ(s.of(0).skew, 5);
  EXPECT_DOUBLE_EQ(s.of(0).transfer, 3);
  EXPECT_DOUBLE_EQ(s.of(1).skew, 0);
  EXPECT_DOUBLE_EQ(s.of(1).transfer, 3);
  EXPECT_DOUBLE_EQ(s.of(1).caused, 5);
  EXPECT_DOUBLE_EQ(s.of(0).caused, 0);
  EXPECT_DOUBLE_EQ(s.axes[0].skew, 2.5) << "a mean over ranks";
}

TEST(Simulate, ASlowLinkHoldsUpTheRingsThatPassIt) {
  const Timeline t = timeline_of(4, "group dp#1 dp 2x1\n", gather_line(0, 3) + wait_line(0));
  const Simulation s = simulate(t, seconds_cluster(4), {.slow_links = {{1, 0, 0.1}}});
  EXPECT_DOUBLE_EQ(s.of(0).seconds, 30);
  EXPECT_DOUBLE_EQ(s.of(3).seconds, 3);
  EXPECT_DOUBLE_EQ(simulate(t, seconds_cluster(4), {.link = {1, 1, 2, 1}}).of(3).seconds, 6);
}

// Two groups of replicas leave a host by one NIC; the shards' group stays.
TEST(Simulate, GroupsShareTheNicOfTheirHost) {
  const Timeline t = timeline_of(4, "group dp#1 dp 2x1\ngroup replicate#2 replicate 2x2\n",
                                 "item 0 gather unshard b dp#1 gather 8 after - uses -\n"
                                 "item 1 replicate sum b replicate#2 reduce_all 8 after - uses -\nwait 0 touch\n"
                                 "wait 1 touch\n");
  const Simulation s = simulate(t, seconds_cluster(4, 2));
  ASSERT_EQ(s.axes.size(), 2u);
  EXPECT_EQ(s.axes[1].name + " " + s.axes[1].fabric, "replicate out");
  EXPECT_DOUBLE_EQ(s.axes[0].seconds, 4);
  EXPECT_DOUBLE_EQ(s.axes[1].seconds, 2 * 8) << "half of the NIC each";
  EXPECT_DOUBLE_EQ(s.axes[1].wire_bytes, 8);
  EXPECT_DOUBLE_EQ(s.seconds, 16) << "two fabrics work at the same time";
}

// The second gather comes to the link when the first is through, at 10; the reduction came at 3.
TEST(Simulate, ALinkIsGivenInTheOrderOfTime) {
  const Timeline t = timeline_of(2, kPairOfRanks,
                                 gather_line(0, 10) + gather_line(1, 10) + compute_line(3) +
                                     gather_line(2, 5, "-", "reduce") + wait_line(2) + wait_line(1));
  const Simulation s = simulate(t, seconds_cluster(2));
  EXPECT_DOUBLE_EQ(s.seconds, 10 + 5 + 10);
  EXPECT_DOUBLE_EQ(s.of(0).transfer, 25 - 3);
  EXPECT_DOUBLE_EQ(s.of(0).busy[1], 5);
}

TEST(Simulate, AnItemFollowsThoseOfOtherQueues) {
  Cluster cluster = seconds_cluster(2);
  const Timeline t =
      timeline_of(2, std::string(kPairOfRanks) + "group rep#2 rep 2x1\n",
                  gather_line(0, 4) + "item 1 replicate sum b rep#2 gather 6 after 0 uses -\n" + wait_line(1));
  cluster.axes = {{"dp", {0, 0, 1}}, {"rep", {0, 0, 2}}};
  EXPECT_DOUBLE_EQ(simulate(t, cluster).seconds, 4 + 1.5) << "links of their own";
}

TEST(Simulate, AFullQueueIsToldApart) {
  const Timeline t =
      timeline_of(2, kPairOfRanks, gather_line(0, 4) + "wait 0 throttle\n" + gather_line(1, 4) + wait_line(1));
  const Simulation s = simulate(t, seconds_cluster(2));
  EXPECT_DOUBLE_EQ(s.of(0).throttle, 4);
  EXPECT_DOUBLE_EQ(s.of(0).transfer, 4);
  EXPECT_DOUBLE_EQ(s.units[0].throttle, 4);
}

TEST(Simulate, CopiesOfARankAreItsOwn) {
  const Timeline t =
      timeline_of(1, "", "item 0 offload evict \"\" - gather 7 after - uses -\n" + compute_line(2) + wait_line(0));
  const Simulation s = simulate(t, seconds_cluster(1));
  EXPECT_DOUBLE_EQ(s.seconds, 7);
  EXPECT_DOUBLE_EQ(s.of(0).transfer, 5);
  EXPECT_EQ(s.axes[0].fabric, "copy");
}

TEST(Simulate, MeasuredCallsComeBeforeRates) {
  Cluster cluster = seconds_cluster(1);
  cluster.calls["linear y"] = 0.5;
  cluster.software = 2;
  const Timeline t = timeline_of(1, "", compute_line(3) + "call linear contraction f32 3 0 y\n");
  EXPECT_DOUBLE_EQ(simulate(t, cluster).seconds, 2 * 3 + 0.5);
}

TEST(Simulate, ThePeakHasItsPlaceAndMoment) {
  const Timeline t = timeline_of(1, "",
                                 "memory parameters 5\nat b0 forward\nmemory activations 10\n" + compute_line(2) +
                                     "at b1 backward\nmemory gradients 4\ncall add pointwise f32 1 1 x\n"
                                     "memory activations -10\nmemory gradients 2\n");
  const Simulation::Peak peak = simulate(t, seconds_cluster(1)).peaks[0];
  EXPECT_EQ(peak.bytes, 19);
  EXPECT_EQ(describe(peak.at_peak), "activations 10 B, parameters 5 B, gradients 4 B");
  EXPECT_EQ(peak.peak[static_cast<std::size_t>(MemoryCategory::gradients)], 6);
  EXPECT_DOUBLE_EQ(peak.seconds, 2);
  EXPECT_EQ(peak.module, "b1");
  EXPECT_EQ(peak.op, "add");
  EXPECT_EQ(peak.phase, StepPhase::backward);
}

// A stage that two classes reach at other times: rank 0 computes 1, rank 1 computes 6.
TEST(Simulate, ClassesMeetInTheirCollectives) {
  const Timeline a = timeline_of(2, kPairOfRanks, compute_line(1) + gather_line(0, 2) + wait_line(0)),
                 b = timeline_of(2, kPairOfRanks, compute_line(6) + gather_line(0, 2) + wait_line(0));
  const RankClass classes[] = {{&a, {0}}, {&b, {}}};
  const Simulation s = simulate(classes, seconds_cluster(2));
  EXPECT_DOUBLE_EQ(s.seconds, 8);
  EXPECT_DOUBLE_EQ(s.of(0).skew, 5);
  EXPECT_EQ(s.peaks.size(), 2u);
}

TEST(Simulate, WhatDoesNotFitIsRefusedByName) {
  const Timeline a = timeline_of(2, kPairOfRanks, gather_line(0, 2) + wait_line(0)),
                 none = timeline_of(2, kPairOfRanks, compute_line(1)),
                 other = timeline_of(2, kPairOfRanks, "item 0 gather unshard b dp#1 scatter 2 after - uses -\n"),
                 three =
                     timeline_of(3, "group dp#1 dp 3x1\n", "item 0 gather unshard b dp#1 gather 2 after - uses -\n");
  const auto play = [](const Timeline& first, const Timeline& second) {
    const RankClass classes[] = {{&first, {0}}, {&second, {1}}};
    simulate(classes, seconds_cluster(2));
  };
  expect_error([&] { play(a, none); }, {"do not match", "rank 0 waits for unshard b0 on the queue gather"});
  expect_error([&] { play(a, other); }, {"do not match", "dp#1", "gather", "scatter"});
  expect_error([&] { simulate(three, seconds_cluster(4)); }, {"a timeline of 3 ranks", "4"});
  const RankClass twice[] = {{&a, {0}}, {&a, {0}}}, missing[] = {{&a, {0}}};
  expect_error([&] { simulate(twice, seconds_cluster(2)); }, {"rank 0 is in two classes"});
  expect_error([&] { simulate(missing, seconds_cluster(2)); }, {"rank 1 of 2 is in no class"});
  expect_error([&] { simulate(a, seconds_cluster(2), {.compute = {1}}); }, {"1 factors of compute for 2 ranks"});
  expect_error([&] { simulate(a, seconds_cluster(2), {.compute = {1, -1}}); }, {"rank 1", "-1"});
  expect_error([&] { simulate(a, seconds_cluster(2), {.slow_links = {{0, 2, 1}}}); }, {"slow link 0-2", "rank 2 of 2"});
  expect_error([&] { simulate(a, seconds_cluster(2), {.jitter = -1}); }, {"jitter is -1"});
}

TEST(Simulate, JitterIsDrawnFromItsSeed) {
  std::string body;
  for (int i = 0; i < 50; ++i) body += compute_line(1) + gather_line(i, 0.1) + wait_line(i);
  const Timeline t = timeline_of(2, kPairOfRanks, body);
  const auto seconds = [&](double jitter, std::uint64_t seed) {
    return simulate(t, seconds_cluster(2), {.jitter = jitter, .seed = seed}).seconds;
  };
  EXPECT_EQ(seconds(0.05, 1), seconds(0.05, 1));
  EXPECT_NE(seconds(0.05, 1), seconds(0.05, 2));
  // Ranks meet after each block: of two draws the larger counts, whose mean is sigma / sqrt(pi) above.
  double sum = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) sum += seconds(0.05, seed);
  EXPECT_NEAR(sum / 100, 50 * (1.1 + 0.05 / std::sqrt(3.14159265)), 0.1);
}

TEST(Simulate, SpansBecomeATrace) {
  const Timeline t = chain_of_blocks(3, 2, 3);
  const Simulation s = simulate(t, seconds_cluster(2), {.spans_of = {0, 1}});
  ASSERT_EQ(s.spans.size(), 2u);
  EXPECT_EQ(s.spans[0].spans.size(), s.spans[1].spans.size());
  std::vector<std::string> events;
  for (const Simulation::RankSpans& spans : s.spans) events.push_back(simulated_events(spans));
  const nlohmann::json trace = nlohmann::json::parse(trace_file(events, {}));
  int calls = 0;
  for (const auto& event : trace["traceEvents"]) calls += event.value("name", "") == "linear" && event["tid"] == 1;
  EXPECT_EQ(calls, 3) << "on the thread's track of rank 0";
  int unshards = 0;
  for (const auto& event : trace["traceEvents"]) unshards += event.value("name", "").starts_with("unshard");
  EXPECT_EQ(unshards, 6) << "three of each rank";
}

// One rank in 16,384 is played for all; with factors every one is.
TEST(Simulate, EqualInputsGiveEqualResultsToTheBit) {
  const Timeline t = chain_of_blocks(20, 1.25, 1);
  std::vector<double> factors;
  for (int r = 0; r < 64; ++r) factors.push_back(1 + 0.001 * (r * 37 % 64));
  const std::string text = t.print();
  const Timeline wide = timeline_of(64, "group dp#1 dp 64x1\n", text.substr(text.find("item 0")));
  const Simulation a = simulate(wide, seconds_cluster(64), {.compute = factors}),
                   b = simulate(wide, seconds_cluster(64), {.compute = factors});
  EXPECT_EQ(a.seconds, b.seconds);
  for (int r = 0; r < 64; ++r) EXPECT_EQ(a.of(r).skew, b.of(r).skew);
}

}  // namespace
}  // namespace sherd::testing
