// How `sherd train` and `sherd run` end by a signal or by divergence, as scripts see it: exit status, files, messages.
#include <filesystem>

#include "nn/checkpoint/load/checkpoint_reader.h"
#include "tests/tools/program_test.h"
#include "tools/train/exit_status.h"

namespace sherd::testing {

using namespace train;

namespace {

using namespace ckpt;

namespace fs = std::filesystem;

class StopProgram : public ProgramTest {
 protected:
  /// Runs `sherd train` (under `sherd run` if RANKS > 1) until its metrics show step 3, then the shell's `action`, in
  /// which $pid is the process started; its end is the result. (What a shell starts by & ignores SIGINT.)
  ProgramEnd stopped_by(int ranks, const std::string& action, const std::string& flags) const {
    const std::string launch = ranks == 1 ? "" : fmt::format("run -n {} -- \"$0\" ", ranks);
    const std::string script = fmt::format(
        "env --default-signal=INT \"$0\" {}train \"$1\" --steps 1000000 --metrics \"$2\" {} & pid=$!\n"
        "until grep -q '\"step\":3,' \"$2\" 2> /dev/null; do kill -0 $pid || break; done\n{}\nwait $pid",
        launch, flags, action);
    fs::remove(dir_ / "metrics.jsonl");
    return run_program({"/bin/sh", "-c", script, SHERD_PROGRAM, config_file_, dir_ / "metrics.jsonl"}, {}, kLimit);
  }
  const std::string checkpoint_ = dir_ / "checkpoint";
  const std::string save_ = "--save " + checkpoint_;
};

TEST_F(StopProgram, SigtermSavesAndEndsWithItsStatusAndTheRunGoesOn) {
  for (const int ranks : {1, 2})
    for (const char* signal : {"TERM", "INT"}) {
      const ProgramEnd end = stopped_by(ranks, fmt::format("kill -{} $pid", signal), save_);
      EXPECT_EQ(end.status, kStoppedAndSaved) << end.err;
      expect_within(end.err, {fmt::format("stopped by SIG{} after step", signal), "--resume " + checkpoint_});
      CheckpointReader reader(checkpoint_);
      reader.verify();
      const std::int64_t step = reader.manifest().step;
      EXPECT_GE(step, 3);
      const ProgramEnd rest =
          train(ranks, {"--steps", std::to_string(step + 2), "--optimizer.decay-steps", "20", "--resume", checkpoint_});
      EXPECT_EQ(rest.status, 0) << rest.err;
      fs::remove_all(checkpoint_);
    }
}

TEST_F(StopProgram, ASignalToOneRankStopsAllOfThem) {
  // The ranks are children of the launcher's second process.
  const ProgramEnd end =
      stopped_by(2, "inner=$(ps -o pid= --ppid $pid); kill -TERM $(ps -o pid= --ppid $inner | head -1)", save_);
  EXPECT_EQ(end.status, kStoppedAndSaved) << end.err;
  CheckpointReader(checkpoint_).verify();
}

TEST_F(StopProgram, ThreadRanksStopTogether) {
  const ProgramEnd end = stopped_by(2, "kill -TERM $pid", save_ + " --group thread");
  EXPECT_EQ(end.status, kStoppedAndSaved) << end.err;
}

TEST_F(StopProgram, SigusrSavesAndTheRunGoesOn) {
  for (const int ranks : {1, 2}) {
    // The second signal finds a run that goes on: only then is there a second save.
    const std::string save_then_stop = fmt::format(
        "kill -USR1 $pid\n"
        "until ls {}/step-*/manifest.json > /dev/null 2>&1; do kill -0 $pid || break; done\n"
        "kill -TERM $pid",
        checkpoint_);
    const ProgramEnd end = stopped_by(ranks, save_then_stop, save_);
    EXPECT_EQ(end.status, kStoppedAndSaved) << end.err;
    // Each rank may have the signal at a step boundary of its own, which is a save each.
    EXPECT_GE(list_saves(checkpoint_).size(), 2u) << end.err;
    EXPECT_LE(list_saves(checkpoint_).size(), 1u + static_cast<std::size_t>(ranks)) << end.err;
    fs::remove_all(checkpoint_);
  }
}

// The last rank reads its config from a pipe, so it is within its start-up when it gets the signal.
TEST_F(StopProgram, SigusrInStartUpSavesAfterTheFirstStep) {
  const auto signalled = [&](int ranks, const std::string& flags) {
    return train_by_script(ranks, fmt::format("if [ $SHERD_RANK != {0} ]; then exec \"$0\" train \"$1\" {1}; fi\n"
                                              "rm -f \"$1.pipe\"; mkfifo \"$1.pipe\"\n"
                                              "(exec 3> \"$1.pipe\"; kill -USR1 $$; cat \"$1\" >&3) &\n"
                                              "exec \"$0\" train \"$1.pipe\" {1}",
                                              ranks - 1, flags));
  };
  for (const int ranks : {1, 2}) {
    const ProgramEnd end = signalled(ranks, save_);
    EXPECT_EQ(end.status, 0) << end.err;
    std::vector<std::int64_t> steps;
    for (const SavePlace& save : list_saves(checkpoint_)) steps.push_back(save.step);
    EXPECT_EQ(steps, (std::vector<std::int64_t>{5, 1})) << ranks << " ranks";
    fs::remove_all(checkpoint_);
  }
  EXPECT_EQ(signalled(1, "").status, 0) << "nothing to save to: it is forgotten";
}

TEST_F(StopProgram, SignalsEndTheRunAsEverWhereTheyShallNotSave) {
  EXPECT_EQ(stopped_by(2, "kill -TERM $pid", save_ + " --save-on-signal false").status, 128 + SIGTERM);
  EXPECT_TRUE(list_saves(checkpoint_).empty());
}

TEST_F(StopProgram, RanksWhosePeerWasKilledDoNotSave) {
  const ProgramEnd end =
      stopped_by(2, "inner=$(ps -o pid= --ppid $pid); kill -KILL $(ps -o pid= --ppid $inner | tail -1)", save_);
  EXPECT_EQ(end.status, 128 + SIGKILL) << end.err;
  EXPECT_TRUE(list_saves(checkpoint_).empty()) << end.err;
}

TEST_F(StopProgram, WithoutAFolderASignalEndsTheRunAtOnce) {
  EXPECT_EQ(stopped_by(1, "kill -TERM $pid", "").status, 128 + SIGTERM);
  EXPECT_EQ(stopped_by(2, "kill -TERM $pid", "").status, 128 + SIGTERM);
  EXPECT_EQ(stopped_by(1, "kill -USR1 $pid", "").status, 128 + SIGUSR1);
}

TEST_F(StopProgram, WhatCannotBeSavedIsSaid) {
  for (const int ranks : {1, 2}) {
    const std::string a_file_in_its_place = fmt::format("rm -rf {0}; : > {0}; kill -TERM $pid", checkpoint_);
    const ProgramEnd end = stopped_by(ranks, a_file_in_its_place, save_);
    EXPECT_EQ(end.status, kStoppedWithoutSave) << end.err;
    expect_within(end.err, {"stopped by SIGTERM after step", "could not save", checkpoint_});
    fs::remove(checkpoint_);
  }
}

TEST_F(StopProgram, ADivergedRunEndsWithItsStatusOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2}) {
    const ProgramEnd end = train(ranks, {"--steps", "40", "--optimizer.lr", "1e18", "--optimizer.clip", "0", "--save",
                                         checkpoint_, "--save-every", "1"});
    EXPECT_EQ(end.status, kDiverged) << end.err;
    expect_within(end.err, {"diverged in step", "the first value that is not finite is in the"});
    CheckpointReader(checkpoint_).verify();
    fs::remove_all(checkpoint_);
  }
}

TEST_F(StopProgram, StepsThatALossScaleSkipsAreNoDivergenceUntilThereAreManyInARow) {
  const std::vector<std::string> overflows = {"--param-dtype", "f16", "--loss-scale", "1e30", "--steps"};
  for (const auto& [steps, status] : {std::pair("3", kDone), std::pair("40", kDiverged)}) {
    std::vector<std::string> flags = overflows;
    flags.emplace_back(steps);
    const ProgramEnd end = train(2, flags);
    EXPECT_EQ(end.status, status) << end.err;
    if (status == kDiverged) expect_within(end.err, {"diverged in step 33", "after 33 skipped steps"});
  }
}

}  // namespace
}  // namespace sherd::testing
