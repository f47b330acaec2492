// `sherd run --restarts`: what is started again and what is not, with small shell programs; and that a training that is
// killed again and again ends as if nothing had happened.
#include "tools/train/restart.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include "nn/checkpoint/format/manifest.h"
#include "nn/checkpoint/format/rank_file.h"
#include "nn/checkpoint/format/saves.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/tools/program_test.h"
#include "tools/launch/restart_policy.h"

namespace sherd::testing {

using namespace train;

namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

TEST(RestartPolicy, WaitsLongerAfterEachFailureAtOnce) {
  RestartPolicy policy(2, {.restarts = 9, .backoff = 10s});
  const StartFailure failure{.what = "", .slots = {1}};
  const auto pause = [&](std::chrono::seconds life) { return policy.after(failure, life).value().pause; };
  EXPECT_EQ(pause(1s), 10s);
  EXPECT_EQ(pause(1s), 20s);
  EXPECT_EQ(pause(1s), 40s);
  EXPECT_EQ(pause(1s), 60s);
  EXPECT_EQ(pause(1s), 60s);
  EXPECT_EQ(pause(40s), 10s) << "it had worked";
  EXPECT_EQ(pause(1s), 10s);
  EXPECT_EQ(pause(1s), 20s);
  EXPECT_EQ(policy.slots(), (std::vector{0, 1})) << "without min_ranks all are needed";
  EXPECT_TRUE(policy.after(failure, 1s));
  EXPECT_FALSE(policy.after(failure, 1s)) << "no restart is left";
}

TEST(RestartPolicy, LeavesOutWhoFailsAgainAtOnceWhileEnoughRemain) {
  RestartPolicy policy(4, {.restarts = 20, .min_ranks = 2});
  const auto left = [&](std::vector<int> failed, std::chrono::seconds life) {
    policy.after({.what = "", .slots = std::move(failed)}, life);
    return policy.slots();
  };
  using Slots = std::vector<int>;
  EXPECT_EQ(left({1}, 1s), (Slots{0, 1, 2, 3})) << "for the first time";
  EXPECT_EQ(left({1}, 31s), (Slots{0, 1, 2, 3})) << "again, but not at once";
  EXPECT_EQ(left({0, 1}, 1s), (Slots{0, 2, 3}));
  EXPECT_EQ(left({0, 2, 3}, 1s), (Slots{2, 3})) << "rank 0 was among the last that failed, the others were not";
  EXPECT_EQ(left({2, 3}, 1s), (Slots{2, 3})) << "two must remain";
}

class Restart : public ProgramTest {
 protected:
  /// `sherd run FLAGS -- /bin/sh -c SCRIPT` in the test's folder.
  ProgramEnd run(const Words& flags, const std::string& script) const {
    Words words{"run"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(),
                 {"--", "/bin/sh", "-c", "cd " + dir_.path() + "; " + script, SHERD_PROGRAM, config_file_});
    return sherd(words);
  }
  int starts() const { return static_cast<int>(std::ranges::count(dir_.read("starts"), '\n')); }
};

TEST_F(Restart, AllRanksStartAgainAndLearnHowOften) {
  const ProgramEnd end =
      run({"-n", "2", "--restarts", "5", "--backoff", "0"},
          "echo $SHERD_RANK $SHERD_RESTART $SHERD_JOB >> starts; [ $SHERD_RESTART -ge 2 ] && exit 0\n"
          "[ $SHERD_RANK = 1 ] && exit 7; sleep 1000");
  EXPECT_EQ(end.status, 0) << end.err;
  expect_within(end.err, {"sherd run: rank 1 exited with status 7", "sherd run: restart 1 of 5, with 2 ranks\n",
                          "sherd run: restart 2 of 5, with 2 ranks\n", "sherd run: done, after 2 restarts\n"});
  std::istringstream lines(dir_.read("starts"));
  std::string rank, restart, job, first_job;
  int count = 0, sum = 0;
  while (lines >> rank >> restart >> job) {
    ++count, sum += std::stoi(restart);
    if (first_job.empty()) first_job = job;
    EXPECT_EQ(job, first_job);
    EXPECT_GE(job.size(), 16u);
  }
  EXPECT_EQ(count, 6);
  EXPECT_EQ(sum, 2 * (0 + 1 + 2));
}

TEST_F(Restart, TheLastFailureCountsWhenNoRestartIsLeft) {
  const ProgramEnd end =
      run({"-n", "1", "--restarts", "2", "--backoff", "0"}, "echo start >> starts; exit $((7 + $SHERD_RESTART))");
  EXPECT_EQ(end.status, 9);
  EXPECT_EQ(starts(), 3);
  expect_within(end.err, {"sherd run: no restart is left of 2\n"});
}

TEST_F(Restart, WhatAnotherStartCannotMendIsNotStartedAgain) {
  for (const char* end_of_rank :
       {"exit 2", "exit 3", "exit 4", "exit 5", "kill -TERM $$", "kill -INT $$", "kill -PIPE $$", "exit 0"}) {
    fs::remove(dir_ / "starts");
    run({"-n", "1", "--restarts", "5"}, fmt::format("echo start >> starts; {}; sleep 1000", end_of_rank));
    EXPECT_EQ(starts(), 1) << end_of_rank;
  }
  const ProgramEnd end = sherd({"run", "-n", "2", "--restarts", "5", "--", "/no/such/program"});
  EXPECT_EQ(end.status, 1);
  EXPECT_EQ(end.err.find("restart"), std::string::npos) << end.err;
}

TEST_F(Restart, AKilledRankIsStartedAgain) {
  const ProgramEnd end = run({"-n", "2", "--restarts", "5", "--backoff", "0"},
                             "[ $SHERD_RESTART = 1 ] && exit 0; [ $SHERD_RANK = 1 ] && kill -KILL $$; sleep 1000");
  EXPECT_EQ(end.status, 0) << end.err;
}

TEST_F(Restart, SignalsToTheLauncherEndItForGood) {
  // While ranks run, and in the pause before a restart.
  for (const auto& [script, flag] :
       {std::pair("echo start >> starts; sleep 1000", "0"), {"echo start >> starts; exit 7", "1000"}}) {
    fs::remove(dir_ / "starts");
    const std::string outer = fmt::format(
        "cd {}; \"$0\" run -n 1 --restarts 9 --backoff {} -- /bin/sh -c '{}' 2> err & pid=$!\n"
        "until [ -s starts ] && {{ [ {} = 0 ] || grep -q 'restart 1 of 9' err; }}; do :; done\n"
        "kill -TERM $pid; wait $pid",
        dir_.path(), flag, script, flag);
    EXPECT_EQ(run_program({"/bin/sh", "-c", outer, SHERD_PROGRAM}, {}, kLimit).status, 128 + SIGTERM);
    EXPECT_EQ(starts(), 1);
    expect_within(dir_.read("err"), {"stopped by SIGTERM"});
  }
}

TEST_F(Restart, RanksThatFailAgainAreLeftOutAndTheOthersNumberedAnew) {
  const ProgramEnd end =
      run({"-n", "4", "--restarts", "5", "--backoff", "0", "--min-ranks", "2"},
          "echo $SHERD_RESTART $SHERD_SLOT $SHERD_RANK $SHERD_WORLD_SIZE $SHERD_FULL_WORLD_SIZE >> starts\n"
          "[ $SHERD_WORLD_SIZE = 2 ] && exit 0; [ $(($SHERD_SLOT % 2)) = 0 ] && exit 7; sleep 1000");
  EXPECT_EQ(end.status, 0) << end.err;
  expect_within(end.err, {"with 2 ranks; left out, as they failed again at once: ranks ", " of the first start"});
  expect_within(dir_.read("starts"), {"2 1 0 2 4\n", "2 3 1 2 4\n"});
}

// Ranks that are told of a peer's error end by it as well, and say so.
TEST_F(Restart, RanksThatWereToldOfAnErrorAreNotLeftOut) {
  const ProgramEnd end =
      run({"-n", "4", "--restarts", "9", "--backoff", "0", "--min-ranks", "2"},
          "[ $SHERD_WORLD_SIZE = 3 ] && exit 0\n"
          "[ $SHERD_SLOT = 2 ] && { touch failed.$SHERD_RESTART; echo 'sherd: no such file' >&2; exit 1; }\n"
          "trap '' TERM; until [ -e failed.$SHERD_RESTART ]; do :; done\n"
          "echo 'sherd: rank 2: no such file' >&2; exit 1");
  EXPECT_EQ(end.status, 0) << end.err;
  expect_within(end.err, {"left out, as it failed again at once: rank 2 of the first start"});
}

TEST_F(Restart, WhereAllRanksFailNobodyIsLeftOut) {
  const ProgramEnd end = run({"-n", "3", "--restarts", "3", "--backoff", "0", "--min-ranks", "1"},
                             "trap '' TERM; touch up.$SHERD_RESTART.$SHERD_RANK\n"
                             "for rank in 0 1 2; do until [ -e up.$SHERD_RESTART.$rank ]; do :; done; done; exit 7");
  EXPECT_EQ(end.status, 7) << end.err;
  EXPECT_EQ(end.err.find("left out"), std::string::npos) << end.err;
}

TEST_F(Restart, FlagsThatDoNotFitAreWrongUsage) {
  for (const auto& [flags, text] : std::vector<std::pair<Words, std::string>>{
           {{"-n", "2", "--restarts", "-1"}, "--restarts '-1' is no number of restarts from 0 to"},
           {{"-n", "2", "--backoff", "x"}, "--backoff 'x' is no number of seconds"},
           {{"-n", "2", "--restarts", "1", "--min-ranks", "3"}, "--min-ranks 3 is more than the 2 ranks"},
           {{"-n", "2", "--min-ranks", "1"}, "give --restarts N too"}}) {
    const ProgramEnd end = run(flags, "exit 0");
    EXPECT_EQ(end.status, 2);
    expect_within(end.err, {text});
  }
}

TrainConfig config_of(std::int64_t batch, const std::string& mesh) {
  TrainConfig config;
  config.batch = batch;
  config.plan.mesh = mesh;
  return config;
}

TEST(RanksThatFit, TheLargestMeshOfTheSameAxesThatDividesTheBatch) {
  const auto fit = [](std::int64_t batch, const std::string& mesh, int full, int left) {
    RankInfo rank;
    rank.world_size = left;
    rank.full_world_size = full;
    const RanksThatFit result = ranks_that_fit(config_of(batch, mesh), rank);
    return fmt::format("{} {}", result.ranks, result.mesh.text());
  };
  EXPECT_EQ(fit(12, "", 4, 4), "4 ");
  EXPECT_EQ(fit(12, "", 4, 3), "3 ");
  EXPECT_EQ(fit(16, "", 4, 3), "2 ");
  EXPECT_EQ(fit(16, "dp=4", 4, 3), "2 dp=2");
  EXPECT_EQ(fit(16, "dp=2,tp=2", 4, 3), "2 dp=1,tp=2") << "as many as dp=2, tp=1, with smaller parts of the model";
  EXPECT_EQ(fit(12, "dp=3,tp=2", 6, 5), "4 dp=2,tp=2");
  EXPECT_EQ(fit(12, "replicate=2,dp=2", 4, 2), "2 replicate=1,dp=2");
  EXPECT_EQ(fit(7, "", 4, 3), "1 ");
  EXPECT_EQ(fit(16, "tp=4", 4, 3), "2 dp=1,tp=2") << "divisors of tp only";
}

TEST(RanksThatFit, ShardsThatReshardToKRanksStayAMultipleOfK) {
  RankInfo rank;
  rank.world_size = 7;
  rank.full_world_size = 8;
  TrainConfig config = config_of(24, "");
  EXPECT_EQ(ranks_that_fit(config, rank).ranks, 6);
  config.plan.reshard_after_forward = 4;
  EXPECT_EQ(ranks_that_fit(config, rank).ranks, 4);
  rank.world_size = 3;
  expect_error([&] { ranks_that_fit(config, rank); }, {"at most 3 ranks", "reshard_after_forward"});
}

TEST(SavesOfEarlierStart, ALaterSaveOfAnotherRunIsPassedOver) {
  const TempDir dir;
  const auto save = [&](std::int64_t step, const std::string& job) {
    const float value = 1;
    const std::string name = ckpt::new_save_name(dir.path(), step);
    ckpt::Manifest manifest;
    manifest.step = step;
    manifest.state[kJobOfSave] = job;
    const ckpt::Piece piece{.name = "w", .shape = {1}, .box = {{0}, {1}}, .bytes = std::as_bytes(std::span(&value, 1))};
    add(manifest, ckpt::write_rank_file(dir.path(), name, 0, {&piece, 1}));
    ckpt::commit(dir.path(), name, manifest);
    return dir / name;
  };
  TrainConfig config;
  config.save = dir.path();
  RankInfo rank;
  rank.job = "this";
  rank.restart = 1;
  EXPECT_EQ(saves_of_earlier_start(config, rank), "");
  save(400, "other");
  EXPECT_EQ(saves_of_earlier_start(config, rank), "");
  const std::string own = save(25, "this");
  EXPECT_EQ(saves_of_earlier_start(config, rank), own);
  save(500, "this");
  EXPECT_EQ(saves_of_earlier_start(config, rank), dir.path()) << "the newest is of this job";
  rank.restart = 0;
  EXPECT_EQ(saves_of_earlier_start(config, rank), "") << "the first start";
}

TEST(SavesOfEarlierStart, WhereItHasSavedAndNothingIsThereTheStartFails) {
  const TempDir dir;
  TrainConfig config;
  config.save = dir / "disk";
  RankInfo rank;
  rank.job = "this";
  rank.restart = 2;
  EXPECT_EQ(saves_of_earlier_start(config, rank), "");
  rank.saves = config.save;
  expect_error([&] { saves_of_earlier_start(config, rank); },
               {"restart 2", "an earlier start of this job has saved to \"" + config.save, "mount it"});
  rank.restart = 0;
  EXPECT_EQ(saves_of_earlier_start(config, rank), "");
}

TEST(SavesOfEarlierStart, OneThatCannotBeReadIsNotReplaced) {
  const TempDir dir;
  dir.write("step-000006/manifest.json", "{");
  TrainConfig config;
  config.save = dir.path();
  RankInfo rank;
  rank.job = "this";
  rank.restart = 1;
  EXPECT_EQ(saves_of_earlier_start(config, rank), "") << "no start of this job has saved";
  rank.saves = dir / "another";
  EXPECT_EQ(saves_of_earlier_start(config, rank), "") << "nor another training of the same job here";
  rank.saves = dir.path();
  expect_error([&] { saves_of_earlier_start(config, rank); }, {"step-000006/manifest.json", "damaged", "--resume"});
}

class RestartedTraining : public Restart {
 protected:
  /// By step.
  std::map<std::int64_t, double> losses(const std::string& file) const {
    std::map<std::int64_t, double> result;
    std::istringstream lines(dir_.read(file));
    for (std::string line; std::getline(lines, line);) {
      const auto item = nlohmann::json::parse(line);
      if (item.contains("loss")) result[item["step"]] = item["loss"];
    }
    return result;
  }
  static std::string train(const std::string& name, const std::string& flags = "", int steps = 400, int every = 25) {
    return fmt::format("exec \"$0\" train \"$1\" --steps {0} --save {1} --save-every {2} --metrics {1}.jsonl {3}",
                       steps, name, every, flags);
  }
};

// A rank kills itself in one of its starts when the metrics show a step.
std::string kill_when(int restart, int rank, int step, const std::string& metrics) {
  return fmt::format(
      "[ $SHERD_RESTART = {} ] && [ $SHERD_RANK = {} ] && {{ (until grep -q '\"step\":{},' {}; do :; done; kill -KILL "
      "$$) "
      "& }}\n",
      restart, rank, step, metrics);
}

TEST_F(RestartedTraining, EndsWithTheBitsOfTheUndisturbedRun) {
  ASSERT_EQ(run({"-n", "2"}, train("quiet")).status, 0);
  const ProgramEnd end = run({"-n", "2", "--restarts", "9", "--backoff", "0"},
                             kill_when(0, 1, 10, "hit.jsonl") + kill_when(1, 0, 110, "hit.jsonl") +
                                 kill_when(2, 1, 210, "hit.jsonl") + train("hit"));
  ASSERT_EQ(end.status, 0) << end.err;
  expect_within(end.err, {"restart 3 of 9", "done, after 3 restarts"});
  EXPECT_EQ(losses("hit.jsonl"), losses("quiet.jsonl"));
  const ProgramEnd difference = sherd({"ckpt", "diff", dir_ / "quiet", dir_ / "hit"});
  EXPECT_EQ(difference.status, 0) << difference.out << difference.err;
}

TEST_F(RestartedTraining, WhatAnotherRunHasSavedIsNotGoneOnWith) {
  ASSERT_EQ(run({"-n", "1"}, train("saves", "--seed 5")).status, 0);
  const std::string other = dir_.read("saves.jsonl");
  ASSERT_EQ(run({"-n", "1"}, train("quiet")).status, 0);
  // Before it has saved anything itself, then with saves of its own.
  const std::string flags = "--overwrite true";
  const ProgramEnd end = run({"-n", "1", "--restarts", "9", "--backoff", "0"},
                             kill_when(0, 0, 10, "saves.jsonl") + kill_when(1, 0, 110, "saves.jsonl") +
                                 "[ $SHERD_RESTART = 0 ] && rm saves.jsonl\n" + train("saves", flags));
  ASSERT_EQ(end.status, 0) << end.err;
  EXPECT_EQ(losses("saves.jsonl"), losses("quiet.jsonl"));
}

// The second start finds the empty place of a mount, the third one the disk.
TEST_F(RestartedTraining, SavesThatAreGoneAreNotBegunAnew) {
  ASSERT_EQ(run({"-n", "1"}, train("quiet")).status, 0);
  const ProgramEnd end =
      run({"-n", "1", "--restarts", "9", "--backoff", "0"},
          kill_when(0, 0, 60, "saves.jsonl") +
              "[ $SHERD_RESTART = 1 ] && { mv saves gone; mkdir saves; }\n"
              "[ $SHERD_RESTART = 2 ] && { cp saves.jsonl seen; rmdir saves && mv gone saves || exit 2; }\n" +
              train("saves"));
  ASSERT_EQ(end.status, 0) << end.err;
  expect_within(end.err, {"an earlier start of this job has saved to \"" + dir_ / "saves" + "\"",
                          "no save of it is there", "done, after 2 restarts"});
  EXPECT_GE(losses("seen").size(), 60u) << "the metrics stay";
  EXPECT_EQ(losses("saves.jsonl"), losses("quiet.jsonl"));
}

// Where to save is known from the save that is resumed alone.
TEST_F(RestartedTraining, GoesOnInTheFolderThatTheResumedSaveNames) {
  ASSERT_EQ(run({"-n", "1"}, train("saves", "", 50)).status, 0);
  fs::rename(dir_ / "saves", dir_ / "old");
  const ProgramEnd end = run({"-n", "1", "--restarts", "1", "--backoff", "0"},
                             kill_when(0, 0, 110, "hit.jsonl") +
                                 "exec \"$0\" train --resume old --steps 400 --save-every 25 --metrics hit.jsonl");
  ASSERT_EQ(end.status, 0) << end.err;
  expect_within(end.err, {"done, after 1 restart"});
}

TEST_F(RestartedTraining, FourRanksThatLoseTwoTrainOn) {
  const std::string mesh = "--mesh dp=2,tp=2";
  ASSERT_EQ(run({"-n", "4"}, train("quiet", mesh, 60, 4)).status, 0);
  // Two ranks die in the midst of it, and at once when they are started again.
  const ProgramEnd end =
      run({"-n", "4", "--restarts", "9", "--backoff", "0", "--min-ranks", "2"},
          "[ $SHERD_RESTART -ge 1 ] && [ $SHERD_SLOT -ge 2 ] && kill -KILL $$\n" + kill_when(0, 2, 9, "hit.jsonl") +
              kill_when(0, 3, 9, "hit.jsonl") + train("hit", mesh, 60, 4));
  ASSERT_EQ(end.status, 0) << end.err;
  expect_within(end.err,
                {"with 2 ranks; left out", "2 of the 4 ranks of the first start are left: trains on 2 of them"});
  const auto quiet = losses("quiet.jsonl"), hit = losses("hit.jsonl");
  ASSERT_EQ(hit.size(), quiet.size());
  for (const auto& [step, loss] : quiet) EXPECT_NEAR(hit.at(step), loss, 1e-6 * loss) << "step " << step;
}

}  // namespace
}  // namespace sherd::testing
