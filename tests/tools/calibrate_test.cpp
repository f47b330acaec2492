// `sherd calibrate` as a user calls it: what it keeps, who finds it, and what is said where it does not hold. Oracles:
// what is true of any machine, and files that are wrong in one thing.
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "runtime/exec/calibration.h"
#include "runtime/os/machine.h"
#include "tests/tools/program_test.h"
#include "tools/train/calibration.h"

namespace sherd {

using namespace train;

namespace {

using testing::expect_within;

class Calibrate : public testing::ProgramTest {
 protected:
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  /// A calibration of this machine for so many ranks, with the text in it replaced.
  void keep(int ranks, std::string_view from = "", std::string_view to = "") {
    std::string text = print(calibration_of(ranks));
    if (!from.empty()) text.replace(text.find(from), from.size(), to);
    const std::string path = calibration_file(cache_, ranks);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
  }
  static Calibration calibration_of(int ranks) {
    const Rate rate{{{1, 1e10}}, "made up"};
    Calibration made{.device = {.name = machine_name(),
                                .memory_bytes = 1 << 30,
                                .call_seconds = 1e-6,
                                .read = rate,
                                .copied = rate,
                                .source = "made up"},
                     .build = "another",
                     .ranks = ranks,
                     .time = 1.76e9};
    made.device.products[DType::f32] = rate;
    made.device.links["ranks"] = {.name = "ranks", .link = {1e-5, 0, 1e9}, .source = "made up"};
    return made;
  }

