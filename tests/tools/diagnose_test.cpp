// `sherd diagnose`. Oracles: metrics written here, of which every share and every cause is known; a run of the program.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>

#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/tools/tiny_run.h"
#include "tools/diagnose/report.h"
#include "tools/train/exit_status.h"

namespace sherd::diagnose {

namespace {

using nlohmann::json;
using testing::expect_error;
using testing::TempDir;

constexpr double kForward = 0.030, kBackward = 0.060, kOptimizer = 0.010;

/// A Llama of 6 blocks on two ranks.
TrainConfig model_config() {
  TrainConfig config;
  config.batch = 4;
  config.steps = 23;
  config.threads = 1;
  config.model.layers = 6;
  config.model.heads = 4;
  config.model.width = 128;
  config.model.sequence = 64;
  config.model.vocabulary = 256;
  config.plan.compiled = true;
  resolve(config);
  return config;
}

/// Metrics of 23 steps as a run writes them. Without a change steps take 0.1 s, all of it compute, and transfers hide.
struct WrittenRun {
  TrainConfig config = model_config();
  int ranks = 2;
  StepMetrics step{};
  RunTimes times{};
  std::function<void(StepMetrics&)> change = [](StepMetrics&) {};

  WrittenRun() {
    step.loss = 2;
    set(StepPart::forward, kForward);
    set(StepPart::backward, kBackward);
    set(StepPart::optimizer, kOptimizer);
    step.captured = {true, "replayed"};
    times.steps = {.count = 20, .p50 = 0.1, .p95 = 0.1, .max = 0.1};
    times.ranks = {{0, "a", 400, 0}, {1, "a", 400, 0}};
    for (int rank = 0; rank < 2; ++rank)
      times.hosts.push_back({.host = "a", .process = rank, .cpu = 0.1, .cpus = 2, .online = 2, .threads = 1});
    set_link(0, 4e9, 0, 0);
  }
  void set(StepPart part, double seconds) { step.seconds[static_cast<std::size_t>(part)] = seconds; }
  /// Units as a ghost has them, on such a link, and which part of their gathers and reductions is waited for.
  void set_link(double call_seconds, double bytes_per_second, double exposed_gathers, double exposed_reductions) {
    const Timeline ghost = plan::forecast(config, ranks, config.model.vocabulary).step;
    std::map<std::string, UnitTime, std::less<>> units;
    double exposed = 0;
    for (const Timeline::Item& item : ghost.items) {
      if (item.group == Timeline::kNone || item.subject == 0) continue;
      UnitTime& unit = units[std::string(ghost.text(item.subject))];
      unit.unit = ghost.text(item.subject);
      const bool gathers = item.movement == Movement::gather;
      UnitTime::Part& part = gathers ? unit.gather : unit.reduce;
      const double seconds = call_seconds + wire_bytes(item.movement, ranks, item.bytes) / bytes_per_second;
      const double waited = seconds * (gathers ? exposed_gathers : exposed_reductions);
      part.calls += 1;
      part.seconds += seconds;
      part.exposed_transfer += waited;
      exposed += waited;
    }
    times.units.clear();
    for (auto& [name, unit] : units) times.units.push_back(std::move(unit));
    add_waits(exposed, 0);
  }
  /// Waits within backward.
  void add_waits(double transfer, double skew) {
    step.exposed_comm_seconds += transfer + skew;
    step.exposed_skew_seconds += skew;
    step.seconds[static_cast<std::size_t>(StepPart::backward)] += transfer + skew;
  }
  /// Seconds per step of all gathers.
  double gather_seconds() const {
    double sum = 0;
    for (const UnitTime& unit : times.units) sum += unit.gather.seconds;
    return sum;
  }
  std::string text() const {
    std::string lines = header_line(config, ranks) + "\n";
    for (int s = 1; s <= config.steps; ++s) {
      StepMetrics m = step;
      m.step = s;
      m.tokens = config.batch * config.model.sequence;
      if (s == config.steps) m.val_loss = 2, m.times = times;
      change(m);
      m.step_seconds = 0;
      for (std::size_t p = 0; p < m.seconds.size(); ++p)
        if (p != static_cast<std::size_t>(StepPart::evaluation) && p != static_cast<std::size_t>(StepPart::save))
          m.step_seconds += m.seconds[p];
      m.tokens_per_second = static_cast<double>(m.tokens) / m.step_seconds;
      lines += step_line(m) + "\n";
    }
    return lines;
  }
};

class Diagnose : public ::testing::Test {
 protected:
  RunFile read(const std::string& text) { return read_run(dir_.write(fmt::format("{}.jsonl", ++count_), text)); }
  std::vector<Finding> findings(const WrittenRun& written) {
    runs_.push_back(read(written.text()));
    const Shares shares = shares_of(runs_.back());
    const PricedRun priced(runs_.back(), shares, nullptr, "");
    EXPECT_EQ(priced.why_not(), "");
    return findings_of({runs_.back(), shares, priced});
  }
  /// The first finding, which is of this id.
  Finding first(const WrittenRun& written, std::string_view id) {
    const std::vector<Finding> all = findings(written);
    std::string ids;
    for (const Finding& finding : all) ids += fmt::format("{} {:.4f}; ", finding.id, finding.seconds);
    if (all.empty() || all[0].id != id) {
      ADD_FAILURE() << id << " should come first of: " << ids;
      return {};
    }
    EXPECT_FALSE(all[0].evidence.empty());
    EXPECT_FALSE(all[0].command.empty());
    return all[0];
  }
  void expect_refused(const std::string& text, std::initializer_list<std::string_view> words) {
    expect_error([&] { read(text); }, words);
  }

