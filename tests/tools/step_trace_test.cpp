// `--trace`: the file of a run, read by a reader that knows only the published format.
#include "tools/train/step_trace.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "nn/module.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/trace_json.h"
#include "tests/support/expect_error.h"
#include "tests/support/trace_check.h"
#include "tests/tools/program_test.h"

namespace sherd::testing {

using namespace train;

namespace {

using Steps = std::pair<std::int64_t, std::int64_t>;

TEST(TracedSteps, AreARangeCountedFromOne) {
  const auto parsed = [](const StepRange& r) { return Steps(r.first, r.last); };
  EXPECT_EQ(parsed("3:7"), Steps(3, 7));
  EXPECT_EQ(parsed("4"), Steps(4, 4));
  for (const char* bad : {"0:3", "5:4", "a:b", "3:", ":3", "3:4:5", "-2:1", "99999999999999999999", " 3"})
    expect_error([&] { StepRange{bad}; }, {"trace_steps must be FIRST:LAST", bad});
  const auto chosen = [&](std::string_view text, std::int64_t first, std::int64_t last) {
    return parsed(traced_steps(text, first, last));
  };
  EXPECT_EQ(chosen("", 1, 1000), Steps(11, 15)) << "after ten steps to settle";
  EXPECT_EQ(chosen("", 101, 1000), Steps(111, 115)) << "of this run";
  EXPECT_EQ(chosen("", 1, 12), Steps(8, 12)) << "as late as a short run allows";
  EXPECT_EQ(chosen("", 1, 3), Steps(1, 3));
  EXPECT_EQ(chosen("2:3", 1, 3), Steps(2, 3));
  expect_error([&] { traced_steps("2:9", 1, 8); }, {"trace_steps = 2:9", "steps 1 to 8"});
  expect_error([&] { traced_steps("2:9", 5, 100); }, {"steps 5 to 100"});
}

class StepTraceTest : public ProgramTest {
 protected:
  StepTraceTest() {
    config_.steps = 6;
    config_.trace = dir_ / "trace.json";
    config_.trace_steps = "4:5";
  }
  /// Trains on thread-ranks; `comm` gets the collectives of rank 0's last step.
  ReadTrace trace_of(int ranks, CommCounts* comm = nullptr) {
    run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      Trainer trainer(config_, group);
      const TrainSummary summary = trainer.run([](const StepMetrics&) {});
      if (comm && group->rank() == 0) *comm = summary.step_comm;
    });
    return read_trace(dir_.read("trace.json"));
  }
  static std::string step_of(const ReadTrace& read, const TraceSlice& slice) {
    const std::string path = read.path_of(slice);
    return path.substr(0, path.find(" > "));
  }
  TrainConfig config_ = tiny_config(data_);
};

TEST_F(StepTraceTest, HoldsTheChosenStepsOfEveryRank) {
  for (const bool compile : {false, true}) {
    config_.plan.compiled = compile;
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(std::to_string(ranks) + (compile ? " ranks, compiled" : " ranks"));
      const ReadTrace read = trace_of(ranks);
      EXPECT_EQ(read.notes.at("ranks"), std::to_string(ranks));
      EXPECT_EQ(read.notes.at("steps"), "4:5");
      EXPECT_EQ(read.notes.at("spans dropped"), "0");
      ASSERT_EQ(read.tracks.size(), static_cast<std::size_t>(ranks));
      for (int r = 0; r < ranks; ++r) {
        const std::string rank = "rank " + std::to_string(r);
        EXPECT_EQ(read.tracks.at(rank)[0], "compute");
        std::vector<std::string> outermost, phases;
        for (const TraceSlice& s : read.slices) {
          if (s.process != rank || s.track != "compute") continue;
          if (s.parent < 0) outermost.push_back(s.name);
          else if (s.category == "module" && read.slices[static_cast<std::size_t>(s.parent)].parent < 0)
            phases.push_back(s.name);
        }
        EXPECT_EQ(outermost, (std::vector<std::string>{"step 4", "step 5"}));
        EXPECT_EQ(phases,
                  (std::vector<std::string>{"forward", "backward", "optimizer", "forward", "backward", "optimizer"}));
      }
    }
  }
}

