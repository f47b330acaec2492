// `sherd run --survive`: trainings whose replicas are killed at marked points go on, and end with the losses of one
// rank that has taken the rows of those who took part, and with equal replicas (check_replicas = 1 after every step).
#include "tools/train/survive.h"

#include <filesystem>

#include "nn/checkpoint/format/saves.h"
#include "tests/support/expect_error.h"
#include "tests/tools/one_rank_run.h"
#include "tests/tools/program_test.h"

namespace sherd::testing {

using namespace train;

namespace {

class Survive : public ProgramTest {
 protected:
  static TrainConfig config_of(const std::string& data, const std::string& mesh) {
    TrainConfig config = tiny_config(data);
    config.plan.strategy = "hybrid_shard";
    config.plan.mesh = mesh;
    config.check_replicas = 1;
    return config;
  }
  /// `sherd run --survive FLAGS -- sh SCRIPT`, in which $0 is the program and $1 the config.
  ProgramEnd run(const std::string& flags, const std::string& script,
                 const std::string& mesh = "replicate=2,dp=1") const {
    return run_shell("exec " + launch(flags, script, mesh));
  }
  /// The same until the metrics show a text, however many steps that takes: then it is told to stop.
  ProgramEnd run_until(const std::string& text, const std::string& flags, const std::string& script,
                       const std::string& mesh = "replicate=2,dp=1") const {
    return run_shell(
        fmt::format("{} & pid=$!\n"
                    "until grep -qF '{}' run.jsonl 2> /dev/null; do kill -0 $pid || exit 99; done\n"
                    "kill -TERM $pid; wait $pid",
                    launch(flags, script, mesh), text));
  }
  static std::string train(int steps, const std::string& flags = "") {
    return fmt::format("exec \"$0\" train \"$1\" --steps {} --metrics run.jsonl {}", steps, flags);
  }
  /// In its `life`th life a rank gets a signal when the metrics show a text.
  static std::string kill_when_shown(int life, int rank, const std::string& text, const char* signal = "KILL") {
    return fmt::format(
        "[ $SHERD_SURVIVE = {} ] && [ $SHERD_RANK = {} ] && {{ (until grep -qF '{}' run.jsonl; do :; done; "
        "kill -{} $$) 2> /dev/null & }}\n",
        life, rank, text, signal);
  }
  static std::string kill_when(int life, int rank, int step, const char* signal = "KILL") {
    return kill_when_shown(life, rank, fmt::format("\"step\":{},", step), signal);
  }
  std::int64_t last_save() const { return ckpt::list_saves(dir_ / "saves").front().step; }
  double difference(const std::vector<StepOfRun>& steps, int data_ranks, int replicas) const {
    return difference_from_one_rank(config_of(data_, ""), steps, data_ranks, replicas);
  }

