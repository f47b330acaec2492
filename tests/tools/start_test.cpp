// How jobs start, or fail to, as processes: ranks that meet through a file as under torchrun, ranks that do not fit
// together, limits of the system, pipes in place of files.
#include <sys/stat.h>

#include <filesystem>

#include "nn/checkpoint/format/manifest.h"
#include "tests/tools/program_test.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

class Start : public ProgramTest {
 protected:
  /// A shell script in the test's folder; $0 is the program, $1 the config. The variables are those that torchrun sets
  /// for all ranks of a job of two.
  ProgramEnd shell(const std::string& script) const {
    fs::create_directories(dir_ / "runtime");
    return run_program({"/bin/sh", "-c", "cd " + dir_.path() + "; " + script, SHERD_PROGRAM, config_file_},
                       {"XDG_RUNTIME_DIR=" + (dir_ / "runtime"), "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2",
                        "TORCHELASTIC_RUN_ID=start-test", "MASTER_ADDR=localhost", "MASTER_PORT=1"},
                       kLimit);
  }
  /// Starts a rank in the background.
  static std::string rank(int rank, const std::string& words = "") {
    return fmt::format("RANK={0} LOCAL_RANK={0} $0 train $1 {1} 2> err.{0} & p{0}=$!\n", rank, words);
  }
  static std::string status_of(int rank) { return fmt::format("wait $p{0}; echo status {0} $?\n", rank); }
};

TEST_F(Start, NoFileWithTheSecretIsLeftAndNoneIsThereWhileTheRanksTrain) {
  // The metrics come when all ranks have met; the run is stopped then.
  dir_.write("long.toml", dir_.read("tiny.toml"));
  const std::string words = "--steps 1000000 --metrics metrics --save saved";
  const ProgramEnd end = shell(rank(0, words) + rank(1, words) +
                               "while ! grep -q '\"step\"' metrics 2> /dev/null; do :; done\n"
                               "ls -A runtime/sherd | wc -l; kill -TERM $p0\n" +
                               status_of(0) + status_of(1));
  expect_within(end.out, {"0\n", "status 0 4\n", "status 1 4\n"});
  EXPECT_TRUE(fs::is_empty(dir_ / "runtime/sherd"));
}

