// `sherd train` and `sherd info` as programs: the same numbers as the trainer inside the test, in the files that the
// contract describes.
#include <algorithm>
#include <sstream>

#include <nlohmann/json.hpp>

#include "nn/checkpoint/format/manifest_json.h"
#include "runtime/memory/accounting.h"
#include "runtime/os/instruction_level.h"
#include "tests/tools/program_test.h"

namespace sherd::testing {
namespace {

using nlohmann::json;

class TrainProgram : public ProgramTest {
 protected:
  /// Runs to the end and returns the metrics, one object per line.
  std::vector<json> metrics_of(int ranks, Words words) const {
    const std::string file = dir_ / "metrics.jsonl";
    words.insert(words.end(), {"--metrics", file});
    const ProgramEnd end = train(ranks, words);
    EXPECT_EQ(end.status, 0) << end.err;
    report_ = end.out;
    return read_metrics();
  }
  std::vector<json> read_metrics() const {
    std::vector<json> lines;
    std::istringstream text(dir_.read("metrics.jsonl"));
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
  }
  /// When units ran in forward, each the first time, as they are printed; -1 of one that did not.
  std::vector<int> places_of_units() const {
    std::vector<int> places;
    std::istringstream text(report_);
    for (std::string line; std::getline(text, line) && line.find(" units: ") == std::string::npos;) {
      std::istringstream words(line.starts_with("[0] ") ? line.substr(4) : line);
      const bool is_parameter = words.peek() == ' ';
      std::string name, ran;
      words >> name >> ran;
      if (!is_parameter && name != "unit") places.push_back(ran == "-" ? -1 : std::stoi(ran));
    }
    return places;
  }
  static std::vector<double> losses_of(const std::vector<json>& lines) {
    std::vector<double> losses;
    for (const json& line : lines)
      if (line.contains("loss")) losses.push_back(line["loss"].get<double>());
    return losses;
  }
  mutable std::string report_;
};

TEST_F(TrainProgram, WritesTheMetricsOfTheContract) {
  const auto lines = metrics_of(1, {"--eval-every", "2"});
  ASSERT_EQ(lines.size(), 1 + 5u);
  EXPECT_EQ(lines[0]["seed"], 7);
  EXPECT_EQ(lines[0]["ranks"], 1);
  EXPECT_EQ(lines[0]["config"]["model"]["width"], 16);
  EXPECT_TRUE(lines[0].contains("version"));
  for (std::size_t i = 1; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["step"], i);
    for (const char* key : {"loss", "lr", "grad_norm", "tokens", "tokens_per_second", "step_seconds",
                            "exposed_comm_seconds", "exposed_transfer_seconds", "exposed_skew_seconds", "memory_bytes"})
      EXPECT_TRUE(lines[i].contains(key)) << key;
    EXPECT_EQ(lines[i].contains("val_loss"), i % 2 == 0 || i == 5) << i;
  }
  expect_within(report_, {"loss", "validation", "memory, peak per category", "metrics.jsonl"});
}

TEST_F(TrainProgram, GivesTheNumbersOfTheTrainerOnAnyKindOfGroup) {
  const std::vector<double> one = losses_of(metrics_of(1, {})), two = losses_of(metrics_of(2, {}));
  EXPECT_EQ(one, train_tiny(tiny_config(data_), 1).losses);
  EXPECT_EQ(two, train_tiny(tiny_config(data_), 2).losses) << "processes and threads";
  expect_within(report_, {"collectives of the last step", "rank 1", "for transfers", "for ranks that came later"});
  EXPECT_EQ(report_.find("DIFFERS"), std::string::npos) << report_;
  EXPECT_EQ(losses_of(metrics_of(2, {"--group", "thread"})), two);
  EXPECT_EQ(losses_of(metrics_of(2, {"--compile"})), two);
  EXPECT_EQ(losses_of(metrics_of(2, {"--threads", "2"})), two) << "the number of threads";
  EXPECT_EQ(losses_of(metrics_of(2, {"--reshard-after-forward", "false"})), two);
  EXPECT_EQ(report_.find("DIFFERS"), std::string::npos) << report_;
  metrics_of(2, {"--param-dtype", "bf16"});
  EXPECT_EQ(report_.find("DIFFERS"), std::string::npos) << report_;
}

// Bytes of one tensor: one for each element, four for each block of 256 that begins on a rank. Rows are cut into
// chunks.
std::int64_t bytes_in_8_bits(const Shape& shape, std::int64_t ranks) {
  std::int64_t bytes = 0;
  const std::int64_t rows = shape[0], chunk = (rows + ranks - 1) / ranks;
  for (std::int64_t r = 0; r < ranks; ++r) {
    const std::int64_t count = std::max<std::int64_t>(std::min(chunk, rows - r * chunk), 0) * (numel(shape) / rows);
    bytes += count + 4 * ((count + 255) / 256);
  }
  return bytes;
}

std::string hash_in(const std::string& text) {
  const std::size_t at = text.find("; hash ");
  return at == std::string::npos ? "none in " + text : text.substr(at + 7, 64);
}

TEST_F(TrainProgram, HasOneHashOnAnyRanksAndInItsSaves) {
  const Words words{"--numerics", "layout_free", "--leaves", "4", "--batch", "4"};
  const auto with = [&words](const Words& more) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::vector<double> losses = losses_of(metrics_of(1, words));
  const std::string expected = hash_in(report_);
  EXPECT_EQ(losses_of(metrics_of(2, words)), losses);
  EXPECT_EQ(hash_in(report_), expected);
  EXPECT_EQ(report_.find("DIFFERS"), std::string::npos) << report_;
  const std::string save = dir_ / "saves";
  metrics_of(4, with({"--mesh", "replicate=2,dp=2", "--strategy", "hybrid_shard_state", "--save", save}));
  EXPECT_EQ(hash_in(report_), expected);
  const ProgramEnd hash = sherd({"ckpt", "hash", save}), page = sherd({"ckpt", "show", save});
  EXPECT_TRUE(hash.out.starts_with(expected)) << hash.out;
  expect_within(page.out, {expected, "4 leaves (layout_free)"});
  expect_within(train(1, words).err, {"4 leaves in 2 levels, 4 in one pass of a rank"});
  expect_within(train(2, with({"--model.dropout", "0.1"})).err, {"2 in one pass of a rank"});
  const ProgramEnd other = train(3, words);
  EXPECT_EQ(other.status, 2);
  expect_within(other.err, {"leaves = 4 do not divide among 3 ranks", "take 2 or 4"});
}

TEST_F(TrainProgram, ASaveSaysWhatItsSumsDependOn) {
  const Words lowest{"SHERD_CPU_LEVEL=x86-64-v3"};
  const std::string save = dir_ / "save", start = dir_ / "start";
  const Words words{"train", config_file_, "--numerics", "layout_free", "--leaves", "2", "--steps", "1", "--save"};
  Words to = words;
  to.push_back(save);
  const ProgramEnd before = sherd(to, lowest);
  expect_within(before.err, {"layout_free: 2 leaves in 1 level, 2 in one pass", "kernels cpu x86-64-v3"});
  expect_within(sherd({"ckpt", "show", save}).out,
                {"sums      tree of 2 leaves in 1 level", "kernels   cpu x86-64-v3", "hash "});
  const Words resumed{"train", "--resume", save, "--steps", "2", "--save", dir_ / "more"};
  const std::string again = sherd(resumed, lowest).err;
  EXPECT_EQ(again.find("the state is the same"), again.npos) << again;
  if (instruction_level().name != "x86-64-v3")
    expect_within(sherd(resumed).err,
                  {"resumes on 1: the state is the same, later steps may differ by rounding: its kernels were \"cpu "
                   "x86-64-v3\", these are \"cpu x86-64-v4"});
  Words accumulates = resumed;
  accumulates.insert(accumulates.end(), {"--accumulate", "2"});
  const ProgramEnd refused = sherd(accumulates);
  EXPECT_EQ(refused.status, kUsage);
  expect_within(refused.err, {"accumulate = 2", "share of leaves = 2", "leave accumulate out"});

  // What saves of before lack.
  train(1, {"--steps", "1", "--save", start});
  const std::string folder = start + "/step-000001";
  ckpt::Manifest manifest = ckpt::read_manifest(folder);
  EXPECT_EQ(manifest.state.erase("sums") + manifest.state.erase("kernels"), 2U);
  dir_.write("start/step-000001/manifest.json", ckpt::manifest_to_json(manifest));
  const ProgramEnd three = sherd({"run", "-n", "3", "--", SHERD_PROGRAM, "train", "--resume", start, "--steps", "2",
                                  "--save", dir_ / "three", "--strategy", "full_shard"});
  EXPECT_EQ(three.status, 0) << three.err;
  expect_within(three.err,
                {"saved by 1 rank, resumes on 3: the state is the same, later steps may differ by rounding\n",
                 "it was trained when ranks were added one after the other; they are added as a tree now, so "
                 "on 3 ranks later steps differ by rounding from that program's"});
}

TEST_F(TrainProgram, ReportsWhatTravelsInEightBits) {
  const std::int64_t ranks = 3;
  std::int64_t gathered = 0, reduced = 0;  // matrices are gathered so, blocks twice; and all gradients reduced
  train_tiny(tiny_config(data_), 1, [&](Trainer& trainer) {
    for (const auto& [name, p] : trainer.model().named_parameters()) {
      const std::int64_t in_8_bits = bytes_in_8_bits(p->shape(), ranks);
      gathered += (name.starts_with("blocks.") ? 2 : 1) * (p->shape().size() > 1 ? in_8_bits : 4 * p->numel());
      reduced += in_8_bits;
    }
  });
  const auto line = [](const char* kind, std::int64_t calls, std::int64_t bytes) {
    return fmt::format("  {:<15} {:>4} calls {:>9}   ghost", kind, calls, format_bytes(bytes));
  };
  metrics_of(3, {"--gather", "int8", "--reduce", "int8"});
  expect_within(report_,
                {line("all_gather", 5, gathered), line("reduce_scatter", 0, 0), line("all_to_all", 3, reduced)});
  EXPECT_EQ(report_.find("DIFFERS"), std::string::npos) << report_;
  metrics_of(2, {"--gather", "int8", "--reduce", "int8", "--param-dtype", "bf16", "--accumulate", "2"});
  EXPECT_EQ(report_.find("DIFFERS"), std::string::npos) << report_;
  metrics_of(2, {"--reduce", "int8", "--accumulate", "2", "--accumulate-shards"});
  EXPECT_EQ(report_.find("DIFFERS"), std::string::npos) << report_;
}

TEST_F(TrainProgram, ReportsCollectivesBesideThoseOfAGhost) {
  for (const Words& words :
       {Words{"--strategy", "no_shard"}, Words{"--reshard-after-forward", "2"}, Words{"--mesh", "dp=2,tp=2"}}) {
    metrics_of(4, words);
    expect_within(report_, {"  all_gather", "  all_to_all", "  all_reduce"});
    EXPECT_NE(report_.find("ghost"), std::string::npos) << report_;
    EXPECT_EQ(report_.find("DIFFERS"), std::string::npos) << report_;
  }
}

TEST_F(TrainProgram, F169_SavesAndResumesBitForBit) {
  const std::vector<double> whole = losses_of(metrics_of(2, {"--steps", "6"}));
  const std::string checkpoint = dir_ / "checkpoint";
  std::vector<double> parts = losses_of(metrics_of(2, {"--steps", "3", "--save", checkpoint}));
  expect_within(report_, {checkpoint});
  const auto lines = metrics_of(2, {"--steps", "6", "--resume", checkpoint});
  const std::vector<double> all = losses_of(lines);  // the file was continued
  EXPECT_EQ(all, whole);
  EXPECT_EQ(lines.back()["step"], 6);
  EXPECT_EQ(lines.size(), 1 + 6u) << "one header";
  EXPECT_EQ(std::vector<double>(all.begin(), all.begin() + 3), parts);
}

TEST_F(TrainProgram, AResumeTakesItsConfigFromTheSave) {
  const std::string checkpoint = dir_ / "checkpoint";
  const Words recipe = {"--optimizer.lr", "5e-3", "--model.dropout", "0.1", "--optimizer.decay-steps", "4"};
  const auto with = [&](Words words) {
    words.insert(words.end(), recipe.begin(), recipe.end());
    return words;
  };
  const std::vector<double> whole = losses_of(metrics_of(2, with({"--steps", "6"})));
  metrics_of(2, with({"--steps", "3", "--save", checkpoint}));
  // Neither the file nor its flags are said again. --steps alone goes on at the end of the schedule.
  ProgramEnd end = sherd({"run", "-n", "2", "--", SHERD_PROGRAM, "train", "--resume", checkpoint, "--steps", "6"});
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_EQ(losses_of(read_metrics()), whole) << "in the same file";
  EXPECT_EQ(end.err.find("differ"), std::string::npos) << end.err;
  // A new plan, other ranks: said.
  end = sherd({"train", "--resume", checkpoint + "/step-000003", "--steps", "8", "--optimizer.decay-steps", "8",
               "--save", dir_ / "other", "--metrics", dir_ / "other.jsonl"});
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_EQ(losses_of(read_metrics()), whole) << "those of the first run stay";
  expect_within(end.err, {"saved by 2 ranks, resumes on 1: the state is the same, later steps may differ by rounding",
                          "optimizer.decay_steps was 4 and is 8 now", "learning rates differ from step 4 on"});
  // What contradicts the save is refused.
  end = sherd({"train", "--resume", checkpoint, "--steps", "8", "--optimizer.lr", "1e-3"});
  EXPECT_NE(end.status, 0);
  expect_within(end.err, {"resume from", "optimizer.lr", "0.005", "0.001"});
  EXPECT_EQ(sherd({"train", "--steps", "8"}).status, kUsage);
}

TEST_F(TrainProgram, AResumeThatRoundsOtherwiseSaysSo) {
  const std::string checkpoint = dir_ / "checkpoint";
  metrics_of(2, {"--steps", "2", "--mesh", "tp=2", "--save", checkpoint});
  const ProgramEnd end = train(2, {"--steps", "3", "--mesh", "tp=2", "--parallel.sequence", "--parallel.loss", "false",
                                   "--optimizer.decay-steps", "20", "--resume", checkpoint});
  EXPECT_EQ(end.status, 0) << end.err;
  expect_within(
      end.err, {"saved by 2 ranks, resumes on 2 with sequence_parallel false -> true, loss_parallel true -> false: the "
                "state is the same, later steps may differ by rounding"});
  const ProgramEnd again = train(2, {"--steps", "3", "--mesh", "tp=2", "--recompute", "full", "--compile",
                                     "--optimizer.decay-steps", "20", "--resume", checkpoint});
  expect_within(again.err,
                {"resumes on 2 with recompute none -> full, compiled false -> true: the state is the same\n"});
  const ProgramEnd show = sherd({"ckpt", "show", checkpoint});
  expect_within(show.out, {"plan      mesh=\"tp=2\""});
}

TEST_F(TrainProgram, HelpListsTheFlags) {
  const ProgramEnd end = sherd({"train", "--help"});
  EXPECT_EQ(end.status, 0);
  expect_within(end.out, {"CONFIG.toml", "--model.layers", "--save-every", "--memory-limit"});
}

// Once, by rank 0, when the first step has shown their order, or the evaluation where steps have a budget.
TEST_F(TrainProgram, PrintsItsUnits) {
  for (const int ranks : {1, 2}) {
    for (const Words& more : {Words{}, Words{"--compile"}, Words{"--compile", "--memory-budget", "100%"},
                              Words{"--accumulate", "2", "--eval-every", "1"}}) {
      Words words{"--print-units", "--units", "bytes=14e3"};
      words.insert(words.end(), more.begin(), more.end());
      metrics_of(ranks, words);
      const std::size_t first = report_.find("reduced in");
      expect_within(report_, {"gathered", "blocks.0", "blocks.1.mlp", "(model)"});
      EXPECT_NE(first, std::string::npos);
      EXPECT_EQ(report_.find("reduced in", first + 1), std::string::npos);
      const std::vector<int> places = places_of_units();
      ASSERT_GE(places.size(), 2u) << report_;
      for (std::size_t i = 0; i < places.size(); ++i) EXPECT_EQ(places[i], static_cast<int>(i)) << report_;
    }
  }
  metrics_of(2, {});
  EXPECT_EQ(report_.find("reduced in"), std::string::npos);
}

// Two hosts of two ranks each, as far as ranks can tell: launchers say it by variables.
TEST_F(TrainProgram, AHybridStrategyHasAReplicaOnEachHost) {
  const auto script = [&](std::string_view variables) {
    return fmt::format("{}; exec \"$0\" train \"$1\" --strategy hybrid_shard --metrics {}", variables,
                       dir_ / "metrics.jsonl");
  };
  const auto named = losses_of(metrics_of(4, {"--strategy", "hybrid_shard", "--mesh", "replicate=2,dp=2"}));
  const ProgramEnd hosts =
      train_by_script(4, script("export SHERD_LOCAL_WORLD_SIZE=2 SHERD_LOCAL_RANK=$((SHERD_RANK % 2))"));
  EXPECT_EQ(hosts.status, 0) << hosts.err;
  expect_within(hosts.err, {"4 ranks, strategy hybrid_shard", ", mesh replicate=2,dp=2\n"});
  EXPECT_EQ(losses_of(read_metrics()), named);
  const ProgramEnd uneven =
      train_by_script(4, script("export SHERD_LOCAL_WORLD_SIZE=3 SHERD_LOCAL_RANK=$SHERD_RANK; "
                                "if [ $SHERD_RANK = 3 ]; then export SHERD_LOCAL_WORLD_SIZE=1 SHERD_LOCAL_RANK=0; fi"));
  EXPECT_EQ(uneven.status, kFailed);
  EXPECT_FALSE(uneven.timed_out);
  expect_within(uneven.err, {"different numbers of ranks", "3 are on the host of rank 0, 1 on that of rank 3"});
  const ProgramEnd one = train(4, {"--strategy", "hybrid_shard"});
  EXPECT_EQ(one.status, kUsage);
  expect_within(one.err, {"strategy = hybrid_shard", "all ranks are on one host", "--mesh replicate=2,dp=2"});
}

TEST_F(TrainProgram, TheMemoryLimitEndsTheRun) {
  for (int ranks : {1, 2}) {
    const ProgramEnd end = train(ranks, {"--memory-limit", "100000"});
    EXPECT_EQ(end.status, 1);
    EXPECT_FALSE(end.timed_out);
    expect_within(end.err, {"out of memory", "100 KB", "owners"});
  }
}

TEST_F(TrainProgram, RanksWithKernelsOfDifferentLevelsAreRefused) {
  const auto usable = usable_levels();
  if (usable.size() < 2) GTEST_SKIP() << "this CPU and build have one level only";
  const ProgramEnd end = train_by_script(
      2, fmt::format("export SHERD_CPU_LEVEL={}; [ $SHERD_RANK = 1 ] && SHERD_CPU_LEVEL={}; exec $0 train $1",
                     usable.back(), usable.front()));
  EXPECT_EQ(end.status, 1);
  EXPECT_FALSE(end.timed_out);
  expect_within(end.err, {"different CPU kernels",
                          fmt::format("{} on rank 0; {} on rank 1", usable.back(), usable.front()), "SHERD_CPU_LEVEL"});
}

TEST(Info, RefusesALevelThatIsNone) {
  const std::string lowest(usable_levels().front());
  const ProgramEnd end = run_program({SHERD_PROGRAM, "info"}, {"SHERD_CPU_LEVEL=x86-64-v9"});
  EXPECT_EQ(end.status, 1);
  expect_within(end.err, {"SHERD_CPU_LEVEL", "x86-64-v9", lowest});
  const ProgramEnd chosen = run_program({SHERD_PROGRAM, "info"}, {"SHERD_CPU_LEVEL=" + lowest});
  expect_within(chosen.out, {"kernels          " + lowest});
}

TEST(Info, SaysWhatTheBuildAndTheMachineHave) {
  const ProgramEnd end = run_program({SHERD_PROGRAM, "info"});
  EXPECT_EQ(end.status, 0);
  expect_within(end.out,
                {"sherd ", "cpu ", "cpus ", " allowed (", "kernels ", "x86-64-v", "matrix products",
                 "own blocked kernel", "ops ", "rows", "process groups", "thread, shm", "1 rank, no launcher"});
  const ProgramEnd ranked =
      run_program({SHERD_PROGRAM, "info"}, {"RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4"});
  expect_within(ranked.out, {"rank 1 of 4 (torchrun)"});
  const ProgramEnd broken = run_program({SHERD_PROGRAM, "info"}, {"RANK=1"});
  EXPECT_EQ(broken.status, 0);
  expect_within(broken.out, {"not usable", "WORLD_SIZE"});
  EXPECT_EQ(run_program({SHERD_PROGRAM, "info", "more"}).status, kUsage);
}

}  // namespace
}  // namespace sherd::testing
