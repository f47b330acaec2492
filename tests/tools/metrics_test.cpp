// The metrics file and the status line. Oracle: nlohmann's parser and text written by hand.
#include "tools/train/metrics.h"

#include <cmath>
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_dir.h"
#include "tools/cli/progress.h"
#include "tools/train/exit_status.h"
#include "tools/train/version.h"

namespace sherd {

using namespace train;

namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::expect_error;
using testing::TempDir;

StepMetrics example() {
  StepMetrics m;
  m.step = 3;
  m.loss = 0.1 + 0.2;
  m.lr = 1e-4;
  m.grad_norm = 2.5;
  m.tokens = 768;
  m.tokens_per_second = 1536;
  m.step_seconds = 0.5;
  m.exposed_comm_seconds = 0.125;
  m.exposed_skew_seconds = 0.03125;
  for (int i = 0; i < kNumCategories; ++i) m.memory_bytes[static_cast<std::size_t>(i)] = 1000 + i;
  return m;
}

TEST(Metrics, StepLineHasTheKeysOfTheFormatInOrder) {
  const std::string text = step_line(example());
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const auto line = ordered_json::parse(text);
  std::vector<std::string> keys;
  for (const auto& [key, value] : line.items()) keys.push_back(key);
  EXPECT_EQ(keys,
            (std::vector<std::string>{"step", "loss", "lr", "grad_norm", "tokens", "tokens_per_second", "step_seconds",
                                      "seconds", "exposed_comm_seconds", "exposed_transfer_seconds",
                                      "exposed_skew_seconds", "memory_peak_bytes", "memory_bytes"}));
  EXPECT_EQ(line["step"], 3);
  EXPECT_EQ(line["loss"].get<double>(), 0.1 + 0.2) << "every bit";
  EXPECT_EQ(line["lr"], 1e-4);
  EXPECT_EQ(line["grad_norm"], 2.5);
  EXPECT_EQ(line["tokens"], 768);
  EXPECT_EQ(line["tokens_per_second"], 1536);
  EXPECT_EQ(line["step_seconds"], 0.5);
  EXPECT_EQ(line["exposed_comm_seconds"], 0.125);
  EXPECT_EQ(line["exposed_transfer_seconds"], 0.09375);
  EXPECT_EQ(line["exposed_skew_seconds"], 0.03125);
  EXPECT_EQ(line["memory_bytes"].size(), static_cast<std::size_t>(kNumCategories));
  EXPECT_EQ(line["memory_bytes"]["parameters"], 1000);
  EXPECT_EQ(line["memory_bytes"]["gradients"], 1002);
  EXPECT_EQ(line["memory_bytes"]["workspace"], 1006);
}

TEST(Metrics, ValidationLossOnlyAfterAnEvaluation) {
  StepMetrics m = example();
  EXPECT_FALSE(json::parse(step_line(m)).contains("val_loss"));
  EXPECT_FALSE(json::parse(step_line(m)).contains("captured"));
  m.captured = {false, "recorded: there is no graph yet"};
  EXPECT_EQ(json::parse(step_line(m))["captured"], false);
  EXPECT_EQ(json::parse(step_line(m))["why"], "recorded: there is no graph yet");
  m.val_loss = 1.9;
  EXPECT_EQ(json::parse(step_line(m))["val_loss"], 1.9);
}

TEST(Metrics, PartsOfAStepAndWhatTheHostGave) {
  StepMetrics m = example();
  m.seconds = {0.01, 0.1, 0.2, 0.05, 0.04, 7, 3, 0.1};
  json line = json::parse(step_line(m));
  EXPECT_EQ(line["seconds"], json::parse(R"({"data":0.01,"forward":0.1,"backward":0.2,"optimizer":0.05,
      "update_wait":0.04,"evaluation":7.0,"save":3.0,"other":0.1})"));
  EXPECT_FALSE(line.contains("mfu"));
  EXPECT_FALSE(line.contains("host"));
  m.mfu = 0.375;
  m.times.emplace().hosts = {{.host = "a", .cpu = 0.25, .minor_faults = 3, .threads = 2},
                             {.host = "b", .throttled = 1.5}};
  line = json::parse(step_line(m));
  EXPECT_EQ(line["mfu"], 0.375);
  EXPECT_EQ(line["host"]["cpu"], json::parse("[0.25, 0.0]")) << "by rank";
  EXPECT_EQ(line["host"]["minor_faults"], json::parse("[3.0, 0.0]"));
  EXPECT_EQ(line["host"]["throttled"], json::parse("[0.0, 1.5]"));
  EXPECT_EQ(line["host"]["threads"], json::parse("[2.0, 1.0]"));
}

TEST(Metrics, PredictedOnlyOfABudgetAndToTheByte) {
  StepMetrics m = example();
  EXPECT_FALSE(json::parse(step_line(m)).contains("predicted"));
  m.predicted = {.notes = "budget: 3 values computed again", .bytes = m.memory_bytes, .peak = 7021, .seconds = 0.25};
  const json line = json::parse(step_line(m));
  EXPECT_EQ(line["predicted"]["memory_bytes"], line["memory_bytes"]);
  EXPECT_EQ(line["predicted"]["memory_peak_bytes"], 7021);
  EXPECT_EQ(line["predicted"]["step_seconds"], 0.25);
  EXPECT_EQ(line["predicted"]["notes"], "budget: 3 values computed again");
}

TEST(Metrics, LossScaleOnlyWhereTheLossIsScaled) {
  StepMetrics m = example();
  for (const char* key : {"loss_scale", "skipped_steps"}) EXPECT_FALSE(json::parse(step_line(m)).contains(key));
  m.loss_scale = 32768;
  m.skipped_steps = 1;
  const json line = json::parse(step_line(m));
  EXPECT_EQ(line["loss_scale"], 32768);
  EXPECT_EQ(line["skipped_steps"], 1);
}

TEST(Metrics, DivergedRunIsStillJson) {
  StepMetrics m = example();
  m.loss = std::nan("");
  m.grad_norm = INFINITY;
  const json line = json::parse(step_line(m));
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_TRUE(line["grad_norm"].is_null());
}

TEST(Metrics, HeaderHoldsTheConfigWithItsSections) {
  TrainConfig config;
  config.seed = 42;
  config.data = "some \"path\"";
  config.model.layers = 7;
  const json line = json::parse(header_line(config, 2));
  EXPECT_EQ(line["seed"], 42);
  EXPECT_EQ(line["ranks"], 2);
  EXPECT_EQ(line["version"], kVersion);
  EXPECT_EQ(line["config"]["data"], "some \"path\"");
  EXPECT_EQ(line["config"]["model"]["layers"], 7);
  EXPECT_EQ(line["config"]["optimizer"]["beta1"], 0.9);
  EXPECT_EQ(line["config"]["compile"], false);
  EXPECT_EQ(line.size(), 4u);
}

const std::string kHeader = R"({"config":{},"seed":1,"ranks":1,"version":"0"})";
std::string line_of(int step) { return fmt::format("{{\"step\":{},\"loss\":1.5}}", step); }

TEST(Metrics, LinesAreInTheFileAtOnce) {
  const TempDir dir;
  const std::string path = dir.write("m.jsonl", kHeader + "\n" + line_of(7) + "\n");
  MetricsFile file(path, kHeader, 0);
  EXPECT_EQ(dir.read("m.jsonl"), kHeader + "\n");
  file.write(line_of(1));
  EXPECT_EQ(dir.read("m.jsonl"), kHeader + "\n" + line_of(1) + "\n");
}

TEST(Metrics, AResumedRunContinuesItsFile) {
  const TempDir dir;
  const std::string until_2 = kHeader + "\n" + line_of(1) + "\n" + line_of(2) + "\n";
  // What may stand behind the checkpoint's step: nothing, later steps, a line that was cut off, another header.
  for (const std::string& rest : {std::string(), line_of(3) + "\n" + line_of(4) + "\n", line_of(3).substr(0, 9),
                                  kHeader + "\n" + line_of(3) + "\n"}) {
    const std::string path = dir.write("m.jsonl", until_2 + rest);
    MetricsFile(path, "another header", 2).write(line_of(3));
    EXPECT_EQ(dir.read("m.jsonl"), until_2 + line_of(3) + "\n") << rest;
  }
  std::filesystem::remove(dir / "m.jsonl");
  MetricsFile(dir / "m.jsonl", kHeader, 2).write(line_of(3));
  EXPECT_EQ(dir.read("m.jsonl"), kHeader + "\n" + line_of(3) + "\n") << "a file of its own";
  MetricsFile(dir.write("m.jsonl", kHeader.substr(0, 5)), kHeader, 2).write(line_of(3));
  EXPECT_EQ(dir.read("m.jsonl"), kHeader + "\n" + line_of(3) + "\n") << "killed within its header";
}

TEST(Metrics, WhatIsNoMetricsFileStays) {
  const TempDir dir;
  EXPECT_TRUE(header_line(TrainConfig(), 1).starts_with(kMetricsBeginning));
  for (const char* text : {"no metrics\n", "{\"conf", "{\"config\"x", "\n"})
    for (const std::int64_t step : {0, 2}) {
      const std::string path = dir.write("m.jsonl", text);
      const bool may_be_one = kMetricsBeginning.starts_with(text);
      if (may_be_one) MetricsFile(path, kHeader, step);
      else expect_error([&] { MetricsFile(path, kHeader, step); }, {"m.jsonl", "something else", "another file"});
      EXPECT_EQ(dir.read("m.jsonl"), may_be_one ? kHeader + "\n" : text);
    }
}

TEST(OutputFiles, OneFileUnderTwoNamesIsRefused) {
  const TempDir dir;
  const std::string text = dir.write("text", "a text\n");
  std::filesystem::create_symlink(text, dir / "link");
  std::filesystem::create_hard_link(text, dir / "hard");
  const auto refused = [&](const std::string& data, const std::string& metrics, const std::string& trace) {
    const FileOfKey read[] = {{"data", data}}, written[] = {{"metrics", metrics}, {"trace", trace}};
    try {
      check_apart(read, written);
    } catch (const ExitError& error) { return error.status() == kUsage; }
    return false;
  };
  for (const char* name : {"text", "link", "hard", "./text", "../"})
    EXPECT_EQ(refused(text, dir / name, ""), std::string_view(name) != "../") << name;
  EXPECT_TRUE(refused(text, "", dir / "link"));
  EXPECT_TRUE(refused(text, dir / "new", dir / "./new")) << "one that is not there yet";
  EXPECT_TRUE(refused(dir / "new", dir / "new", ""));
  EXPECT_FALSE(refused(text, dir / "new", dir / "newer"));
  EXPECT_FALSE(refused(text, dir / "new", text + "/new"));
  EXPECT_FALSE(refused(text, "/dev/null", "/dev/null")) << "a device";
  EXPECT_FALSE(refused("", "", ""));
}

TEST(Metrics, ASecondRunIsRefusedAndTheLinesOfTheFirstStay) {
  const TempDir dir;
  MetricsFile first(dir / "m.jsonl", kHeader, 0);
  first.write(line_of(1));
  for (const std::int64_t step : {0, 1})
    expect_error([&] { MetricsFile(dir / "m.jsonl", "another header", step); },
                 {"m.jsonl", "is written by another run", "a file of its own"});
  first.write(line_of(2));
  EXPECT_EQ(dir.read("m.jsonl"), fmt::format("{}\n{}\n{}\n", kHeader, line_of(1), line_of(2)));
}

TEST(Metrics, FileThatCannotBeWrittenIsNamed) {
  const TempDir dir;
  expect_error([&] { MetricsFile(dir / "no/m.jsonl", kHeader, 0); }, {"no/m.jsonl", "No such file"});
  MetricsFile file(dir / "m.jsonl", "", 0);
  const testing::FileSizeLimit limit(100);
  expect_error([&] { file.write(std::string(200, 'x')); }, {"m.jsonl", "File too large"});
}

// ---- the status line ----

TEST(CaptureNotice, SaysWhatIsNotReplayedOnceForEachReason) {
  CaptureNotice notice;
  std::vector<std::string> said;
  StepMetrics m;
  EXPECT_EQ(notice.of(m), "") << "nothing is to be captured";
  const auto call = [&](bool is_replay, const char* why) {
    ++m.step;
    m.captured = {is_replay, why};
    said.push_back(notice.of(m));
  };
  call(false, "ran eagerly: lazy state settles in the first call");
  call(false, "recorded: there is no graph yet");
  call(false, "recorded: the second time, to compare");
  for (int i = 0; i < 2; ++i) call(true, "replayed");
  for (int i = 0; i < 2; ++i) call(false, "ran eagerly: a");
  call(false, "recorded: b");
  call(true, "replayed");
  call(false, "recorded: b");
  EXPECT_EQ(said, (std::vector<std::string>{"", "", "", "", "", "step 6 is not captured: ran eagerly: a", "",
                                            "step 8 is not captured: recorded: b", "",
                                            "step 10 is not captured: recorded: b"}));
}

TEST(Progress, LineNamesWhatMatters) {
  const ProgressState state{
      .step = 120, .steps = 2000, .loss = 2.10339, .tokens_per_second = 35'210, .memory_bytes = 43'400'000};
  EXPECT_EQ(progress_line(state), "step  120/2000  loss 2.1034  35.2k tokens/s  43.4 MB per rank");
  ProgressState later = state;
  later.seconds_left = 83.4;
  EXPECT_EQ(progress_line(later), progress_line(state) + "  ETA 1:23");
}

TEST(Progress, Durations) {
  EXPECT_EQ(format_duration(6.6), "0:07");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(7384), "2:03:04");
  EXPECT_EQ(format_duration(std::nan("")), "?");
}

class ProgressOutput : public ::testing::Test {
 protected:
  using Clock = Progress::Clock;

