// `sherd plan`: the exam question of 7 B on 16 GPUs. Oracles: the table of bytes of strategies and the seconds of links
// written out here from N = 6,738,415,616 parameters and bandwidths; for the rest what two commands must agree on.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/support/source_path.h"
#include "tests/tools/program_here.h"
#include "tests/tools/program_test.h"
#include "tools/plan/answer.h"
#include "tools/plan/presets.h"

namespace sherd::plan {

namespace {

using nlohmann::json;
using testing::expect_within;
using testing::sherd_here;

constexpr double kParameters = 6'738'415'616;
constexpr int kRanks = 16;

TrainConfig seven_billion() {
  TrainConfig config;
  ConfigTable table = bind(config);
  load_toml_file(table, testing::source_path("tools/configs/llama-7b.toml"));
  config.plan.device = Device::cuda(0);
  resolve(config);
  return config;
}

/// Rows on two hosts of 8.
std::vector<RowPlan> rows_of(const TrainConfig& config, std::vector<std::string_view> knobs = {"strategy"}) {
  std::vector<RowPlan> rows =
      plan_rows(config, kRanks, {.knobs = std::move(knobs), .combined = true, .replicas = 2, .slice = 8});
  for (RowPlan& row : rows) row.row.name = full_name(row.config, config);
  return rows;
}

FabricModel fabric(const char* name, double bytes_per_second, int nics) {
  return {.name = name,
          .link = {.call_seconds = 0, .peer_seconds = 0, .bytes_per_second = bytes_per_second},
          .nics = nics,
          .curves = {},
          .source = "the test"};
}

/// Two hosts of 8 devices, whose compute takes `factor` times as long as the sheet says.
Cluster two_hosts(const FabricModel& out, double factor = 1) {
  Cluster cluster{.device = find_device("h100-sxm", "--device-model"),
                  .hosts = host_layout(kRanks, 2, 8),
                  .in = fabric("in", 362e9, 0),
                  .out = out};
  cluster.software = factor;
  return cluster;
}

/// Bandwidths that rings see between two hosts: 8 NICs of 400 Gb/s, one, and one of 100 Gb/s.
const FabricModel kFat = fabric("8x400", 362e9 / 8, 8), kThin = fabric("1x400", 45e9, 1),
                  kThinner = fabric("1x100", 11e9, 1);

class SevenBillion : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    for (const RowPlan& row : rows_of(seven_billion()))
      forecasts_->emplace(row.row.name, forecast(row.config, kRanks, 32000));
  }
  static void TearDownTestSuite() { forecasts_->clear(); }
  static const Forecast& at(const std::string& name) { return forecasts_->at(name); }
  /// Seconds of an axis' collectives in a step.
  static double link_seconds(const std::string& name, const FabricModel& out, std::string_view axis) {
    for (const Simulation::Part& part : simulate(at(name).step, two_hosts(out)).axes)
      if (part.name == axis) return part.seconds;
    ADD_FAILURE() << name << " has no axis " << axis;
    return 0;
  }
  /// The factor with which a step of `name` computes so long.
  static double factor_for(const std::string& name, double seconds) {
    return seconds / simulate(at(name).step, two_hosts(kFat)).of(0).compute;
  }
  static std::vector<Option> options(const PlannedFor& planned) {
    std::vector<Option> options;
    for (const RowPlan& row : rows_of(seven_billion())) {
      Option& option = options.emplace_back();
      option.config = row.config;
      option.name = row.row.name;
      option.forecast = at(option.name);
      option.simulated = simulate(option.forecast.step, *planned.cluster);
    }
    return options;
  }
  static std::map<std::string, Forecast>* const forecasts_;
};
std::map<std::string, Forecast>* const SevenBillion::forecasts_ = new std::map<std::string, Forecast>;

TEST_F(SevenBillion, StateIsThatOfTheTableOfStrategies) {
  const std::pair<const char*, double> bytes[] = {{"full_shard", 16.0 / 16},
                                                  {"no_shard", 18},
                                                  {"shard_optimizer", 2 + 16.0 / 16},
                                                  {"shard_grad_op", 2 + 16.0 / 16},
                                                  {"hybrid_shard", 16.0 / 8},
                                                  {"hybrid_shard_grad_op", 2 + 16.0 / 8},
                                                  {"hybrid_shard_state", 4.0 / 8 + 12.0 / 16}};
  for (const auto& [name, per_parameter] : bytes)
    EXPECT_NEAR(static_cast<double>(at(name).state) / (per_parameter * kParameters), 1, 0.01) << name;
}

TEST_F(SevenBillion, SecondsOfLinksAreThoseOfBytesAndBandwidths) {
  const std::tuple<const FabricModel*, double, double> links[] = {
      {&kFat, 0.140, 0.074}, {&kThin, 1.12, 0.600}, {&kThinner, 4.56, 2.45}};
  for (const auto& [out, full, outer] : links) {
    EXPECT_NEAR(link_seconds("full_shard", *out, "dp") / full, 1, 0.02) << out->name;
    EXPECT_NEAR(link_seconds("hybrid_shard", *out, "replicate") / outer, 1, 0.02) << out->name;
  }
}

