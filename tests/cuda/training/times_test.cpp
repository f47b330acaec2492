// Where the time of runs on devices goes. Oracles: the calls that fully_shard makes per step, as on the CPU; the names
// of what a trace of the CPU has.
#include <mutex>

#include "tests/cuda/training/training_test.h"

namespace sherd::testing {

using namespace train;

namespace {

using TimesOfRuns = TrainingOnCuda;

struct Timed {
  TrainSummary summary;
  double exposed = 0, skew = 0;  // of the steps' lines
};

Timed run_on_two(const TrainConfig& config) {
  Timed result;
  std::mutex mutex;
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Trainer trainer(config, group);
    Timed own;
    own.summary = trainer.run([&](const StepMetrics& m) {
      own.exposed += m.exposed_comm_seconds;
      own.skew += m.exposed_skew_seconds;
    });
    const std::lock_guard lock(mutex);
    if (group->rank() == 0) result = std::move(own);
  });
  return result;
}

TEST_F(TimesOfRuns, UnitsAreTimedAndWhatIsWaitedForIsToldAsOnTheHost) {
  llama_.steps = 9;
  for (const char* group : {"nccl", "staged"}) {
    llama_.group = group;
    llama_.plan.compiled = llama_.group == "nccl";
    const Timed timed = run_on_two(on_cuda(llama_));
    const RunTimes& times = timed.summary.times;
    ASSERT_EQ(times.units.size(), 3u) << group;
    for (const UnitTime& u : times.units) {
      if (llama_.group == "nccl") {  // what the host does for a staged call is counted when it lets go of it
        EXPECT_EQ(u.gather.calls, u.unit.starts_with("blocks.") ? 2 : 1) << u.unit;
        EXPECT_EQ(u.reduce.calls, 1) << u.unit;
      }
      for (const UnitTime::Part& p : {u.gather, u.reduce}) {
        EXPECT_GT(p.seconds, 0) << group << " " << u.unit;
        EXPECT_GE(p.exposed_transfer + p.exposed_skew, 0) << group << " " << u.unit;
        EXPECT_GE(p.exposed_skew, 0) << group << " " << u.unit;
      }
    }
    EXPECT_GT(timed.exposed, 0) << group;
    EXPECT_LE(timed.summary.comm.exposed, timed.summary.comm.total) << group;
    const std::string text = print_run_times(times);
    for (const char* part : {"gather", "transfer", "skew", "blocks.0"}) EXPECT_NE(text.find(part), text.npos) << text;
  }
}

TEST_F(TimesOfRuns, ATraceHasTheDevicesQueuesAndWhatComputeWaitedFor) {
  const std::string file = dir_.path() + "/trace.json";
  llama_.steps = 4;
  llama_.trace = file;
  llama_.trace_steps = "2:4";
  llama_.group = "nccl";
  run_on_two(on_cuda(llama_));
  const std::string text = dir_.read("trace.json");
  for (const char* part :
       {"gather (cuda:0)", "reduce (cuda:0)", "gather (cuda:1)", "unshard blocks.0", "exposed communication"})
    EXPECT_NE(text.find(part), text.npos) << part;
}

}  // namespace
}  // namespace sherd::testing