 private:
  std::string launch(const std::string& flags, const std::string& script, const std::string& mesh) const {
    dir_.write("survive.toml", to_toml(config_of(data_, mesh)));
    dir_.write("rank.sh", script);
    return fmt::format("\"$0\" run --survive --backoff 0 {} -- /bin/sh -c '. ./rank.sh' \"$0\" survive.toml", flags);
  }
  ProgramEnd run_shell(const std::string& script) const {
    return run_program({"/bin/sh", "-c", fmt::format("cd {}\n{}", dir_.path(), script), SHERD_PROGRAM}, {}, kLimit);
  }
};

std::size_t steps_of_fewer(const std::vector<StepOfRun>& steps, std::size_t all) {
  return static_cast<std::size_t>(
      std::ranges::count_if(steps, [&](const StepOfRun& step) { return step.replicas.size() < all; }));
}

// Training goes on until all are back: how many steps that takes is the machine's business.
TEST_F(Survive, EitherReplicaMayDieAndComesBack) {
  const std::string others_first = "[ $SHERD_SURVIVE = 1 ] || until grep -q '\"replicas\":' run.jsonl; do :; done\n";
  const ProgramEnd end = run_until("\"returned\":[0]", "-n 2",
                                   others_first + kill_when(1, 1, 20) + kill_when_shown(1, 0, "\"returned\":[1]") +
                                       train(100'000, "--compile true --save saves"));
  ASSERT_EQ(end.status, kStoppedAndSaved) << end.err;
  expect_within(end.err,
                {"rank 1 was killed by SIGKILL", "replica 1 (rank 1) is lost, 1 of 2 goes on",
                 "replica 1 was lost in step ", "means are over 1 of 2 replicas", "replica 1 is back after step ",
                 "replica 0 was lost in step ", "replica 0 is back after step "});
  expect_within(end.out, {"2 lost and 2 back while training went on"});
  const auto steps = steps_of_run(dir_ / "run.jsonl", 2);
  EXPECT_EQ(last_save(), steps.back().step);
  EXPECT_GT(steps_of_fewer(steps, 2), 0u);
  EXPECT_EQ(steps.back().replicas.size(), 2u);
  EXPECT_LT(difference(steps, 2, 2), 2e-3);
}

TEST_F(Survive, AReplicaOfSeveralRanksDiesWithOneOfThem) {
  const ProgramEnd end = run_until(
      "\"returned\":[0]", "-n 4",
      kill_when(1, 1, 10) + train(100'000, "--save saves --save-every 25 --save-async true"), "replicate=2,dp=1,tp=2");
  ASSERT_EQ(end.status, kStoppedAndSaved) << end.err;
  expect_within(end.err, {"replica 0 (ranks 0, 1) is lost", "replica 0 is back"});
  const auto steps = steps_of_run(dir_ / "run.jsonl", 2);
  EXPECT_LT(difference(steps, 2, 2), 2e-3);
  EXPECT_EQ(last_save(), steps.back().step);
  EXPECT_EQ(sherd({"ckpt", "verify", dir_ / "saves"}).status, 0);
}

TEST_F(Survive, AFrozenReplicaIsKilledAndComesBack) {
  const ProgramEnd end = run("-n 2", kill_when(1, 0, 20, "STOP") + train(1000, "--frozen-after 1"));
  ASSERT_EQ(end.status, 0) << end.err;
  expect_within(end.err,
                {"rank 0 does not come to where others wait for it; it is killed", "replica 0 was lost in step "});
  EXPECT_EQ(steps_of_run(dir_ / "run.jsonl", 2).size(), 1000u);
}

TEST_F(Survive, WithoutAReplicaLeftAllStartAgainFromTheSave) {
  const ProgramEnd end = run("-n 2 --restarts 1",
                             "[ $SHERD_RESTART = 0 ] && { (until grep -q '\"step\":60,' run.jsonl; do :; done; kill "
                             "-KILL $$) 2> /dev/null & }\n" +
                                 train(1000, "--save saves --save-every 25"));
  ASSERT_EQ(end.status, 0) << end.err;
  expect_within(end.err, {"restart 1 of 1, with 2 ranks", "done, after 1 restart"});
  EXPECT_EQ(steps_of_run(dir_ / "run.jsonl", 2).size(), 1000u);
}

TEST_F(Survive, ASignalStopsAndSavesWithThoseThatAreLeft) {
  // Rank 1 dies and cannot come back; then the launcher is told to stop.
  const ProgramEnd end =
      run_until("\"replicas\":[0]", "-n 2",
                "[ $SHERD_SURVIVE -ge 2 ] && exec sleep 1000\n" + kill_when(1, 1, 20) + train(100'000, "--save saves"));
  EXPECT_EQ(end.status, kStoppedAndSaved) << end.err;
  EXPECT_EQ(last_save(), steps_of_run(dir_ / "run.jsonl", 2).back().step);
}

TEST_F(Survive, WhatCannotOutliveAReplicaIsRefusedByName) {
  struct Case {
    std::string mesh, flags, text;
  };
  for (const auto& [mesh, flags, text] : std::vector<Case>{
           {"", "--strategy full_shard", "mesh = \"\" has one; pass --strategy hybrid_shard --mesh replicate=2,dp=N"},
           {"replicate=1,dp=2", "", "outlives one of several replicas"},
           {"replicate=2,dp=1", "--strategy hybrid_shard_state", "divides the optimizer's state among the replicas"},
           {"replicate=2,dp=1", "--group thread", "leave out --group thread"},
           {"replicate=2,dp=1", "--on-nonfinite rollback --save saves", "take stop or skip"},
           {"replicate=2,dp=1", "--trace trace.json", "leave out --trace"},
           {"replicate=2,dp=1", "--offload optimizer", "offload = optimizer"}}) {
    const ProgramEnd end = run("-n 2 --restarts 3", train(5, flags), mesh);
    EXPECT_EQ(end.status, kUsage) << end.err;
    expect_within(end.err, {"run --survive: ", text});
  }
}

// A program that says nothing of replicas.
TEST_F(Survive, OtherProgramsFailAsEver) {
  const ProgramEnd end = run("-n 2", "[ $SHERD_RANK = 1 ] && exit 7; sleep 1000");
  EXPECT_EQ(end.status, 7);
  expect_within(end.err, {"rank 1 exited with status 7; stopping the other ranks"});
}

TEST(ReplicaLayout, NumbersReplicasAndDataRanksAsTheMeshDoes) {
  TrainConfig config;
  config.plan.strategy = "hybrid_shard";
  config.plan.mesh = "replicate=3,dp=2,tp=2";
  const ReplicaLayout layout(config, 12);
  EXPECT_EQ(layout.text(), "0,1,2,3;4,5,6,7;8,9,10,11");
  EXPECT_EQ(layout.num_data_ranks(), 6);
  EXPECT_EQ(layout.data_rank_of(7), 3);
  EXPECT_EQ(layout.mesh_of(2).text(), "replicate=2,dp=2,tp=2");
  EXPECT_EQ(layout.replicas_of({0, 1, 2, 3, 8, 9, 10, 11}), (std::vector{0, 2}));
  expect_error([&] { layout.replicas_of({0, 1, 2}); }, {"no whole replicas"});
  config.plan.mesh = "tp=2,replicate=2,dp=2";
  const ReplicaLayout outer_tp(config, 8);
  EXPECT_EQ(outer_tp.text(), "0,1,4,5;2,3,6,7");
  EXPECT_EQ(outer_tp.data_rank_of(7), 3);
}

}  // namespace
}  // namespace sherd::testing