TEST_F(SevenBillion, VerdictsAreThoseOfTheExam) {
  const double factor = factor_for("full_shard", 0.86);
  const ModelSize size = model_size(seven_billion(), 32000);
  EXPECT_EQ(size.parameters, static_cast<std::int64_t>(kParameters));
  const auto planned = [&](const FabricModel& out) {
    return PlannedFor{
        .ranks = kRanks, .vocabulary = 32000, .memory_limit = 80'000'000'000, .cluster = two_hosts(out, factor)};
  };
  const auto winner = [&](const FabricModel& out) {
    std::vector<Option> rows = options(planned(out));  // the exam knows two rows
    std::erase_if(rows, [](const Option& row) { return row.name != "full_shard" && row.name != "hybrid_shard"; });
    return rows[choose(rows, planned(out)).best.value()].name;
  };
  EXPECT_EQ(winner(kFat), "full_shard");
  EXPECT_TRUE(winner(kThin).starts_with("hybrid_shard"));
  EXPECT_TRUE(winner(kThinner).starts_with("hybrid_shard"));
  // On fat links a tie, which memory decides.
  const std::vector<Option> rows = options(planned(kFat));
  const Answer answer = answer_of(rows, planned(kFat), size);
  std::string ties;
  for (const std::size_t i : answer.choice.ties) ties += rows[i].name + ";";
  expect_within(ties, {"hybrid_shard;", "shard_grad_op;"});
  EXPECT_NEAR(static_cast<double>(at("hybrid_shard").memory.bytes - at("full_shard").memory.bytes), 5e9, 1e9);
  // On the thinnest one micro-batches hide the sum over replicas.
  const PlannedFor on_thinner = planned(kThinner);
  const std::vector<Option> thinner = options(on_thinner);
  const auto more = accumulate_for(0.4, 64, Rivals(thinner, on_thinner), size);
  ASSERT_TRUE(more);
  EXPECT_TRUE(more->name.starts_with("hybrid_shard"));
  EXPECT_GE(more->mfu, 0.4);
}

// ---- the command ----

std::string config_path(const char* name) { return testing::source_path(fmt::format("tools/configs/{}.toml", name)); }

std::vector<std::string> exam(std::vector<std::string> more = {}) {
  std::vector<std::string> words{"plan", config_path("llama-7b"), "--ranks",  "16",       "--hosts",
                                 "2",    "--device-model",        "h100-sxm", "--fabric", "in=nvlink4,out=ib400x1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(PlanCommand, AnswersFirstAndEqualInputsGiveEqualBytes) {
  const auto first = sherd_here(exam({"--only", "full_shard,hybrid_shard"}));
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_TRUE(first.out.starts_with("Take hybrid_shard")) << first.out;
  expect_within(first.out,
                {"Runner-up: ", "Run it with --mesh replicate=2,dp=8 --strategy hybrid_shard", "Another row wins",
                 "bytes/s of ib400x1", "bytes of memory of a rank", "sequences of a rank", "tokens of a sequence",
                 "micro-batches of a step", "Assumed", "not calibrated", "peak at"});
  EXPECT_EQ(first.out, sherd_here(exam({"--only", "full_shard,hybrid_shard"})).out);
}

TEST(PlanCommand, LeavesTakeThePlaceOfMicroBatches) {
  const std::vector<std::string> words{"plan",
                                       config_path("llama-7b"),
                                       "--numerics",
                                       "layout_free",
                                       "--ranks",
                                       "4",
                                       "--batch",
                                       "32",
                                       "--model.layers",
                                       "1",
                                       "--model.width",
                                       "32",
                                       "--model.heads",
                                       "4",
                                       "--model.kv-heads",
                                       "4",
                                       "--model.hidden",
                                       "64",
                                       "--model.sequence",
                                       "16",
                                       "--device-model",
                                       "h100-sxm",
                                       "--fabric",
                                       "in=nvlink4"};
  const auto rows = sherd_here(words);
  EXPECT_EQ(rows.status, 0) << rows.err;
  expect_within(rows.out, {"32 sequences of 16 tokens, 8 leaves (layout_free)", "sequences of a leaf, now 4"});
  EXPECT_EQ(rows.out.find("micro-batches"), rows.out.npos) << rows.out;
  std::vector<std::string> ways = words;
  ways.insert(ways.end(), {"--search", "--tries", "20"});
  const auto found = sherd_here(ways);
  expect_within(found.out, {"Take dp="});
  EXPECT_EQ(found.out.find("below their bounds"), found.out.npos) << found.out;
  EXPECT_EQ(found.out.find("accumulate"), found.out.npos) << found.out;
}

TEST(PlanCommand, JsonHasEveryRowWithTrafficByAxisAndFabric) {
  const auto end = sherd_here(exam({"--json", "--flips", "false"}));
  EXPECT_EQ(end.status, 0) << end.err;
  std::istringstream lines(end.out);
  std::string line;
  std::getline(lines, line);
  EXPECT_TRUE(json::parse(line).at("answer").at(0).get<std::string>().starts_with("Take "));
  int rows = 0;
  while (std::getline(lines, line)) {
    const json row = json::parse(line);
    ++rows;
    EXPECT_GT(row.at("predicted_step_seconds"), 0) << line;
    EXPECT_GT(row.at("predicted_memory_bytes").at("total"), 0);
    if (row.at("name") != "hybrid_shard") continue;
    std::map<std::string, json> axes;
    for (const json& axis : row.at("axes")) axes[axis.at("axis")] = axis;
    EXPECT_EQ(axes.at("dp").at("fabric"), "nvlink4");
    EXPECT_EQ(axes.at("replicate").at("fabric"), "ib400x1");
    // Half of a sum of shards crosses twice: once to be added, once to come back.
    EXPECT_NEAR(axes.at("replicate").at("wire_bytes").get<double>() / (4 * kParameters / 8), 1, 0.01);
  }
  EXPECT_EQ(rows, 24);
}

TEST(PlanCommand, WithoutADeviceItSaysWhatFits) {
  const auto end = sherd_here({"plan", config_path("llama3-70b"), "--ranks", "8", "--batch", "8", "--only",
                               "full_shard", "--memory-limit", "80GB"});
  EXPECT_EQ(end.status, 0) << end.err;
  expect_within(end.out, {"No device is named", "0 of 6 rows fit into 80 GB"});
}

TEST(PlanCommand, ExplainsARowAndSweepsASetting) {
  const auto explained = sherd_here(exam({"--explain", "full_shard"}));
  EXPECT_EQ(explained.status, 0) << explained.err;
  expect_within(explained.out, {"full_shard: a step takes", "forward", "backward", "exposed   dp on ib400x1", "peak ",
                                "--recompute full", "--reshard-after-forward false", "--prefetch false"});
  const auto swept = sherd_here(exam({"--only", "full_shard,hybrid_shard", "--sweep", "link=11e9:352e9"}));
  EXPECT_EQ(swept.status, 0) << swept.err;
  EXPECT_EQ(std::ranges::count(swept.out, '\n'), 7) << swept.out;
  expect_within(swept.out, {"hybrid_shard", "full_shard "});
}

void refused(std::vector<std::string> words, std::initializer_list<std::string_view> parts) {
  const auto end = sherd_here(words);
  EXPECT_EQ(end.status, 2) << fmt::format("{}", fmt::join(words, " "));
  expect_within(end.err, parts);
}

TEST(PlanCommand, WrongInputIsNamedByFlagAndValue) {
  refused({"plan"}, {"needs a config"});
  refused({"plan", config_path("llama-7b")}, {"--ranks", "--mesh"});
  refused({"plan", config_path("llama-7b"), "--ranks", "16", "--mesh", "dp=8"}, {"dp=8", "16"});
  refused(exam({"--per-host", "6"}), {"--hosts", "--per-host", "6", "16"});
  refused(exam({"--batch", "24"}), {"24", "16"});
  refused(exam({"--device-model", "h100-sxn"}), {"--device-model h100-sxn", "h100-sxm"});
  refused(exam({"--fabric", "in=nvlink4,out=ib400"}), {"--fabric out ib400", "ib400x1"});
  refused(exam({"--fabric", "in=nvlink4"}), {"--hosts 2", "out=NAME"});
  refused(exam({"--software", "own"}), {"--software own", "h100-sxm"});
  refused(exam({"--memory-limit", "0"}), {"--memory-limit", "0"});
  refused(exam({"--only", "no_such"}), {"--only", "no_such"});
  refused(exam({"--explain", "ful_shard"}), {"--explain", "ful_shard", "full_shard"});
  refused(exam({"--sweep", "batch=8"}), {"sweep", "batch=8", "KEY=A:B"});
  const auto unread = sherd_here({"plan", "--published", "/nonexistent.toml"});
  EXPECT_EQ(unread.status, 1);
  expect_within(unread.err, {"/nonexistent.toml"});
}

TEST(PlanPresets, AllAreReadAndNameTheirSources) {
  for (const std::string& name : preset_names("devices")) {
    const DeviceModel device = find_device(name, "--device-model");
    EXPECT_EQ(device.name, name);
    EXPECT_FALSE(device.source.empty());
    EXPECT_GT(device.peak_flops, 0);
  }
  for (const std::string& name : preset_names("fabrics")) EXPECT_EQ(find_fabric(name, "--fabric").name, name);
  EXPECT_EQ(preset_names("devices").size(), 5u);
  EXPECT_EQ(preset_names("fabrics").size(), 7u);
}

}  // namespace

}  // namespace sherd::plan