  std::string shown() {
    std::fflush(out_.get());
    return dir_.read("out");
  }
  /// Shows steps 1 .. `count` of 100, `seconds` apart.
  void show_steps(Progress& progress, int count, double seconds) {
    for (int step = 1; step <= count; ++step) {
      const auto at = std::chrono::duration<double>(seconds * step);
      progress.show({.step = step, .steps = 100}, Clock::time_point(std::chrono::duration_cast<Clock::duration>(at)));
    }
  }

  TempDir dir_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> out_{std::fopen((dir_ / "out").c_str(), "w"), std::fclose};
};

TEST_F(ProgressOutput, PlainLinesEveryFiveSecondsFirstAndLast) {
  {
    Progress progress(out_.get(), false);
    show_steps(progress, 100, 1.0);
  }
  const std::string text = shown();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 21);  // steps 1, 6, ..., 96 and 100
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_NE(text.find("step   6/100"), std::string::npos);
  EXPECT_EQ(text.find("step   7/100"), std::string::npos);
  EXPECT_NE(text.find("step 100/100"), std::string::npos);
  EXPECT_NE(text.find("ETA 1:34"), std::string::npos);  // step 6: 94 steps of a second
}

TEST_F(ProgressOutput, TerminalLineIsRedrawnAndEnded) {
  {
    Progress progress(out_.get(), true);
    show_steps(progress, 10, 0.05);
    EXPECT_EQ(shown().find('\n'), std::string::npos);
    progress.message("saved");
    show_steps(progress, 10, 1.0);
  }
  const std::string text = shown();
  EXPECT_NE(text.find("\r\x1b[Ksaved\n"), std::string::npos);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  // 10 steps of 50 ms are redrawn every 100 ms: 5 times; then every second: 10 times; once for the message.
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 16);
}

}  // namespace
}  // namespace sherd