TEST_F(Start, RanksOfDifferentWorldSizesAreNamedOnBoth) {
  const auto start = std::chrono::steady_clock::now();
  const ProgramEnd end = shell(rank(0) + "WORLD_SIZE=3; LOCAL_WORLD_SIZE=3\n" + rank(1) + status_of(0) + status_of(1));
  expect_within(end.out, {"status 0 1\n", "status 1 1\n"});
  for (const char* file : {"err.0", "err.1"})
    expect_within(dir_.read(file), {"CommError", "rank 0 has a group of 2 ranks, rank 1 (process ", ") one of 3"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << "half of any deadline";
}

TEST_F(Start, RanksOfSeveralHostsAreRefusedOnEachBeforeAnyWaitsForAnother) {
  // Rank 1 comes when rank 0 has ended, with a store at hand and without: a rank that waited would wait for a minute.
  const auto start = std::chrono::steady_clock::now();
  for (const char* store : {"", "export SHERD_STORE=127.0.0.1:1 SHERD_SECRET=abc\n"}) {
    const ProgramEnd end =
        shell(std::string(store) + "LOCAL_WORLD_SIZE=1\n" +
              "for r in 0 1; do RANK=$r LOCAL_RANK=0 $0 train $1 2> err.$r; echo status $r $?; done\n");
    expect_within(end.out, {"status 0 1\n", "status 1 1\n"});
    for (const int rank : {0, 1})
      expect_within(dir_.read(fmt::format("err.{}", rank)),
                    {fmt::format("sherd: rank {} of 2 runs on host ", rank), " with 1 of them", "sherd run -n 2",
                     fmt::format("torchrun says rank {} of 2, on this host 0 of 1", rank), "LOCAL_WORLD_SIZE"});
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << "half of any deadline";
}

struct WrongOnRanks {
  int ranks;
  std::vector<std::string> flags;
  std::vector<std::string_view> says;
};

TEST_F(Start, AValueThatOnlyTheRanksShowToBeWrongIsNotTriedAgain) {
  const std::string save = dir_ / "save", other = dir_.write("other.txt", tiny_text() + "ok");
  ASSERT_EQ(train(1, {"--steps", "1", "--save", save}).status, kDone);
  const std::vector<WrongOnRanks> rows{
      {2, {"--batch", "5"}, {"batch = 5 does not divide into 2 ranks"}},
      {2, {"--mesh", "dp=3"}, {"mesh = \"dp=3\" is for 3 ranks, this run has 2"}},
      {2, {"--mesh", "tp=2", "--model.heads", "1"}, {"heads"}},
      {3, {"--mesh", "tp=3"}, {"tp"}},
      {4, {"--reshard-after-forward", "3"}, {"reshard_after_forward", "3"}},
      {2, {"--fully-shard", "false"}, {"fully_shard = false on 2 ranks"}},
      {2, {"--model.vocabulary", "10"}, {"10", "29"}},
      {2, {"--model.sequence", "400000"}, {"a sequence of 400000 tokens"}},
      {2, {"--group", "nccl"}, {"nccl", "device"}},
      {2, {"--init-from", save, "--model.width", "32"}, {"model.width = 32"}},
      {2, {"--init-from", save, "--vocabulary", "bytes"}, {"vocabulary = bytes"}},
      {2, {"--init-from", save, "--data", dir_.write("hash.txt", tiny_text() + "#")}, {"'#'"}},
      {2, {"--resume", save, "--data", other}, {"not what the checkpoint was trained on"}},
      {2, {"--resume", dir_ / "nothing"}, {"no checkpoint", "nothing"}},
      {2, {"--save", save}, {"holds the saves of a run", "--overwrite"}},
      {2, {"--memory-limit", "10000"}, {"out of memory", "the limit is 10 KB"}},
  };
  for (const WrongOnRanks& row : rows) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(row.flags, " ")));
    std::vector<std::string> words{
        "run",   "-n",        std::to_string(row.ranks), "--restarts", "3", "--backoff", "0", "--", SHERD_PROGRAM,
        "train", config_file_};
    words.insert(words.end(), row.flags.begin(), row.flags.end());
    const ProgramEnd end = sherd(words);
    EXPECT_EQ(end.status, kUsage) << end.err;
    for (const std::string_view part : row.says) expect_within(end.err, {part});
    EXPECT_EQ(end.err.find("restart"), end.err.npos) << end.err;
  }
}

// A file that is not there may be there the next time.
TEST_F(Start, DataThatCannotBeReadIsTriedAgain) {
  const ProgramEnd end = sherd({"run", "-n", "2", "--restarts", "1", "--backoff", "0", "--", SHERD_PROGRAM, "train",
                                config_file_, "--data", dir_ / "nothing.txt"});
  EXPECT_EQ(end.status, kFailed) << end.err;
  expect_within(end.err, {"restart"});
}

TEST_F(Start, RanksThatNobodyHasNumberedDoNotTrainAlone) {
  const ProgramEnd end = run_program({SHERD_PROGRAM, "train", config_file_}, {"PMI_SIZE=2", "PMI_RANK=0"}, kLimit);
  EXPECT_EQ(end.status, 1);
  expect_within(end.err, {"PMI_SIZE=2: 2 ranks were started", "`sherd run -n 2`", "unset PMI_SIZE"});
}

TEST_F(Start, WithinAnotherLauncherIsRefusedByEachOfItsTasks) {
  const ProgramEnd end =
      run_program({SHERD_PROGRAM, "run", "-n", "2", "--", SHERD_PROGRAM, "run", "-n", "3", "true"}, {}, kLimit);
  EXPECT_EQ(end.status, 2);
  expect_within(end.err, {"sherd run has started this as rank ", "3 ranks of a job of its own", "COMMAND itself"});
}

TEST_F(Start, ACommandThatWritesOneFolderWantsOneRank) {
  const ProgramEnd end =
      run_program({SHERD_PROGRAM, "run", "-n", "2", "--", SHERD_PROGRAM, "export", "from", "to"}, {}, kLimit);
  EXPECT_EQ(end.status, 2);
  expect_within(end.err, {"sherd export runs on one rank", "sherd run has started 2"});
}