// Every op of a replayed step stands where the eager one does.
TEST_F(StepTraceTest, AReplayedStepHasTheOpsOfTheEagerOne) {
  const auto ops_of = [](const ReadTrace& read) {
    std::multiset<std::string> ops;
    for (const TraceSlice& s : read.slices)
      if (s.category == "op") ops.insert(s.process + " " + read.path_of(s) + " " + s.args.value("inputs", ""));
    return ops;
  };
  for (const int ranks : {1, 2}) {
    config_.plan.compiled = false;
    const auto eager = ops_of(trace_of(ranks));
    config_.plan.compiled = true;
    const auto replayed = ops_of(trace_of(ranks));
    EXPECT_GT(eager.size(), 100u);
    std::vector<std::string> differing;
    std::set_symmetric_difference(eager.begin(), eager.end(), replayed.begin(), replayed.end(),
                                  std::back_inserter(differing));
    EXPECT_EQ(differing, std::vector<std::string>());
  }
}

TEST_F(StepTraceTest, ModulesAreThoseOfTheModel) {
  const ReadTrace read = trace_of(1);
  std::set<std::string> modules, expected;
  for (const TraceSlice& s : read.slices)
    if (s.category == "module") modules.insert(s.name);
  run_ranks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    Trainer trainer(config_, group);
    trainer.model().for_each_module([&](nn::Module& m) {
      if (!m.path().empty() && m.path() != "blocks") expected.insert(m.path());
    });
  });
  for (const char* phase : {"forward", "backward", "optimizer"}) EXPECT_EQ(modules.erase(phase), 1u) << phase;
  for (const std::string& module : modules) EXPECT_TRUE(expected.contains(module)) << module;
  for (const char* module : {"blocks.0", "blocks.1.attn.wq", "blocks.1.mlp", "tok"})
    EXPECT_TRUE(modules.contains(module)) << module;
}

TEST_F(StepTraceTest, CollectivesAreThoseThatTheGroupCounts) {
  CommCounts counted;
  const ReadTrace read = trace_of(2, &counted);
  std::map<std::string, CommCounts::Item> seen;
  for (const TraceSlice& s : read.slices) {
    if (s.process != "rank 0" || !s.args.contains("bytes")) continue;
    EXPECT_GE(s.end, s.start);
    const std::string what = s.track == "compute" ? s.args.at("for").get<std::string>() : s.name;
    std::string collective = what.substr(0, what.find(' '));
    if (collective == "unshard") collective = "all_gather";
    if (collective == "reduce") collective = "reduce_scatter";
    auto& item = seen[collective];
    ++item.calls;
    item.bytes += s.args.at("bytes").get<std::int64_t>();
  }
  const std::pair<const char*, CommCounts::Item> expected[] = {{"all_gather", counted.all_gather},
                                                               {"reduce_scatter", counted.reduce_scatter},
                                                               {"all_reduce", counted.all_reduce}};
  for (const auto& [name, item] : expected) {
    EXPECT_GT(item.calls, 0) << name;
    EXPECT_EQ(seen[name].calls, 2 * item.calls) << name << ", two steps";
    EXPECT_EQ(seen[name].bytes, 2 * item.bytes) << name << ", two steps";
  }
}

// Steps of every rank take nothing from the system. A fault of ours would be in every step; the system has some too.
void expect_steady(const ReadTrace& read, int ranks) {
  std::map<std::string, std::vector<std::int64_t>> faults, allocations;
  for (const TraceCount& count : read.counts) {
    if (count.name == "page faults") faults[count.process].push_back(count.args.at("per step (process)"));
    if (count.name == "system allocations") allocations[count.process].push_back(count.args.at("per step"));
  }
  ASSERT_EQ(faults.size(), static_cast<std::size_t>(ranks));
  ASSERT_EQ(allocations.size(), static_cast<std::size_t>(ranks));
  for (const auto& [rank, per_step] : allocations) EXPECT_EQ(per_step, std::vector<std::int64_t>(5, 0)) << rank;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their shadow memory faults
  for (const auto& [rank, per_step] : faults) {
    ASSERT_EQ(per_step.size(), 5u);
    EXPECT_EQ(*std::min_element(per_step.begin(), per_step.end()), 0) << rank;
  }
#endif
}

TEST_F(StepTraceTest, SteadyStepsTakeNothingFromTheSystem) {
  config_.steps = 16;
  config_.trace_steps = "11:15";
  for (const bool compile : {false, true}) {
    config_.plan.compiled = compile;
    expect_steady(trace_of(1), 1);
  }
}