  const std::string cache_ = dir_ / "cache";
  const Words environment_{"SHERD_CACHE=" + cache_};
};

TEST_F(Calibrate, MeasuresTwoRanksAndIsFoundByATraining) {
  const auto end = sherd({"calibrate", "--ranks", "2", "--threads", "1", "--seconds", "0.1"}, environment_);
  ASSERT_EQ(end.status, 0) << end.err;
  expect_within(end.out, {machine_name(), "gpt2 of width 128, f32", "llama of width 128, bf16",
                          "there was no time for 8 of 12 runs", "ms a step", "predicted", "us a call",
                          "kept in " + calibration_file(cache_, 2)});
  const Calibration made = parse_calibration(text_of(calibration_file(cache_, 2)), "made");
  EXPECT_EQ(made.ranks, 2);
  EXPECT_EQ(made.threads, 1);
  for (const char* row : {"linear f32", "linear bf16", "layer_norm f32", "rms_norm f32"})
    EXPECT_TRUE(made.calls.rows.contains(row)) << row;
  const auto seconds = [&](double flops, double bytes) {
    return made.calls.seconds("linear", {WorkKind::contraction, DType::f32, flops, bytes}).value();
  };
  EXPECT_GT(seconds(1e9, 1e7), seconds(1e6, 1e5)) << "a thousand times the work";
  EXPECT_EQ(made.device.links.at("ranks").curves[0].size(), 6u);
  EXPECT_GE(made.core_share, 0);
  EXPECT_LE(made.core_share, 1);

  Words words{"run", "-n", "2", "--", SHERD_PROGRAM, "train", config_file_, "--predict"};
  const auto trained = sherd(words, environment_);
  ASSERT_EQ(trained.status, 0) << trained.err;
  expect_within(trained.out, {"predicted for rank 0; calibrated today", "peak of all", "ms exposed", "tokens/s",
                              "predicted       a peak of", "ms a step predicted", "exposed predicted"});
}

TEST_F(Calibrate, AFolderThatCannotBeWrittenIsALine) {
  dir_.write("cache", "a file");
  const auto end = sherd({"calibrate", "--ranks", "1", "--seconds", "0.1"}, environment_);
  EXPECT_EQ(end.status, 0) << end.err;
  expect_within(end.out, {"not kept: ", cache_, "--out FILE keeps it"});
}

TEST_F(Calibrate, AgeBuildMachineAndRanksAreChecked) {
  const auto said = [&](int ranks) { return find_calibration(ranks, cache_).text; };
  expect_within(said(2), {"not calibrated: sherd calibrate --ranks 2"});
  keep(2);
  expect_within(said(2), {"calibrated ", " days ago, which is long; sherd calibrate --ranks 2; by another build"});
  EXPECT_TRUE(find_calibration(2, cache_).made);
  expect_within(said(4), {"not calibrated for so many ranks: sherd calibrate --ranks 4"});
  keep(2, machine_name(), "some other");
  expect_within(said(2), {"of another machine, some other"});
  keep(2, "another", build_id());
  EXPECT_EQ(said(2).find("thread"), std::string::npos);
  expect_within(find_calibration(2, cache_, 3).text, {"with 1 thread of a rank, not 3"});
  keep(2, "\"ranks\": 2", "\"ranks\": 8");
  expect_within(said(2), {"with 8 ranks, not 2"});
  keep(2, "\"ranks\": 2", "\"ranks\": 0");
  expect_within(said(2), {"not calibrated: ", "line 1, column", "sherd calibrate --ranks 2 makes it anew"});
  EXPECT_FALSE(find_calibration(2, cache_).made);
  expect_within(find_calibration(2, "").text, {"not calibrated: SHERD_CACHE is set to nothing"});
}

// A run without one says so, and its memory is predicted to the byte all the same.
TEST_F(Calibrate, ARunThatIsNotCalibratedSaysSo) {
  const auto end = sherd({"train", config_file_, "--predict"}, environment_);
  ASSERT_EQ(end.status, 0) << end.err;
  expect_within(end.out, {"predicted for rank 0; not calibrated: sherd calibrate --ranks 1", "rank 0 predicted",
                          "not calibrated"});
  EXPECT_EQ(end.out.find("DIFFERS"), std::string::npos) << end.out;
  EXPECT_EQ(end.out.find("ms a step predicted"), std::string::npos) << end.out;
}

// The calibration is priced by plan where nothing else is asked for.
TEST_F(Calibrate, APlanOfTheseRanksIsPricedByIt) {
  keep(4);
  const Words words{"plan", config_file_, "--ranks", "4", "--flips", "false", "--model.vocabulary", "256"};
  expect_within(sherd(words, environment_).out, {"device " + machine_name() + ": calibrated ", "tokens/s"});
  const auto simulated = sherd({"simulate", config_file_, "--ranks", "4", "--model.vocabulary", "256"}, environment_);
  expect_within(simulated.out, {"Priced by " + machine_name() + ": calibrated "});
  const auto without = sherd(words, {"SHERD_CACHE="});
  EXPECT_EQ(without.out.find("calibrated"), std::string::npos) << without.out;
}

// What would fit is priced as a run of it is: by the same calibration, to the digit.
TEST_F(Calibrate, WhatFitsSaysWhatItsStepTakes) {
  keep(2);
  Words words{"run", "-n", "2", "--", SHERD_PROGRAM, "train", config_file_};
  Words limited = words;
  limited.insert(limited.end(), {"--memory-limit", "130000"});
  const auto end = sherd(limited, environment_);
  EXPECT_EQ(end.status, kFailed) << end.err;
  const std::string last = end.err.substr(end.err.rfind('\n', end.err.size() - 2) + 1);
  expect_within(last, {"sherd run: what fits, by rank ", ": --", " bytes) at most per rank, ", " ms a step"});
  std::smatch found;
  std::string text = end.err;
  const std::regex line(R"((--[^(\n]*?) +[0-9.]+ [KMG]?B \([0-9]+ bytes\) at most per rank, ([0-9.e+]+) ms a step)");
  while (std::regex_search(text, found, line) && found[1].str().find("--compile") != std::string::npos)
    text = found.suffix();  // a captured step within a budget predicts itself
  ASSERT_FALSE(found.empty()) << end.err;
  std::istringstream flags(found[1]);
  for (std::string word; flags >> word;) words.push_back(word);
  words.emplace_back("--predict");
  const auto trained = sherd(words, environment_);
  EXPECT_EQ(trained.status, 0) << trained.err;
  expect_within(trained.out, {fmt::format("step            {} ms", found[2].str())});
}

// A calibration that was kept elsewhere, by its file: for plan, simulate and diagnose, on whatever machine.
TEST_F(Calibrate, AFileOfItIsADeviceModel) {
  const std::string file = dir_.write("made.json", print(calibration_of(4)));
  const Words plan{"plan", config_file_, "--ranks", "4", "--flips", "false", "--model.vocabulary", "256"};
  const auto with_file = [&](Words words) {
    words.insert(words.end(), {"--device-model", file});
    return sherd(words, {"SHERD_CACHE="});
  };
  keep(4);
  const auto planned = with_file(plan), found = sherd(plan, environment_);
  ASSERT_EQ(planned.status, 0) << planned.err;
  EXPECT_EQ(planned.out, found.out) << "the same file, found in the cache";
  const auto simulated = with_file({"simulate", config_file_, "--ranks", "4", "--model.vocabulary", "256", "--json"});
  ASSERT_EQ(simulated.status, 0) << simulated.err;
  expect_within(simulated.out, {machine_name() + ": calibrated ", "by another build"});
  expect_within(with_file({"plan", config_file_, "--ranks", "8", "--batch", "24", "--model.vocabulary", "256"}).out,
                {"with 4 ranks, not 8"});
  const auto spanning = with_file({"plan", config_file_, "--ranks", "8", "--hosts", "2", "--model.vocabulary", "256"});
  EXPECT_EQ(spanning.status, kUsage) << spanning.out;
  expect_within(spanning.err, {"--fabric"});
  dir_.write("made.json", print(calibration_of(4)).replace(2, 5, "built"));
  const auto wrong = with_file(plan);
  EXPECT_EQ(wrong.status, kUsage);
  expect_within(wrong.err, {"made.json: line 1, column", "\"built\""});
}

// No calibration measures f16: its products take those of the nearest type.
TEST_F(Calibrate, TypesThatWereNotMeasuredAreExtrapolated) {
  keep(1);
  Words words{"train", config_file_, "--param-dtype", "f16", "--predict"};
  const auto trained = sherd(words, environment_);
  ASSERT_EQ(trained.status, 0) << trained.err;
  expect_within(trained.out, {"; extrapolated beyond the sizes and types", "ms a step predicted"});
  words = {"plan", config_file_,    "--ranks", "4", "--flips", "false", "--model.vocabulary",
           "256",  "--param-dtype", "f16"};
  keep(4);
  const auto planned = sherd(words, environment_);
  ASSERT_EQ(planned.status, 0) << planned.err;
  expect_within(planned.out, {"tokens/s"});
  Calibration made = calibration_of(1);
  made.device.products[DType::f32].points = {{1, 1e10}, {2, 2e10}};
  made.device.products[DType::bf16] = {{{1, 3e10}, {8, 3e10}}, "made up"};
  const Cluster cluster = calibrated_cluster(made, 1, {});
  const CallWork f16{WorkKind::contraction, DType::f16, 4, 1};
  EXPECT_DOUBLE_EQ(cluster.device.seconds(f16), cluster.device.seconds({f16.kind, DType::bf16, 4, 1}));
  EXPECT_FALSE(cluster.device.covers(f16));
  EXPECT_TRUE(cluster.device.covers({f16.kind, DType::bf16, 4, 1}));
}

TEST_F(Calibrate, BadInput) {
  struct Bad {
    Words words;
    std::initializer_list<std::string_view> parts;
  };
  for (const Bad& bad : {Bad{{"--ranks", "65"}, {"--ranks", "64", "65"}},
                         {{"--seconds", "0"}, {"--seconds"}},
                         {{"--threads", "2000"}, {"--threads 2000"}},
                         {{"somewhere"}, {"flags alone", "somewhere"}},
                         {{"--ranks", "1", "--out", data_}, {data_, "something else, which would be lost"}},
                         {{"--ranks", "2", "--out", data_}, {data_, "something else, which would be lost"}},
                         {{"--rank", "2"}, {"--rank", "--ranks"}}}) {
    Words words{"calibrate"};
    words.insert(words.end(), bad.words.begin(), bad.words.end());
    const auto end = sherd(words, environment_);
    EXPECT_EQ(end.status, kUsage) << end.out;
    expect_within(end.err, bad.parts);
  }
}

}  // namespace
}  // namespace sherd