TEST_F(Start, TheDeadlineIsThatOfTheStartToo) {
  const ProgramEnd end = shell(rank(0, "--deadline 0.4") + status_of(0) + rank(1, "--deadline 0.4") + status_of(1));
  expect_within(end.out, {"status 0 1\n", "status 1 1\n"});
  expect_within(dir_.read("err.0"), {"ranks 1 have not come within 0.4 s"});
  expect_within(dir_.read("err.1"), {"has not published its store", "within 0.4"});
}

TEST_F(Start, RanksThatSeeOtherTextOfTheSameSizeAreNamed) {
  for (const char* place : {"0/text.txt", "1/text.txt"}) dir_.write(place, tiny_text());
  const std::string script = "cd $SHERD_RANK && exec $0 train $1 --data text.txt --vocabulary bytes";
  const auto run = [&] {
    return shell("unset WORLD_SIZE LOCAL_WORLD_SIZE; exec $0 run -n 2 -- /bin/sh -c '" + script + "' $0 $1");
  };
  EXPECT_EQ(run().status, 0) << "files of their own with one content";
  std::string edited = tiny_text();
  edited[100] ^= 1;
  dir_.write("1/text.txt", edited);
  const ProgramEnd end = run();
  EXPECT_EQ(end.status, 1);
  for (const char* prefix : {"[0] sherd: ", "[1] sherd: "})
    expect_within(end.err, {fmt::format("{}ranks see different data at text.txt: the hash of the content is ", prefix),
                            " on rank 0; ", " on rank 1; all ranks need the same files"});
}

TEST_F(Start, UnderALimitOnAddressSpaceRanksTrain) {
  // 6 GB, less than twice the memory of most hosts, which is what heaps took.
  const ProgramEnd end = train_by_script(2, "ulimit -v 6000000; exec \"$0\" train \"$1\"");
  EXPECT_EQ(end.status, 0) << end.err;
}

TEST_F(Start, LimitsOnMemoryAreNamedWhereThreadsOrMemoryAreRefused) {
  // The stacks of 63 threads do not fit, then that of the first.
  for (const char* limit : {"20000", "9000"}) {
    const ProgramEnd end = shell(fmt::format(
        "ulimit -d {}; unset WORLD_SIZE LOCAL_WORLD_SIZE; exec $0 train $1 --threads 64 --model.width 1024", limit));
    EXPECT_NE(end.status, 0);
    EXPECT_LT(end.status, 128) << end.err;
    expect_within(end.err, {fmt::format("limit   ulimit -d (data"), fmt::format(" is {}000", limit).substr(0, 4)});
  }
}

TEST_F(Start, PipesInPlaceOfFilesDoNotHang) {
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  const ProgramEnd config = sherd({"train", dir_ / "pipe"});
  EXPECT_EQ(config.status, 1);
  expect_within(config.err, {"pipe", "nobody has written to it"});
  for (const char* flag : {"--metrics", "--trace"}) {
    const ProgramEnd output = train(1, {flag, dir_ / "pipe"});
    EXPECT_EQ(output.status, 1);
    expect_within(output.err, {"pipe", "nobody reads", "start its reader first"});
  }
}

TEST_F(Start, PipesWithSomebodyAtTheOtherEndAreFiles) {
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  const ProgramEnd end = shell(
      "unset WORLD_SIZE LOCAL_WORLD_SIZE; exec 3<> pipe\n"
      "cat $1 | $0 train /dev/stdin --metrics pipe > out 2> err; echo status $?; head -n 6 <&3");
  expect_within(end.out, {"status 0\n", "{\"config\":", "{\"step\":5,"});
}

TEST_F(Start, ATextThatIsNoConfigIsRefusedWhereverItEnds) {
  expect_within(sherd({"train", dir_ / "none.toml"}).err, {"cannot read the config", "none.toml", "No such file"});
  expect_within(sherd({"train", dir_.path()}).err, {"cannot read the config", "Is a directory"});
  expect_within(sherd({"train", "/dev/zero"}).err, {"/dev/zero", "too large to be one"});
}

}  // namespace
}  // namespace sherd::testing
