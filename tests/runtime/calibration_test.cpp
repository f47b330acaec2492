// Calls and collectives as a machine has been measured. Oracles: prices by hand, clocks played by hand, and texts that
// read back.
#include "runtime/exec/calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "runtime/exec/simulate.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

constexpr std::string_view kMeasured = R"({"build": "b1", "ranks": 2, "threads": 1, "time": 1.7e9, "core_share": 0.5,
 "device": {"device": "cpu, level", "memory_bytes": 8e9, "launch_s": 1e-6, "flops": {"f32": 1e9},
  "read_bytes_per_s": 1e9, "links": {"ranks": {"alpha_s": 0, "beta_bytes_per_s": 1e9}}, "source": "measured"},
 "calls": {"gelu f32": [[0, 1e3, 1e-6], [0, 1e5, 1e-4], [0, 1e6, 4e-3]],
           "linear f32": [[1e6, 1e4, 1e-3], [8e6, 4e4, 4e-3], [1e6, 1e6, 2e-3], [1e9, 1e7, 1]]}})";

CallWork bytes_work(double bytes) { return {WorkKind::pointwise, DType::f32, 0, bytes}; }
CallWork product_work(double flops, double bytes) { return {WorkKind::contraction, DType::f32, flops, bytes}; }

TEST(Calibration, RowsGoByBytesBetweenTheirNeighbours) {
  const MeasuredCalls calls = parse_calibration(kMeasured, "m.json").calls;
  EXPECT_DOUBLE_EQ(calls.seconds("gelu", bytes_work(1e5)).value(), 1e-4);
  EXPECT_DOUBLE_EQ(calls.seconds("gelu", bytes_work(1e4)).value(), 1e-5) << "half way in logarithms";
  EXPECT_DOUBLE_EQ(calls.seconds("gelu", bytes_work(4e6)).value(), 16e-3) << "beyond them at the last rate";
  EXPECT_DOUBLE_EQ(calls.seconds("gelu", bytes_work(100)).value(), 1e-7) << "before them at the first rate";
  EXPECT_FALSE(calls.seconds("tanh", bytes_work(1e5))) << "never measured";
  EXPECT_FALSE(calls.seconds("gelu", {WorkKind::pointwise, DType::bf16, 0, 1e5})) << "not in this type";
  EXPECT_TRUE(calls.covers("gelu", bytes_work(1e4)));
  EXPECT_FALSE(calls.covers("gelu", bytes_work(4e6)));
}

TEST(Calibration, ProductsGoByTheNearestInFlopsAndBytes) {
  const MeasuredCalls calls = parse_calibration(kMeasured, "m.json").calls;
  EXPECT_NEAR(calls.seconds("linear", product_work(1e6, 1e4)).value(), 1e-3, 1e-8) << "as measured";
  EXPECT_NEAR(calls.seconds("linear", product_work(1e6, 1e6)).value(), 2e-3, 1e-8) << "of as many FLOPs, a thin one";
  // Three at distances a, b, c in logarithms: their rates by 1/distance.
  const double f = 2e6, b = 1.5e4;
  double weights = 0, rates = 0;
  for (const CallPoint& p : {CallPoint{1e6, 1e4, 1e-3}, {8e6, 4e4, 4e-3}, {1e6, 1e6, 2e-3}}) {
    const double distance = std::sqrt(std::pow(std::log(p.flops / f), 2) + std::pow(std::log(p.bytes / b), 2));
    weights += 1 / distance;
    rates += p.flops / p.seconds / distance;
  }
  EXPECT_NEAR(calls.seconds("linear", product_work(f, b)).value(), f * weights / rates, 1e-9);
}

TEST(Calibration, TextsReadBackToTheBitAndWrongOnesNameTheirPlace) {
  const Calibration made = parse_calibration(kMeasured, "m.json");
  EXPECT_EQ(made.build, "b1");
  EXPECT_EQ(made.ranks, 2);
  EXPECT_EQ(made.core_share, 0.5);
  EXPECT_EQ(made.device.name, "cpu, level");
  const std::string text = print(made);
  EXPECT_EQ(print(parse_calibration(text, "again")), text);
  const auto refuse = [](std::string_view from, std::string_view to, std::initializer_list<std::string_view> parts) {
    std::string wrong(kMeasured);
    wrong.replace(wrong.find(from), from.size(), to);
    expect_error([&] { parse_calibration(wrong, "m.json"); }, {"m.json: line ", ", column "});
    expect_error([&] { parse_calibration(wrong, "m.json"); }, parts);
  };
  refuse("\"ranks\": 2,", "", {"\"ranks\" is missing"});
  refuse("\"threads\": 1", "\"threads\": 0", {"threads"});
  refuse("1e-4]", "0]", {"seconds", "more than 0"});
  refuse("1e-4]", "1e-4, 1]", {"[FLOPs, bytes, seconds]", "4 numbers"});
  refuse("[0, 1e3, 1e-6]", "[0, 1e7, 1e-6]", {"line 4", "by bytes"});
  refuse("\"launch_s\": 1e-6", "\"launch\": 1e-6", {"line 2", "\"launch\""});
  refuse("1e9, \"links\"", "NaN, \"links\"", {"NaN"});
}

TEST(Calibration, HostileTextsAreReadOrErrorsWithTheirPlace) {
  std::mt19937 random(36);
  int num_read = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string text(kMeasured);
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0 && !text.empty(); --changes) {
      const std::size_t at = random() % text.size();
      if (random() % 2 == 0) text[at] = static_cast<char>(random() % 256);
      else text.erase(at, 1 + random() % 20);
    }
    try {
      const Calibration made = parse_calibration(text, "m.json");
      made.calls.seconds("linear", product_work(1e6, 1e4));
      ++num_read;
    } catch (const Error& error) { EXPECT_EQ(error.message().rfind("m.json: line ", 0), 0u) << error.message(); }
  }
  EXPECT_GT(num_read, 50);
}

// A call of 3 s by the measured row, a gather of 4 s that is waited for after it; the core works on half of that.
TEST(Calibration, CollectivesTakeTheirShareOfTheRanksCore) {
  const Timeline step = Timeline::parse(
      "sherd timeline 1\nrank 0 of 2\nbase 0 0 0 0 0 0 0\ngroup dp#1 dp 2x1\n"
      "item 0 gather unshard b dp#1 gather 8 after - uses -\ncall gelu pointwise f32 0 3 x\nwait 0 touch\n");
  FabricModel in;
  in.name = "ranks";
  in.link = {0, 0, 1};
  Cluster cluster{.device = parse_calibration(kMeasured, "m.json").device, .hosts = {1, 2}, .in = in, .out = {}};
  cluster.device.call_seconds = 0;
  cluster.measured.rows["gelu f32"] = {{0, 3, 3}};
  EXPECT_DOUBLE_EQ(simulate(step, cluster).seconds, 4) << "the gather, in which the call hides";
  cluster.core_share = 0.5;
  EXPECT_DOUBLE_EQ(simulate(step, cluster).seconds, 2 + 3) << "of its 4 s the core works 2";
  cluster.axes["dp"] = {0, 0, 0.1};
  EXPECT_DOUBLE_EQ(simulate(step, cluster).seconds, 40) << "a shaped link hides that";
  EXPECT_DOUBLE_EQ(simulate(step, cluster).of(0).compute, 2 + 3) << "and its bytes are moved all the same";
}

}  // namespace
}  // namespace sherd::testing
