// `sherd walk` as a user sees it, in tiny sizes: what runs have held and moved beside what ghosts predict. Oracles: the
// arithmetic written out here, for the strategies of a GPT of known sizes; for all rows that measured and predicted
// agree, which no part of walk decides alone.
#include <fstream>
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/tools/program_test.h"

namespace sherd {

using namespace train;

namespace {

using nlohmann::json;
using testing::expect_within;

constexpr std::int64_t kLayers = 3, kWidth = 64, kVocabulary = 256, kSequence = 32;
// Elements: four matrices of attention, two of the MLP, two norms; embeddings and the last norm, with a tied head.
constexpr std::int64_t kBlock = 12 * kWidth * kWidth + 2 * kWidth;
constexpr std::int64_t kRoot = (kVocabulary + kSequence + 1) * kWidth;
constexpr std::int64_t kAll = kLayers * kBlock + kRoot;

class Walk : public testing::ProgramTest {
 protected:
  struct Result {
    testing::ProgramEnd end;
    json about;
    std::vector<json> rows;
    const json& row(const std::string& name) const {
      for (const json& row : rows)
        if (row.at("name") == name) return row;
      ADD_FAILURE() << "there is no row " << name;
      return rows.at(0);
    }
  };
  /// Runs `sherd walk` on a tiny model.
  static Result walk(Words words) {
    words.insert(words.begin(), {"walk", "--json", "--measured", "1", "--rounds", "1", "--layers", "3", "--width", "64",
                                 "--heads", "2", "--sequence", "32"});
    Result result{.end = sherd(words, {"SHERD_CACHE="}), .about = {}, .rows = {}};
    std::istringstream lines(result.end.out);
    for (std::string line; std::getline(lines, line);) {
      if (result.about.is_null()) result.about = json::parse(line);
      else result.rows.push_back(json::parse(line));
    }
    EXPECT_FALSE(result.rows.empty()) << result.end.err;
    return result;
  }
};

void expect_predicted(const json& row) {
  SCOPED_TRACE(row.at("name"));
  EXPECT_EQ(row.at("memory_bytes"), row.at("predicted_memory_bytes"));
  for (const std::string key : {"calls", "bytes"})  // within a budget a run decides which gathers it leaves out
    EXPECT_EQ(row.value("predicted_" + key, row.at(key)), row.at(key));
  EXPECT_EQ(row.contains("predicted_calls"), row.at("memory_budget") == "none");
  EXPECT_FALSE(row.at("ranks").empty());
  for (const json& rank : row.at("ranks")) {
    EXPECT_EQ(rank.at("memory_bytes"), rank.at("predicted_memory_bytes"));
    EXPECT_EQ(rank.at("memory_at_peak_bytes"), rank.at("predicted_memory_at_peak_bytes"));
  }
}

void expect_all(const std::vector<json>& rows) {
  for (const json& row : rows) {
    EXPECT_FALSE(row.contains("failure")) << row;
    if (!row.contains("memory_bytes")) continue;  // not for these ranks
    expect_predicted(row);
    EXPECT_GT(row.at("tokens_per_second"), 0);
    expect_within(row.at("sentence"), {row.at("name").get<std::string>()});
  }
}

TEST_F(Walk, EveryByteAndCallIsThatOfGhosts) {
  const Result result = walk({});
  EXPECT_EQ(result.end.status, 0) << result.end.err;
  expect_all(result.rows);
  std::vector<std::string> names;
  for (const json& row : result.rows) names.push_back(row.at("name"));
  const std::vector<std::string> strategies{
      "full_shard (default)",     "no_shard",     "shard_optimizer",      "shard_grad_op",
      "full_shard, reshard to 2", "hybrid_shard", "hybrid_shard_grad_op", "hybrid_shard_state"};
  for (const std::string& name : strategies) EXPECT_TRUE(std::ranges::count(names, name) == 1) << name;
  for (const char* name : {"recompute selective", "recompute full", "prefetch false", "units coarse", "units fine"})
    EXPECT_TRUE(std::ranges::count(names, name) == 1) << name;
  for (const char* name : {"accumulate 2", "accumulate 2 shards", "bf16"})
    EXPECT_TRUE(std::ranges::count(names, name) == 1) << name;
  for (const char* name : {"offload optimizer", "captured", "captured within 75%", "captured within 60%"})
    EXPECT_TRUE(std::ranges::count(names, name) == 1) << name;
  for (const json& row : result.rows) {
    SCOPED_TRACE(row.at("name"));
    EXPECT_EQ(row.contains("memory_bytes"), row.at("memory_budget") == "none");
    if (row.at("memory_budget") != "none") {  // little of so small a model is activations
      expect_within(row.at("sentence"), {"not run: a budget of", "below the least that the step can hold"});
      continue;
    }
    for (const char* key : {"step_seconds", "tokens_per_second", "exposed_transfer_seconds"})
      EXPECT_TRUE(row.contains(key) && row.contains(std::string("predicted_") + key)) << key;
    EXPECT_FALSE(row.at("axes").empty());
    EXPECT_NE(row.at("link"), "");
  }
  expect_within(result.about.at("link").get<std::string>(), {"take as long as its step"});
  expect_within(result.about.at("prices").get<std::string>(), {"not calibrated", "the default run without a link"});
  expect_within(result.about.at("verdict").get<std::string>(), {"Take ", " ms a step"});
}

// What crosses each axis, by hand; strategies with replicas send a part of the gradients over the outer one alone.
TEST_F(Walk, BytesByAxisAndTwoRatesByDefault) {
  const Result result = walk({"--dry", "--only", "hybrid_shard,no_shard"});
  EXPECT_EQ(result.end.status, 0) << result.end.err;
  const auto sent = [&](const std::string& name, const std::string& axis) {
    double bytes = 0;
    for (const json& part : result.row(name).at("axes"))
      if (part.at("axis") == axis) bytes += part.at("wire_bytes").get<double>();
    return bytes;
  };
  const double gathered = 4.0 * (2 * kAll - kRoot), reduced = 4.0 * kAll;
  EXPECT_NEAR(sent("full_shard (default)", "dp"), (gathered + reduced) * 3 / 4, 1e4);
  EXPECT_NEAR(sent("no_shard", "dp"), 2 * reduced * 3 / 4, 1e4) << "a ring is a scatter and a gather";
  EXPECT_NEAR(sent("hybrid_shard", "dp"), (gathered + reduced) / 2, 1e4);
  EXPECT_NEAR(sent("hybrid_shard", "replicate"), 2 * (reduced / 2) / 2, 1e4);
  for (const json& row : result.rows) EXPECT_FALSE(row.contains("step_seconds")) << "--dry runs nothing";
}

// By hand: what travels has half the bytes in bf16; micro-batches gather anew, and keep whole
// gradients or shards of them.
TEST_F(Walk, RowsOfTypesAndMicroBatchesArePredicted) {
  const Result result = walk({"--dry", "--only", "bf16,accumulate"});
  EXPECT_EQ(result.end.status, 0) << result.end.err;
  const json& base = result.row("full_shard (default)");
  const auto number = [&](const char* row, const char* of, const char* what) {
    return result.row(row).at(of).at(what).get<double>();
  };
  const auto of_base = [&](const char* of, const char* what) { return base.at(of).at(what).get<double>(); };
  EXPECT_EQ(number("bf16", "predicted_bytes", "all_gather"), of_base("predicted_bytes", "all_gather") / 2);
  EXPECT_EQ(number("bf16", "predicted_bytes", "reduce_scatter"), of_base("predicted_bytes", "reduce_scatter") / 2);
  EXPECT_EQ(number("accumulate 2", "predicted_calls", "reduce_scatter"), of_base("predicted_calls", "reduce_scatter"));
  EXPECT_EQ(number("accumulate 2 shards", "predicted_calls", "reduce_scatter"),
            2 * of_base("predicted_calls", "reduce_scatter"));
  EXPECT_GE(number("accumulate 2", "predicted_memory_bytes", "gradients"), 4.0 * kAll);
  EXPECT_LT(number("accumulate 2 shards", "predicted_memory_bytes", "gradients"), 4.0 * kAll);
  EXPECT_EQ(result.row("bf16").at("param_dtype"), "bf16");
  EXPECT_EQ(result.row("accumulate 2 shards").at("accumulate_shards"), "true");
}

TEST_F(Walk, RowsThatTheHostCannotHoldAreNotRun) {
  const Result result = walk({"--dry", "--layers", "2", "--width", "65536", "--heads", "512", "--model.hidden",
                              "1048576", "--only", "no_shard"});
  EXPECT_EQ(result.end.status, 0) << result.end.err;
  for (const json& row : result.rows)
    expect_within(row.at("left_out").get<std::string>(), {"4 ranks hold", "this host has"});
}

TEST_F(Walk, RowsWithinBudgetsHoldNoMoreThanTheirs) {
  const Result result = walk({"--ranks", "2", "--sequence", "128", "--link", "none", "--only", "captured"});
  EXPECT_EQ(result.end.status, 0) << result.end.err;
  expect_all(result.rows);
  const auto total = [&](const std::string& name) {
    return result.row(name).at("memory_bytes").at("total").get<double>();
  };
  EXPECT_LE(total("captured within 75%"), 0.75 * total("captured"));
  EXPECT_LE(total("captured within 60%"), 0.6 * total("captured"));
  EXPECT_LT(0, result.row("captured within 60%").at("predicted_step_seconds"));
}

TEST_F(Walk, NumbersOfStrategiesAreThoseOfArithmetic) {
  const Result result = walk({});
  struct Expected {
    const char* name;
    std::int64_t parts_of_parameters, parts_of_state, unsharded, gathers, gathered, reductions;
  };
  const std::int64_t pair = 4 * (kRoot + 2 * kBlock), twice = 4 * (2 * kAll - kRoot);
  for (const Expected& e :
       {Expected{"full_shard (default)", 4, 4, pair, 2 * kLayers + 1, twice, kLayers + 1},
        Expected{"no_shard", 1, 1, 0, 0, 0, 0},
        Expected{"shard_optimizer", 4, 4, 4 * kAll, kLayers + 1, 4 * kAll, kLayers + 1},
        Expected{"shard_grad_op", 4, 4, 4 * kAll, kLayers + 1, 4 * kAll, kLayers + 1},
        Expected{"hybrid_shard", 2, 2, pair, 2 * kLayers + 1, twice, kLayers + 1},
        Expected{"hybrid_shard_state", 2, 4, pair, 3 * kLayers + 2, twice + 2 * kAll, 2 * (kLayers + 1)},
        Expected{"recompute full", 4, 4, pair, 2 * kLayers + 1, twice, kLayers + 1},
        Expected{"prefetch false", 4, 4, 4 * (kRoot + kBlock), 2 * kLayers + 1, twice, kLayers + 1},
        Expected{"units coarse", 4, 4, 4 * kAll, 1, 4 * kAll, 1}}) {
    SCOPED_TRACE(e.name);
    const json& row = result.row(e.name);
    const json& memory = row.at("memory_bytes");
    const auto near = [](const json& seen, std::int64_t bytes) {
      EXPECT_NEAR(seen.get<double>(), static_cast<double>(bytes), 0.01 * static_cast<double>(bytes));
    };
    near(memory.at("parameters"), 4 * kAll / e.parts_of_parameters);
    near(memory.at("optimizer"), 8 * kAll / e.parts_of_state);
    near(memory.at("unsharded"), e.unsharded);
    EXPECT_EQ(row.at("calls").at("all_gather"), e.gathers);
    near(row.at("bytes").at("all_gather"), e.gathered);
    EXPECT_EQ(row.at("calls").at("reduce_scatter"), e.reductions);
  }
}

TEST_F(Walk, OtherMeshesTypesAndModels) {
  for (const Words& words :
       {Words{"--ranks", "3", "--batch", "6", "--rounds", "2"},
        {"--mesh", "replicate=2,dp=3", "--batch", "6"},
        {"--model", "llama", "--ranks", "2", "--compile"},
        {"--ranks", "4", "--param-dtype", "bf16"},
        {"--ranks", "4", "--link", "none", "--units", "fine", "--recompute", "full", "--strategy", "hybrid_shard"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(words, " ")));
    Words all = words;
    all.insert(all.end(), {"--layers", "2"});
    const Result result = walk(all);
    EXPECT_EQ(result.end.status, 0) << result.end.err;
    expect_all(result.rows);
  }
}

TEST_F(Walk, CombinationsOfSettings) {
  const Result result = walk({"--all", "--layers", "2", "--link", "none", "--only", "hybrid_shard_state"});
  EXPECT_EQ(result.end.status, 0) << result.end.err;
  EXPECT_EQ(result.rows.size(), 1u + 3 * 2 * 2 * 3);  // recompute x offload x prefetch x units
  expect_all(result.rows);
}

TEST_F(Walk, TensorParallelismAndEncodedValuesAreTimedToo) {
  for (const Words& words : {Words{"--mesh", "dp=2,tp=2"}, {"--gather", "int8", "--reduce", "int8", "--ranks", "2"}}) {
    SCOPED_TRACE(words[0]);
    const Result result = walk(words);
    EXPECT_EQ(result.end.status, 0) << result.end.err;
    expect_all(result.rows);
    EXPECT_TRUE(result.rows[0].contains("predicted_step_seconds"));
  }
}

// A strategy without replicas is on one axis over both, which is as slow as the slower one. Oracle: the seconds that
// the links take, by hand (runtime/comm/group/link.h); no step is shorter.
TEST_F(Walk, LinksOfAxesApart) {
  constexpr double kInner = 1e8, kOuter = 5e6;
  const Result result =
      walk({"--mesh", "replicate=2,dp=2", "--link", "dp=1e8,0;replicate=5e6,0", "--only", "hybrid_shard"});
  const json &flat = result.row("full_shard (default)"), &hybrid = result.row("hybrid_shard");
  EXPECT_EQ(hybrid.at("link"), "dp=1e8,0;replicate=5e6,0");
  EXPECT_EQ(hybrid.at("mesh"), "replicate=2,dp=2");
  EXPECT_EQ(flat.at("mesh"), "dp=4");
  EXPECT_EQ(flat.at("link"), "dp=5000000,0");
  const double gathered = 4.0 * (2 * kAll - kRoot), reduced = 4.0 * kAll;
  const double flat_seconds = (gathered + reduced) * 3 / 4 / kOuter, sums = 2 * (reduced / 2) / 2 / kOuter;
  EXPECT_GT(sums, (gathered + reduced) / 2 / kInner);  // the outer link is the busier one
  EXPECT_GE(flat.at("step_seconds"), flat_seconds);
  EXPECT_GE(hybrid.at("step_seconds"), sums);
  double predicted = 0;
  for (const json& axis : flat.at("axes")) predicted += axis.at("seconds").get<double>();
  EXPECT_NEAR(predicted, flat_seconds, 0.01 * flat_seconds);
  EXPECT_GE(flat.at("predicted_step_seconds"), flat_seconds);
  EXPECT_GE(hybrid.at("predicted_step_seconds"), sums);
}

TEST_F(Walk, OnlySomeRows) {
  const Result result = walk({"--rounds", "2", "--only", "recompute,no_shard", "--ranks", "2", "--link", "none"});
  std::vector<std::string> names;
  for (const json& row : result.rows) names.push_back(row.at("name"));
  EXPECT_EQ(names,
            (std::vector<std::string>{"full_shard (default)", "recompute selective", "recompute full", "no_shard"}));
  for (const json& row : result.rows) EXPECT_GE(row.at("step_spread_seconds"), 0) << "of its two rounds";
}

TEST_F(Walk, ARunThatDoesNotFitIsAResult) {
  const Result all = walk({"--ranks", "2", "--only", "recompute full"});
  const auto peak = [&](const char* name) { return all.row(name).at("memory_bytes").at("total").get<std::int64_t>(); };
  const std::int64_t limit = (peak("recompute full") + peak("full_shard (default)")) / 2;
  const Result limited = walk({"--ranks", "2", "--only", "recompute full", "--memory-limit", std::to_string(limit)});
  EXPECT_EQ(limited.end.status, 0) << limited.end.err;
  expect_within(limited.row("full_shard (default)").at("failure"), {"out of memory", "of the limit of"});
  expect_within(limited.row("full_shard (default)").at("sentence"), {"did not run", "ghost steps say"});
  EXPECT_FALSE(limited.row("recompute full").contains("failure"));
}

TEST_F(Walk, AConfigAndItsTextAreWalked) {
  const auto end = sherd({"walk", config_file_, "--ranks", "2", "--measured", "1", "--rounds", "1", "--check", "--svg",
                          dir_ / "walk.svg"});
  EXPECT_EQ(end.status, 0) << end.err;
  expect_within(end.out, {"gpt2, 2 layers, width 16", "full_shard (default)", "predicted", "tokens/s",
                          "units fine: ", "Ghost steps have predicted the peaks of", "hybrid_shard: not run: ", "Take ",
                          "a rank sends per step, MB by axis"});
  const std::string svg = dir_.read("walk.svg");
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg.substr(0, 80);
  expect_within(svg, {"activations", "no_shard", "tokens per second", "</svg>"});
}

TEST_F(Walk, BadInput) {
  struct Bad {
    Words words;
    int status;
    std::vector<std::string> parts;
  };
  const std::vector<Bad> all{{{"--model", "gtp"}, kUsage, {"\"gtp\"", "did you mean gpt?", "llama"}},
                             {{"--model", "gpt", config_file_}, kUsage, {"--model", config_file_}},
                             {{config_file_, config_file_}, kUsage, {"one config file"}},
                             {{"--mesh", "dp=3", "--ranks", "4"}, kUsage, {"dp=3", "this run has 4"}},
                             {{"--ranks", "3"}, kUsage, {"batch = 8", "3 ranks", "multiple of 3"}},
                             {{"--ranks", "1"}, kUsage, {"one rank", "--ranks 2 or more"}},
                             {{"--ranks", "65"}, kUsage, {"--ranks", "64", "65"}},
                             {{"--measured", "0"}, kUsage, {"--measured", "0"}},
                             {{"--rounds", "0"}, kUsage, {"--rounds", "0"}},
                             {{"--svg", dir_ / "none/x.svg"}, kFailed, {"none/x.svg", "No such file"}},
                             {{"--link", "fast"}, kUsage, {"BYTES_PER_S", "\"fast\""}},
                             {{"--strategy", "fulshard"}, kUsage, {"fulshard", "full_shard"}},
                             {{"--resume", "there"}, kUsage, {"fresh weights", "resume"}},
                             {{"--data", dir_ / "none"}, kFailed, {"no data at"}},
                             {{dir_ / "none.toml"}, kFailed, {"none.toml"}},
                             {{"--only", "hybrid_shards"}, kUsage, {"\"hybrid_shards\"", "hybrid_shard"}},
                             {{"--layrs", "2"}, kUsage, {"--layrs", "--layers"}}};
  for (const Bad& bad : all) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(bad.words, " ")));
    Words words{"walk"};
    words.insert(words.end(), bad.words.begin(), bad.words.end());
    const auto end = sherd(words);
    EXPECT_EQ(end.status, bad.status) << end.err;
    for (const std::string& part : bad.parts) expect_within(end.err, {part});
  }
}

}  // namespace
}  // namespace sherd