TEST_F(StepTraceTest, MemoryAgreesWithTheMetrics) {
  const ReadTrace read = trace_of(2);
  std::map<std::string, std::int64_t> parameters;
  for (const TraceCount& count : read.counts)
    if (count.name == "memory bytes") parameters[count.process] = count.args.at("parameters").get<std::int64_t>();
  ASSERT_EQ(parameters.size(), 2u);
  CategoryBytes peak{};
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    config_.trace.clear();
    config_.trace_steps = "";
    Trainer trainer(config_, group);
    trainer.run([&](const StepMetrics& m) {
      if (group->rank() == 0) peak = m.memory_bytes;
    });
  });
  EXPECT_EQ(parameters.at("rank 0"), peak[static_cast<std::size_t>(MemoryCategory::parameters)]);
}

class FailingHook final : public nn::ModuleHook {
 public:
  explicit FailingHook(int calls) : calls_left_(calls) {}
  void before_forward(nn::Module&) override {
    if (--calls_left_ < 0) throw Error("the hook fails");
  }

 private:
  int calls_left_;
};

TEST_F(StepTraceTest, AFailedStepLeavesWhatEveryRankHas) {
  EXPECT_THROW(run_ranks(2,
                         [&](const std::shared_ptr<ProcessGroup>& group) {
                           Trainer trainer(config_, group);
                           if (group->rank() == 1) trainer.model().add_hook(std::make_shared<FailingHook>(4));
                           trainer.run([](const StepMetrics&) {});
                         }),
               Error);
  for (const auto& [file, rank] : {std::pair("trace.json", "rank 0"), std::pair("trace.rank1.json", "rank 1")}) {
    const ReadTrace read = read_trace(dir_.read(file));
    EXPECT_TRUE(read.tracks.contains(rank)) << file;
    ASSERT_EQ(read.named("step 5").size(), 1u) << file << ": the step that failed";
    EXPECT_EQ(read.named("step 4").size(), 1u) << file;
  }
}

TEST_F(StepTraceTest, ChangesNoNumber) {
  const std::vector<double> traced = train_tiny(config_, 2).losses;
  config_.trace.clear();
  config_.trace_steps = "";
  EXPECT_EQ(train_tiny(config_, 2).losses, traced);
}

TEST_F(StepTraceTest, AFileThatCannotBeMadeIsAnErrorOnEveryRankBeforeTheFirstStep) {
  config_.trace = dir_ / "missing/trace.json";
  int errors = 0;
  std::mutex mutex;
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Trainer trainer(config_, group);
    int steps = 0;
    expect_error([&] { trainer.run([&](const StepMetrics&) { ++steps; }); },
                 {"cannot create the trace file", "missing/trace.json"});
    EXPECT_EQ(steps, 0);
    const std::lock_guard lock(mutex);
    ++errors;
  });
  EXPECT_EQ(errors, 2);
}

TEST_F(StepTraceTest, WhatIsNoTraceStays) {
  EXPECT_TRUE(trace_file({}, {}).starts_with(kTraceBeginning));
  config_.trace = dir_.write("trace.json", "{\"mine\":1}");
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Trainer trainer(config_, group);
    expect_error([&] { trainer.run([](const StepMetrics&) {}); }, {"trace.json", "something else", "another file"});
  });
  EXPECT_EQ(dir_.read("trace.json"), "{\"mine\":1}");
  std::filesystem::remove(config_.trace);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(trace_of(1).slices.empty()) << "an earlier trace is replaced";
}

TEST_F(StepTraceTest, ProcessesWriteOneFile) {
  const std::string file = dir_ / "processes.json";
  const ProgramEnd end = train(2, {"--trace", file, "--steps", "15"});
  EXPECT_EQ(end.status, 0) << end.err;
  expect_within(end.out, {"trace       " + file});
  const ReadTrace read = read_trace(dir_.read("processes.json"));
  ASSERT_EQ(read.tracks.size(), 2u);
  expect_steady(read, 2);
  // One clock: a step that all ranks make together overlaps on all of them.
  const auto steps = read.named("step 15");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_NE(steps[0]->process, steps[1]->process);
  EXPECT_LT(steps[0]->start, steps[1]->end);
  EXPECT_LT(steps[1]->start, steps[0]->end);
}

TEST_F(StepTraceTest, TheFlagsAreChecked) {
  const ProgramEnd alone = train(1, {"--trace-steps", "2:3"});
  EXPECT_NE(alone.status, 0);
  expect_within(alone.err, {"trace_steps = 2:3 needs a file: pass --trace FILE"});
  const ProgramEnd outside = train(2, {"--trace", dir_ / "t.json", "--trace-steps", "4:9"});
  EXPECT_NE(outside.status, 0);
  expect_within(outside.err, {"trace_steps = 4:9", "steps 1 to 5"});
}

}  // namespace
}  // namespace sherd::testing
