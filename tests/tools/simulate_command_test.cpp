// `sherd simulate`. Oracles: clocks played by hand on a device where a FLOP takes a second, and a link of a byte a
// second.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "tests/support/source_path.h"
#include "tests/support/temp_dir.h"
#include "tests/tools/program_here.h"
#include "tests/tools/program_test.h"
#include "tools/plan/slowness.h"

namespace sherd::plan {

namespace {

using nlohmann::json;
using testing::expect_within;
using testing::sherd_here;

class SimulateCommand : public ::testing::Test {
 protected:
  // Ranks compute for 10 s, gather for 3 s beside a second of compute, and compute for 2 s.
  void SetUp() override {
    write("step",
          "sherd timeline 1\nrank 0 of 4\nbase 0 0 0 0 0 0 0\ngroup dp#1 dp 4x1\n"
          "call linear contraction f32 10 0 x\n"
          "item 0 gather unshard b dp#1 gather 4 after - uses -\ncall linear contraction f32 1 0 x\nwait 0 touch\n"
          "call linear contraction f32 2 0 x\n");
    write("device.json", R"({"device": "d", "memory_bytes": 1, "launch_s": 0, "flops": {"f32": 1},
                             "read_bytes_per_s": 1, "source": "the test"})");
    write("fabric.json", R"({"fabric": "f", "alpha_s": 0, "beta_bytes_per_s": 1, "source": "the test"})");
  }
  void write(const std::string& name, const std::string& text) { folder_.write(name, text); }
  std::string path(const std::string& name) const { return folder_ / name; }
  testing::ProgramEnd simulated(std::vector<std::string> more) const {
    std::vector<std::string> words{"simulate",          path("step"), "--device-model",
                                   path("device.json"), "--fabric",   "in=" + path("fabric.json")};
    words.insert(words.end(), more.begin(), more.end());
    return sherd_here(words);
  }
  json result(std::vector<std::string> more) const {
    more.emplace_back("--json");
    const auto end = simulated(more);
    EXPECT_EQ(end.status, 0) << end.err;
    return json::parse(end.out);
  }
  testing::TempDir folder_;
};

TEST_F(SimulateCommand, TheOthersWaitForASlowRank) {
  const json slow = result({"--slow", "2=1.5"});
  EXPECT_DOUBLE_EQ(slow.at("seconds_without"), 10 + 3 + 2);
  EXPECT_DOUBLE_EQ(slow.at("seconds"), 15 + 3 + 3);
  EXPECT_DOUBLE_EQ(slow.at("lost").at("slow ranks"), 6) << "half of its ten seconds, and of its two";
  ASSERT_EQ(slow.at("waited_for").size(), 1u);
  const json& on = slow.at("waited_for").at(0);
  EXPECT_EQ(on.at("rank"), 2);
  EXPECT_EQ(on.at("by"), 3);
  EXPECT_DOUBLE_EQ(on.at("seconds"), 3 * 5);
  EXPECT_DOUBLE_EQ(on.at("most"), 5) << "as much less if it came as early as they do, a second of which hides";
  const auto text = simulated({"--slow", "2=1.5"});
  expect_within(text.out, {"A step of 4 ranks takes 21000.00 ms", "6000.00 ms lost (40.0 %)", "Waited for", "rank 2"});
}

TEST_F(SimulateCommand, ASlowLinkAndASlowRankAreToldApart) {
  const json both = result({"--slow", "2=1.5", "--slow-link", "0-1=0.25"});
  EXPECT_DOUBLE_EQ(both.at("seconds"), 15 + 4 * 3 + 3);
  EXPECT_DOUBLE_EQ(both.at("lost").at("slow links"), 9);
  EXPECT_DOUBLE_EQ(both.at("lost").at("slow ranks"), 6);
  EXPECT_EQ(both.at("ranks").at(0).at("what"), "computes");
  EXPECT_DOUBLE_EQ(both.at("ranks").at(0).at("most"), 19.5);
  EXPECT_EQ(both.at("ranks").at(0).at("rank"), 2);
}

TEST_F(SimulateCommand, DrawsDependOnTheSeedAlone) {
  const std::vector<std::string> words{"--jitter", "0.1", "--slow", "25%=1.5", "--seed", "7"};
  EXPECT_EQ(simulated(words).out, simulated(words).out);
  EXPECT_NE(simulated(words).out, simulated({"--jitter", "0.1", "--slow", "25%=1.5", "--seed", "8"}).out);
  const std::vector<double> factors = slow_ranks("25%=1.5", 400, 3);
  int slow = 0;
  for (const double factor : factors) {
    EXPECT_TRUE(factor >= 1 && factor < 1.5);
    slow += factor > 1;
  }
  EXPECT_EQ(slow, 100);
}

TEST_F(SimulateCommand, TracesTheRanksThatAreAsked) {
  const auto end = simulated({"--slow", "2=1.5", "--trace", path("trace.json"), "--trace-ranks", "0,2"});
  EXPECT_EQ(end.status, 0) << end.err;
  std::ifstream file(path("trace.json"));
  const json trace = json::parse(file);
  std::map<int, double> last;  // of a process' spans, in microseconds; rank 0 is process 1
  for (const json& event : trace.at("traceEvents"))
    if (event.contains("ts")) last[event.at("pid")] = std::max(last[event.at("pid")], event.at("ts").get<double>());
  ASSERT_EQ(last.size(), 2u);
  EXPECT_DOUBLE_EQ(last.at(3), 21e6);
  EXPECT_DOUBLE_EQ(last.at(1), 20e6);
}

// What this machine's CPU takes is no price of a timeline, or of a GPU.
TEST_F(SimulateCommand, NeedsADeviceWhereTheCalibrationIsOfAnother) {
  auto end = sherd_here({"simulate", path("step"), "--trace-ranks", "0"});
  EXPECT_EQ(end.status, 2) << end.out;
  expect_within(end.err, {"does not say what device", "--device-model"});
  end = sherd_here(
      {"simulate", testing::source_path("tools/configs/llama-7b.toml"), "--mesh", "dp=2", "--device", "cuda"});
  EXPECT_EQ(end.status, 2) << end.out;
  expect_within(end.err, {"prices CPUs of one host", "--device-model"});
  EXPECT_EQ(result({}).at("prices"), "d: the test");
}

TEST_F(SimulateCommand, NamesTheRankOfAMesh) {
  const auto end =
      sherd_here({"simulate", testing::source_path("tools/configs/llama-7b.toml"), "--mesh", "dp=2,tp=2",
                  "--model.layers", "2", "--device-model", "h100-sxm", "--fabric", "in=nvlink4", "--slow", "3=1.3"});
  EXPECT_EQ(end.status, 0) << end.err;
  expect_within(end.out, {"A step of 4 ranks", "slow ranks", "rank 3 (dp 1, tp 1)"});
}

TEST_F(SimulateCommand, WrongInputIsNamedByFlagAndValue) {
  const auto refused = [this](const std::vector<std::string>& more, std::initializer_list<std::string_view> parts) {
    const auto end = simulated(more);
    EXPECT_EQ(end.status, 2) << end.out;
    expect_within(end.err, parts);
  };
  refused({"--slow", "4=1.3"}, {"--slow 4=1.3", "rank from 0 to 3"});
  refused({"--slow", "1=nan"}, {"--slow", "1=nan", "RANK=FACTOR"});
  refused({"--slow", "0%=2"}, {"--slow", "0%=2"});
  refused({"--slow-link", "0-2=0.1"}, {"--slow-link 0-2=0.1", "neighbours", "1, 3"});
  refused({"--slow-link", "0=0.1"}, {"RANK-RANK=FACTOR"});
  refused({"--jitter", "-1"}, {"jitter", "-1"});
  refused({"--ranks", "8"}, {"--ranks 8", "4"});
  refused({"--batch", "8"}, {"--batch", "timeline"});
  refused({"--trace", path("t.json"), "--trace-ranks", "0,9"}, {"--trace-ranks", "9"});
  EXPECT_FALSE(std::filesystem::exists(path("t.json")));
  write("step", "sherd timeline 1\nrank 0 of 4\nbase 0\n");
  refused({}, {"step", "line 3"});
  const auto none = sherd_here({"simulate", path("none")});
  EXPECT_EQ(none.status, 2);
  expect_within(none.err, {path("none"), "cannot be read"});
}

}  // namespace

}  // namespace sherd::plan