  TempDir dir_;
  int count_ = 0;
  std::deque<RunFile> runs_;
};

TEST_F(Diagnose, ARunThatComputesHasNoFinding) {
  const WrittenRun written;
  EXPECT_TRUE(findings(written).empty());
  const PricedRun priced(runs_[0], shares_of(runs_[0]), nullptr, "");
  const std::string bound = bound_of({runs_[0], shares_of(runs_[0]), priced});
  EXPECT_NE(bound.find("compute bounds it: 100.00 ms of a step, 100 %"), bound.npos) << bound;
}

TEST_F(Diagnose, SharesAddUpToTheStep) {
  WrittenRun written;
  written.config.eval_every = 5;
  written.times.units = {{"blocks.0", {2, 9e-3, 2e-3, 1e-3}, {1, 8e-3, 5e-3, 0}},
                         {"blocks.11", {2, 9e-3, 4e-3, 1e-3}, {1, 8e-3, 7e-3, 0}}};
  written.add_waits(18e-3, 5e-3);
  written.step.exposed_comm_seconds += 2e-3;  // of the norm
  written.set(StepPart::update_wait, 2e-3);
  written.set(StepPart::data, 3e-3);
  written.set(StepPart::other, 1e-3);
  written.change = [](StepMetrics& m) {
    if (m.step % 5 == 0) m.seconds[static_cast<std::size_t>(StepPart::evaluation)] = 0.05;
    if (m.step % 5 == 1) m.seconds[static_cast<std::size_t>(StepPart::save)] = 0.02;
    if (m.step == 23) m.seconds[static_cast<std::size_t>(StepPart::evaluation)] = 9;  // after the last step
  };
  const RunFile run = read(written.text());
  const Shares shares = shares_of(run);
  EXPECT_NEAR(shares.at(Share::compute), kForward + kBackward + kOptimizer, 1e-9);
  EXPECT_NEAR(shares.at(Share::gathers), 6e-3, 1e-9);
  EXPECT_NEAR(shares.at(Share::reductions), 12e-3, 1e-9);
  EXPECT_NEAR(shares.at(Share::collectives), 2e-3, 1e-9);
  EXPECT_NEAR(shares.at(Share::skew), 5e-3, 1e-9);
  EXPECT_NEAR(shares.at(Share::data), 3e-3, 1e-9);
  EXPECT_NEAR(shares.at(Share::other), 1e-3, 1e-9);
  EXPECT_NEAR(shares.at(Share::device), 0, 1e-9);
  EXPECT_NEAR(shares.at(Share::evaluation), 4 * 0.05 / 20, 1e-9) << "of steps 5, 10, 15 and 20";
  EXPECT_NEAR(shares.at(Share::saves), 4 * 0.02 / 20, 1e-9) << "of steps 6, 11, 16 and 21";
  EXPECT_NEAR(shares.total(), run.step_seconds() + 0.014, 1e-9);
  EXPECT_EQ(most_exposed(run, &UnitTime::gather), "blocks.*");
}

TEST_F(Diagnose, PrefetchThatIsOff) {
  WrittenRun written;
  written.config.plan.prefetch = false;
  written.set_link(0, 2e8, 1, 0);  // each gather is waited for
  const Finding finding = first(written, "prefetch_off");
  EXPECT_EQ(finding.command, "--prefetch true");
  EXPECT_TRUE(finding.is_simulated);
  EXPECT_GT(finding.gain, 0.6 * written.gather_seconds()) << "all but the first hide";
  EXPECT_LE(finding.gain, written.gather_seconds());
  written.config.save = "somewhere";  // what only goes with a folder or a file hides no finding
  written.config.save_every = 100;
  written.config.save_async = written.config.overwrite = true;
  written.config.on_nonfinite = "rollback";
  written.config.spike = 3;
  written.config.trace = "trace.json";
  written.config.trace_steps = "4:5";
  EXPECT_EQ(first(written, "prefetch_off").command, finding.command);
}

TEST_F(Diagnose, UnitsThatAreTooCoarseOrTooFine) {
  WrittenRun written;
  written.config.plan.units = "coarse";
  written.set_link(0, 2e8, 0.9, 0.9);
  EXPECT_EQ(first(written, "units_coarse").command, "--units block");
  written = {};
  written.config.plan.units = "fine";
  written.set_link(1e-3, 4e9, 0.5, 0.5);
  EXPECT_EQ(first(written, "units_fine").command, "--units block");
}

TEST_F(Diagnose, SumsThatAreWiderThanTheParameters) {
  WrittenRun written;
  written.config.plan.param_dtype = DType::bf16;
  written.config.plan.micro_batches = 2;  // of which gradients add up in f32, and travel so
  written.set_link(0, 3e7, 0, 0.6);
  const std::vector<Finding> all = findings(written);  // the link is slow as well
  const auto wide = std::ranges::find(all, std::string_view("wide_reduction"), &Finding::id);
  ASSERT_LT(wide - all.begin(), 2);
  EXPECT_EQ(wide->command, "--reduce-dtype bf16");
}

TEST_F(Diagnose, ReshardingThatIsNotNeeded) {
  WrittenRun written;
  written.set_link(0, 4e7, 0.6, 0);
  const Finding finding = first(written, "needless_reshard");
  EXPECT_EQ(finding.command, "--reshard-after-forward false");
}

TEST_F(Diagnose, RecomputationThatIsNotNeeded) {
  WrittenRun written;
  written.config.plan.recompute = "full";
  const Finding finding = first(written, "needless_recompute");
  EXPECT_NEAR(finding.gain, 0.1 / 4, 0.01) << "one of four forwards' worth of products";
  written.config.memory_limit = 1 << 20;
  EXPECT_TRUE(findings(written).empty()) << "without it the limit is exceeded";
}

TEST_F(Diagnose, ARankThatIsAlwaysLate) {
  WrittenRun written;
  written.add_waits(0, 30e-3);
  written.times.ranks[1].median_seconds = 1.4e-3;
  written.times.stragglers = {1};
  written.times.hosts[1].involuntary_switches = 20;
  written.times.hosts[1].cpu = 0.09;
  const Finding finding = first(written, "slow_rank");
  EXPECT_NEAR(finding.seconds, 30e-3, 1e-9);
  EXPECT_NE(finding.evidence[0].text.find("rank 1 on a"), std::string::npos);
  EXPECT_EQ(finding.evidence[0].line, 24);
}

// The same waits, but now one rank and now the other is late: no rank is slow, CPUs are taken away.
TEST_F(Diagnose, CpusThatAreTakenAwayAreNoSlowRank) {
  WrittenRun written;
  written.add_waits(0, 30e-3);
  for (RankHost& host : written.times.hosts) host.cpu = 0.07, host.involuntary_switches = 12;
  Finding finding = first(written, "few_cpus");
  EXPECT_NE(finding.evidence.back().text.find("no rank is always the last"), std::string::npos);
  written = {};
  written.set(StepPart::forward, kForward + 0.1);  // half of the time the group stands still
  for (RankHost& host : written.times.hosts) host.throttled = 0.2;
  finding = first(written, "few_cpus");
  EXPECT_NEAR(finding.seconds, 0.1, 1e-9) << "0.2 s on two CPUs";
  written = {};
  for (RankHost& host : written.times.hosts) host.cpus = 1, host.cpu = 0.05;
  finding = first(written, "few_cpus");
  EXPECT_NEAR(finding.seconds, 0.05, 1e-9) << "two ranks on one of two CPUs";
}

TEST_F(Diagnose, RanksThatShareTheCpusOfTheirHostLoseNone) {
  WrittenRun written;
  written.ranks = 4;
  for (int rank = 2; rank < 4; ++rank) {
    written.times.ranks.push_back({rank, "a", 400, 0});
    written.times.hosts.push_back({.host = "a", .process = rank, .cpus = 2, .online = 2, .threads = 1});
  }
  for (RankHost& host : written.times.hosts) host.cpu = 0.05, host.involuntary_switches = 30;
  written.add_waits(0, 10e-3);
  EXPECT_TRUE(findings(written).empty());
}

TEST_F(Diagnose, ALinkThatIsSlow) {
  WrittenRun written;
  written.config.plan.reshard_after_forward = false;
  written.set_link(0, 1e7, 0.9, 0.9);
  const Finding finding = first(written, "slow_link");
  EXPECT_GT(finding.seconds, 0.5 * written.gather_seconds());
  EXPECT_NE(finding.evidence[0].text.find("0.01 GB/s"), std::string::npos) << finding.evidence[0].text;
}

TEST_F(Diagnose, TheLoopAroundTheSteps) {
  WrittenRun written;
  written.set(StepPart::data, 20e-3);
  EXPECT_NEAR(first(written, "data_stall").gain, 20e-3, 1e-9);
  written = {};
  written.config.eval_every = 2;
  written.change = [](StepMetrics& m) {
    if (m.step % 2 == 0) m.seconds[static_cast<std::size_t>(StepPart::evaluation)] = 0.2;
  };
  Finding finding = first(written, "eval_or_saves");
  EXPECT_EQ(finding.command, "--eval-every 8");
  EXPECT_NEAR(finding.seconds, 0.1, 1e-9);
  EXPECT_NEAR(finding.gain, 0.075, 1e-9);
  written = {};
  written.config.save = "somewhere";
  written.config.save_every = 1;
  written.set(StepPart::save, 30e-3);
  finding = first(written, "eval_or_saves");
  EXPECT_EQ(finding.command, "--save-async");
  written = {};
  for (RankHost& host : written.times.hosts) host.minor_faults = 20'000;
  EXPECT_NEAR(first(written, "page_faults").seconds, 0.01, 1e-9);
}

TEST_F(Diagnose, StepsThatAreNotReplayed) {
  WrittenRun written;
  written.change = [](StepMetrics& m) {
    if (m.step % 2 == 0) return;
    m.captured = {false, "recorded: argument 0 is i64[4,16], the graph has i64[8,16]"};
    m.seconds[static_cast<std::size_t>(StepPart::forward)] += 0.04;
  };
  const Finding finding = first(written, "eager_fallback");
  EXPECT_NEAR(finding.seconds, 0.02, 1e-9);
  EXPECT_NE(finding.evidence[0].text.find("10 of them: recorded: argument 0"), std::string::npos);
}

TEST_F(Diagnose, CallsThatAreTooSmallAndBatchesThatAre) {
  WrittenRun written;
  written.config.plan.compiled = false;
  written.step.captured.reset();
  for (const StepPart part : {StepPart::forward, StepPart::backward, StepPart::optimizer})
    written.set(part, written.step.seconds[static_cast<std::size_t>(part)] * 0.02);
  for (RankHost& host : written.times.hosts) host.cpu = 2e-3;
  written.set_link(0, 1e12, 0, 0);
  EXPECT_EQ(first(written, "host_bound").command, "--compile");
  written = {};
  written.config.batch = 2;
  written.config.model.sequence = 2;
  resolve(written.config);
  EXPECT_EQ(first(written, "small_batch").command, "--batch 4");
}

// ---- beside a baseline ----

TEST_F(Diagnose, TheDifferenceIsSplitOverTheSameShares) {
  WrittenRun slower;
  slower.config.plan.prefetch = false;
  slower.times.units = {{"blocks.0", {2, 18e-3, 18e-3, 0}, {1, 1e-3, 0, 0}}};
  slower.add_waits(18e-3, 0);
  slower.set(StepPart::data, 7e-3);
  const RunFile before = read(WrittenRun().text()), now = read(slower.text());
  const Comparison both = compare(before, now);
  EXPECT_EQ(both.sentence, "throughput fell 20.0 %: 14.4 % exposed gathers of blocks.*, 5.6 % data");
  EXPECT_EQ(both.settings, std::vector<std::string>{"prefetch true -> false"});
  EXPECT_EQ(compare(now, before).sentence, "throughput rose 25.0 %: 18.0 % exposed gathers of blocks.*, 7.0 % data");
}

TEST_F(Diagnose, ABaselineOfOtherTokensIsComparedPerToken) {
  WrittenRun half;
  half.config.batch = 2;
  half.set(StepPart::forward, kForward / 2);
  half.set(StepPart::backward, kBackward / 2);
  half.set(StepPart::optimizer, kOptimizer / 2);
  const Comparison both = compare(read(half.text()), read(WrittenRun().text()));
  EXPECT_EQ(both.sentence, "throughput is the same");
  ASSERT_EQ(both.notes.size(), 1u);
  EXPECT_NE(both.notes[0].find("the baseline has 128 tokens of a step and this run 256: both are compared per token"),
            std::string::npos);
}

// ---- bad input ----

TEST_F(Diagnose, RefusesWhatIsNoRun) {
  const std::string good = WrittenRun().text();
  expect_refused("", {"is empty"});
  expect_refused("a loss of 3\n", {"line 1", "no JSON object"});
  expect_refused("{\"step\":1}\n", {"line 1", "begins with {\"config\""});
  expect_refused(good + good, {"line 25", "another run begins here"});
  expect_refused(good.substr(0, good.find('\n') + 1), {"has 0 steps", "wants 8"});
  std::string old;
  for (std::size_t at = 0, end; at < good.size(); at = end + 1) {
    end = good.find('\n', at);
    json line = json::parse(good.substr(at, end - at));
    line.erase("seconds");
    old += line.dump() + "\n";
  }
  expect_refused(old, {"line 2", "did not yet say what a step is made of"});
  const std::size_t third = good.find('\n', good.find('\n', good.find('\n') + 1) + 1);
  expect_refused(good.substr(0, third - 20) + good.substr(third), {"line 3", "cut off"});
  std::string negative = good;
  negative.replace(negative.find("\"forward\":0.03"), 14, "\"forward\":-0.0");
  EXPECT_NO_THROW(read(negative));
  negative.replace(negative.find("\"forward\":-0.0"), 14, "\"forward\":-9.0");
  expect_refused(negative, {"line 2", "\"forward\" is -9"});
  expect_error([] { read_run("/nowhere/run.jsonl"); }, {"/nowhere/run.jsonl cannot be opened"});
  std::string bare = good;
  bare.replace(bare.find("\"run_times\":"), 12, "\"run_times\":[],\"x\":");
  expect_refused(bare, {"line 24", "\"steps\""});
  bare = good;
  bare.replace(bare.find("\"p50\":"), 6, "\"q50\":");
  expect_refused(bare, {"line 24", "\"p50\""});
  bare.replace(bare.find("\"step_seconds\":{"), 16, "\"step_second\":{");
  expect_refused(bare, {"line 24", "step_seconds"});
  WrittenRun wrong;
  wrong.times.ranks[0].rank = 7;
  expect_refused(wrong.text(), {"line 24", "rank 7 in the place of rank 0"});
  wrong = {};
  wrong.times.hosts[1].cpu = -1;
  expect_refused(wrong.text(), {"line 24", "\"cpu\" is -1"});
  bare = good;
  bare.replace(bare.find("\"tokens\":"), 9, "\"tokens\":0,\"x\":");
  expect_refused(bare, {"line 2", "\"tokens\" is 0"});
  wrong = {};
  wrong.step.seconds = {};
  expect_refused(wrong.text(), {"0 seconds"});
  bare = good;
  bare.replace(bare.find("\"model\":{"), 9, "\"model\":{\"x\":{\"layers\":1},");
  EXPECT_NE(read(bare).notes.at(0).find("model.x"), std::string::npos);
  const std::string trace = dir_.write("trace.json", "{\"traceEvents\":[{\"ph\":");
  expect_error([&] { read_trace(trace); }, {"--trace", "cut off"});
}

TEST_F(Diagnose, ARunThatLostRanksIsReadAndSaid) {
  WrittenRun written;
  written.times.ranks.pop_back();
  written.times.hosts.pop_back();
  const RunFile run = read(written.text());
  EXPECT_EQ(run.last_evaluation().metrics.times->hosts.size(), 1u);
  ASSERT_EQ(run.notes.size(), 1u);
  EXPECT_NE(run.notes[0].find("began on 2 ranks and was on 1"), std::string::npos);
}

TEST_F(Diagnose, ALastLineThatIsCutOffIsLeftOutAndSaid) {
  const std::string good = WrittenRun().text();
  const RunFile run = read(good.substr(0, good.size() - 30));
  EXPECT_EQ(run.settled.size(), 19u);
  ASSERT_EQ(run.notes.size(), 2u);
  EXPECT_NE(run.notes[0].find("line 24 is cut off"), std::string::npos);
  EXPECT_NE(run.notes[1].find("no evaluation"), std::string::npos);
}

TEST_F(Diagnose, TextAndJsonSayTheSame) {
  WrittenRun written;
  written.set(StepPart::data, 20e-3);
  const std::vector<Finding> found = findings(written);
  const Diagnosis diagnosis{runs_[0], shares_of(runs_[0]), found, "compute bounds it", {"a note"}, {}};
  const json object = json::parse(to_json(diagnosis));
  double sum = 0;
  for (const auto& [share, seconds] : object["shares"].items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, object["step_seconds"].get<double>(), 1e-12);
  EXPECT_EQ(object["findings"][0]["id"], "data_stall");
  EXPECT_EQ(object["findings"][0]["gain_by"], "measured");
  const std::string text = to_text(diagnosis);
  for (const char* words : {"1. data_stall: 20.00 ms of a step, 16.7 %", "compute bounds it", "note: a note"})
    EXPECT_NE(text.find(words), text.npos) << text;
}

}  // namespace
}  // namespace sherd::diagnose
