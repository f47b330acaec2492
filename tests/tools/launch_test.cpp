// `sherd run` with small /bin/sh programs as ranks. The launcher runs in a forked child, as it does under a shell, with
// its output in files; ranks tell what they are by files in the same folder. Nothing waits by sleeping for a fixed
// time: wait_for() polls for what must happen, with a limit.
#include "tools/launch/launch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include "runtime/comm/job/rank.h"
#include "runtime/comm/store/tcp_store.h"
#include "runtime/tensor/error.h"
#include "tools/launch/process_tree.h"
#include "tools/launch/supervise.h"

namespace sherd {

using namespace train;

namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kThrew = 99;  // how the forked launcher reports an Error; its text is on stderr

bool wait_for(const std::function<bool()>& condition) {
  for (const auto until = Clock::now() + 20s; Clock::now() < until; std::this_thread::sleep_for(2ms))
    if (condition()) return true;
  return false;
}

std::string read_file(const fs::path& path) {
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();  // No exception for a file of /proc whose process ends meanwhile.
  return content.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Neither running nor a zombie that somebody else has yet to bury.
bool is_gone(pid_t pid) {
  const std::string text = read_file(fmt::format("/proc/{}/stat", pid));
  const std::size_t name_end = text.rfind(')');
  return name_end == text.npos || name_end + 2 >= text.size() || text[name_end + 2] == 'Z' || text[name_end + 2] == 'X';
}

void expect_within(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const auto part : parts) EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

class SherdRun : public ::testing::Test {
 protected:
  SherdRun() : folder_(::testing::TempDir() + "sherd-XXXXXX") { EXPECT_NE(::mkdtemp(folder_.data()), nullptr); }
  ~SherdRun() override {
    if (launcher_ > 0) {
      ::kill(launcher_, SIGKILL);
      ::waitpid(launcher_, nullptr, 0);
    }
    for (const pid_t pid : pids()) EXPECT_TRUE(wait_for([pid] { return is_gone(pid); })) << "left behind: " << pid;
    fs::remove_all(folder_);
  }

  static SuperviseOptions shell(int ranks, const std::string& script) {
    SuperviseOptions options;
    options.command = {"/bin/sh", "-c", script};
    options.ranks = ranks;
    return options;
  }

  /// Starts the launcher in the folder. `prepare` runs in its process before it.
  void start(const SuperviseOptions& options, const std::function<void()>& prepare = [] {}) {
    launcher_ = ::fork();
    ASSERT_GE(launcher_, 0);
    if (launcher_ != 0) return;
    if (::chdir(folder_.c_str()) != 0) ::_exit(98);
    ::dup2(::open("out", O_WRONLY | O_CREAT | O_APPEND, 0600), 1);
    ::dup2(::open("err", O_WRONLY | O_CREAT | O_APPEND, 0600), 2);
    prepare();
    int status = kThrew;
    try {
      status = supervise(options);
    } catch (const Error& error) {
      fmt::print(stderr, "{}\n", error.what());
      std::fflush(stderr);
    }
    ::_exit(status);
  }

  /// The launcher's exit status; -signal if it was killed.
  int finish() {
    int status = 0;
    const bool ended = wait_for([&] { return ::waitpid(launcher_, &status, WNOHANG) == launcher_; });
    EXPECT_TRUE(ended) << "the launcher does not end; stderr: " << err();
    if (!ended) return -1;
    launcher_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  int run(const SuperviseOptions& options, const std::function<void()>& prepare = [] {}) {
    start(options, prepare);
    return finish();
  }

  bool exists(const std::string& name) const { return fs::exists(folder_ + "/" + name); }
  /// What a rank has left in a file, once the line is complete.
  std::string note(const std::string& name) const {
    EXPECT_TRUE(wait_for([&] { return read_file(folder_ + "/" + name).ends_with('\n'); })) << name << "; " << err();
    const std::string text = read_file(folder_ + "/" + name);
    return text.substr(0, text.find('\n'));
  }
  pid_t pid_in(const std::string& name) const { return static_cast<pid_t>(std::stol("0" + note(name))); }
  /// All processes that ranks have noted in files pid.*; one that was killed before it could write has none.
  std::vector<pid_t> pids() const {
    std::vector<pid_t> found;
    for (const auto& entry : fs::directory_iterator(folder_))
      if (entry.path().filename().string().starts_with("pid.") && fs::file_size(entry) > 0)
        found.push_back(pid_in(entry.path().filename()));
    return found;
  }
  std::string out() const { return read_file(folder_ + "/out"); }
  std::string err() const { return read_file(folder_ + "/err"); }

  std::string folder_;
  pid_t launcher_ = 0;
};

// A rank that notes its process, one it started, and one that made itself independent; and then waits for ever.
const std::string kFamily =
    "sleep 1000 & echo $! > pid.child.$SHERD_RANK\n"
    "setsid sh -c 'echo $$ > pid.daemon.$SHERD_RANK; exec sleep 1000' &\n"
    "echo $PPID > inner.$SHERD_RANK; echo $$ > pid.$SHERD_RANK; wait";
const std::string kNoteAndWait = "echo $$ > pid.$SHERD_RANK; sleep 1000; true";

TEST_F(SherdRun, AllRanksSucceed) {
  EXPECT_EQ(run(shell(3, "echo out $SHERD_RANK; echo err $SHERD_RANK >&2")), 0);
  auto lines = lines_of(out());
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, (std::vector<std::string>{"[0] out 0", "[1] out 1", "[2] out 2"}));
  lines = lines_of(err());
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, (std::vector<std::string>{"[0] err 0", "[1] err 1", "[2] err 2"}));
}

TEST_F(SherdRun, OneRankHasNoPrefix) {
  EXPECT_EQ(run(shell(1, "printf 'a\\rb'; printf 'c' >&2")), 0);
  EXPECT_EQ(out(), "a\rb");
  EXPECT_EQ(err(), "c");
}

TEST_F(SherdRun, RanksLearnTheirPlaceAndTheStore) {
  ASSERT_EQ(run(shell(3,
                      "env | grep ^SHERD_ | grep -v -e ^SHERD_TEST_ -e ^SHERD_CHECK_ -e ^SHERD_CACHE= | sort > "
                      "env.$SHERD_RANK; echo "
                      "$OTHER > other.$SHERD_RANK"),
                [] {
                  ::setenv("SHERD_WORLD_SIZE", "77", 1);  // of an outer launcher: replaced
                  ::setenv("OTHER", "kept", 1);
                }),
            0);
  std::string secret;
  for (int rank = 0; rank < 3; ++rank) {
    std::map<std::string, std::string> variables;
    const auto lines = lines_of(read_file(fmt::format("{}/env.{}", folder_, rank)));
    EXPECT_EQ(lines.size(), 10u);
    for (const auto& line : lines) variables[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
    const RankInfo info = discover_rank([&](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
    EXPECT_EQ(info.rank, rank);
    EXPECT_EQ(info.world_size, 3);
    EXPECT_EQ(info.local_rank, rank);
    EXPECT_EQ(info.local_world_size, 3);
    EXPECT_EQ(info.restart, 0);
    EXPECT_EQ(info.full_world_size, 3);
    EXPECT_EQ(variables["SHERD_SLOT"], std::to_string(rank));
    EXPECT_EQ(info.job, "sherd run-" + variables["SHERD_JOB"]);
    EXPECT_EQ(info.store_host, "127.0.0.1");
    EXPECT_GE(info.secret.size(), 32u);
    EXPECT_TRUE(rank == 0 || info.secret == secret);
    secret = info.secret;
    EXPECT_EQ(note(fmt::format("other.{}", rank)), "kept");
  }
}

TEST_F(SherdRun, TheStoreServesWhileRanksRun) {
  start(shell(2, "echo $SHERD_STORE > store.$SHERD_RANK; echo $SHERD_SECRET > secret.$SHERD_RANK; " + kNoteAndWait));
  TcpStoreOptions options;
  options.port = std::stoi(note("store.0").substr(std::string("127.0.0.1:").size()));
  options.secret = note("secret.1");
  options.connect_deadline = 5s;
  TcpStore store(options);
  EXPECT_EQ(store.add("n", 3), 3);
  pid_in("pid.0"), pid_in("pid.1");
  ::kill(launcher_, SIGTERM);
  EXPECT_EQ(finish(), 128 + SIGTERM);
  EXPECT_THROW(store.add("n", 1), CommError);
}

TEST_F(SherdRun, AFailedRankStopsAllAndIsShownLast) {
  EXPECT_EQ(run(shell(3,
                      "echo noise >&2; echo $$ > pid.$SHERD_RANK; [ $SHERD_RANK = 1 ] || { sleep 1000; exit 0; }\n"
                      "while ! [ -s pid.0 -a -s pid.2 ]; do :; done; echo 'Error: shapes differ' >&2; exit 7")),
            7);
  const std::string text = err();
  const std::string_view last =
      "sherd run: rank 1 exited with status 7; the end of what it wrote to stderr:\n  noise\n  Error: shapes differ\n";
  EXPECT_TRUE(text.ends_with(last)) << text;
  expect_within(text, {"[1] Error: shapes differ\n", "rank 1 exited with status 7; stopping the other ranks\n"});
}

TEST_F(SherdRun, OnlyTheLastLinesOfTheFailedRankAreRepeated) {
  EXPECT_EQ(run(shell(2, "[ $SHERD_RANK = 0 ] && exit 0; seq 1 1000 >&2; exit 1")), 1);
  const auto lines = lines_of(err());
  ASSERT_GT(lines.size(), 21u);
  EXPECT_EQ(lines.back(), "  1000");
  EXPECT_EQ(lines[lines.size() - 20], "  981");
  expect_within(lines[lines.size() - 21], {"rank 1 exited with status 1"});
}

TEST_F(SherdRun, ARankKilledByASignalGivesItsNumber) {
  EXPECT_EQ(run(shell(2, "[ $SHERD_RANK = 0 ] && kill -SEGV $$; " + kNoteAndWait)), 128 + SIGSEGV);
  expect_within(err(), {"rank 0 was killed by SIGSEGV (Segmentation fault)", "wrote nothing to stderr"});
}

TEST_F(SherdRun, OneRankThatFailsIsNamed) {
  EXPECT_EQ(run(shell(1, "echo broken >&2; exit 5")), 5);
  EXPECT_EQ(err(), "broken\nsherd run: rank 0 exited with status 5\n");
}

TEST_F(SherdRun, TheFirstRealFailureIsBlamedNotThePeersThatNoticedIt) {
  // Rank 2 breaks, but is slow to end; its peers end first, because of it.
  EXPECT_EQ(run(shell(3,
                      "if [ $SHERD_RANK = 2 ]; then while ! [ -s left.0 -a -s left.1 ]; do :; done; "
                      "echo 'Error: out of range' >&2; exit 4; fi\n"
                      "echo 'CommError: all_reduce: rank 2 has died' >&2; echo '  rank    0' >&2; "
                      "echo x > left.$SHERD_RANK; exit 3"),
                [] {}),
            4);
  EXPECT_TRUE(err().ends_with("stderr:\n  Error: out of range\n")) << err();
}

TEST_F(SherdRun, SurvivorsHaveTimeToSayWhatTheyWereDoing) {
  EXPECT_EQ(run(shell(2,
                      "echo $$ > pid.$SHERD_RANK; while ! [ -s pid.0 -a -s pid.1 ]; do :; done\n"
                      "[ $SHERD_RANK = 0 ] && kill -KILL $$\n"
                      "while kill -0 $(cat pid.0) 2> /dev/null; do :; done\n"
                      "seq 1 100000 > numbers; echo 'CommError: rank 0 died; in all_reduce #7' >&2; exit 3")),
            128 + SIGKILL);
  expect_within(err(), {"[1] CommError: rank 0 died; in all_reduce #7\n", "rank 0 was killed by SIGKILL (Killed)"});
  EXPECT_EQ(err().find("stopping the other ranks"), std::string::npos) << "they had ended";
}

TEST_F(SherdRun, RanksThatDieTogetherAreAllNamed) {
  EXPECT_EQ(run(shell(4,
                      "echo $$ > pid.$SHERD_RANK; echo from $SHERD_RANK >&2\n"
                      "while ! [ -s pid.0 -a -s pid.1 -a -s pid.2 -a -s pid.3 ]; do :; done\n"
                      "[ $SHERD_RANK = 1 ] && kill -KILL $$; [ $SHERD_RANK = 2 ] && kill -SEGV $$\n"
                      "[ $SHERD_RANK = 3 ] && { echo 'CommError: rank 1 died' >&2; exit 3; }\n"
                      "sleep 1000; true")) > 128,
            true);
  const std::vector<std::string> lines = lines_of(err());
  const std::string& verdict = lines[lines.size() - 2];
  expect_within(verdict, {"rank 1 was killed by SIGKILL (Killed)", "rank 2 was killed by SIGSEGV (Segmentation fault)",
                          "; the end of what rank "});
  EXPECT_EQ(verdict.find("rank 3"), std::string::npos) << "it blames a peer";
}

TEST_F(SherdRun, ARankThatEndedWellIsNamedWhereAnotherHasWaitedForIt) {
  EXPECT_EQ(run(shell(2,
                      "[ $SHERD_RANK = 1 ] && { echo $$ > pid; exit 0; }\n"
                      "while ! [ -s pid ]; do :; done; while kill -0 $(cat pid) 2> /dev/null; do :; done\n"
                      "echo 'CommError: rank 1 ended (status 0) after its 3rd step' >&2; exit 1")),
            1);
  expect_within(err(), {"rank 0 exited with status 1; rank 1 had ended (status 0); the end of what rank 0 wrote"});
}

TEST_F(SherdRun, IfAllBlameAPeerTheFirstIsShown) {
  auto options = shell(2, "[ $SHERD_RANK = 0 ] && { echo 'CommError: no answer' >&2; exit 3; }; " + kNoteAndWait);
  options.blame_window = 50ms;
  EXPECT_EQ(run(options), 3);
  EXPECT_TRUE(err().ends_with("stderr:\n  CommError: no answer\n")) << err();
}

TEST_F(SherdRun, ARankThatEndsWellIsNoReasonToStop) {
  EXPECT_EQ(run(shell(2,
                      "[ $SHERD_RANK = 0 ] && { echo done > first; exit 0; }\n"
                      "while ! [ -s first ]; do :; done; kill -0 $PPID && echo still here")),
            0);
  EXPECT_EQ(out(), "[1] still here\n");
}

// Their errors would name it, but they have ended.
TEST_F(SherdRun, ARankThatIsStoppedWhenTheOthersHaveEndedIsKilled) {
  auto options = shell(2, "[ $SHERD_RANK$SHERD_RESTART = 10 ] && kill -STOP $$; exit 0");
  options.frozen_after = 100ms;
  EXPECT_EQ(run(options), 128 + SIGKILL);
  expect_within(err(), {"sherd run: rank 1 has been stopped for 0.1 s, and no rank runs: killing it\n",
                        "rank 1 was killed by SIGKILL (Killed)"});
  options.restart = {.restarts = 1, .backoff = 0ms};
  EXPECT_EQ(run(options), 0);
  expect_within(err(), {"restart 1 of 1, with 2 ranks\n"});
}

TEST_F(SherdRun, RanksThatAreAllStoppedAreKilled) {
  auto options = shell(2, "kill -STOP $$");
  options.frozen_after = 100ms;
  EXPECT_EQ(run(options), 128 + SIGKILL);
  expect_within(err(), {"rank 0 has been stopped for 0.1 s, and no rank runs", "rank 1 has been stopped for 0.1 s"});
}

TEST_F(SherdRun, ARankThatIsStoppedForAWhileIsLeftAlone) {
  auto options = shell(2,
                       "[ $SHERD_RANK = 0 ] || { (while ! grep -q '^State:.T' /proc/$$/status; do :; done; kill -CONT "
                       "$$) & kill -STOP $$; }");
  options.frozen_after = 20s;
  EXPECT_EQ(run(options), 0);
  EXPECT_EQ(err(), "");
}

TEST_F(SherdRun, MoreRanksThanCores) {
  EXPECT_EQ(run(shell(24, "echo x")), 0);
  EXPECT_EQ(lines_of(out()).size(), 24u);
}

TEST_F(SherdRun, UnknownCommandIsAnError) {
  SuperviseOptions options;
  options.ranks = 2;
  options.command = {"no-such-program-anywhere"};
  EXPECT_EQ(run(options), kThrew);
  EXPECT_EQ(err(), "command 'no-such-program-anywhere' not found on PATH\n");
}

TEST_F(SherdRun, AFileThatIsNoProgramIsAnError) {
  std::ofstream(folder_ + "/plain") << "text\n";
  SuperviseOptions options;
  options.command = {"./plain"};
  EXPECT_EQ(run(options), kThrew);
  expect_within(err(), {"cannot run './plain'", "Permission denied"});
}

TEST_F(SherdRun, LinesStayWholeUnderHugeOutput) {
  const int lines_per_rank = 15'000;
  EXPECT_EQ(
      run(shell(3, fmt::format("seq -f \"$SHERD_RANK:%.0f:................................\" 1 {}", lines_per_rank))),
      0);
  std::vector<int> next(3, 1);
  for (const std::string& line : lines_of(out())) {
    int rank = -1, again = -1, number = 0;
    ASSERT_EQ(std::sscanf(line.c_str(), "[%d] %d:%d:", &rank, &again, &number), 3) << line;
    ASSERT_TRUE(rank == again && rank >= 0 && rank < 3) << line;
    ASSERT_EQ(line, fmt::format("[{0}] {0}:{1}:................................", rank, number));
    ASSERT_EQ(number, next[static_cast<std::size_t>(rank)]++);
  }
  EXPECT_EQ(next, std::vector<int>(3, lines_per_rank + 1));
}

TEST_F(SherdRun, AStalledReaderNeitherLosesOutputNorBlocksStopping) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  start(shell(2,
              "trap 'echo x > term.$SHERD_RANK; exit 0' TERM; yes & echo $$ > pid.$SHERD_RANK; while :; do sleep 0.01; "
              "done"),
        [&] { ::dup2(ends[1], 1); });
  ::close(ends[1]);
  pid_in("pid.0"), pid_in("pid.1");
  pollfd output{.fd = ends[0], .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&output, 1, 30'000), 1) << "no output came";  // Nobody reads it: soon every buffer is full.
  ::kill(launcher_, SIGTERM);
  for (const std::string name : {"term.0", "term.1"}) EXPECT_EQ(note(name), "x");
  std::string last;
  char buffer[65536];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    last.assign(buffer, static_cast<std::size_t>(got));
  EXPECT_TRUE(last.ends_with("] y\n")) << last;
  ::close(ends[0]);
  EXPECT_EQ(finish(), 128 + SIGTERM);
}

TEST_F(SherdRun, AReaderThatLeavesEndsTheRanks) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  start(shell(2, "exec yes"), [&] {
    ::dup2(ends[1], 1);
    ::close(ends[0]);
  });
  ::close(ends[1]);
  char byte;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  ::close(ends[0]);
  EXPECT_EQ(finish(), 128 + SIGPIPE);
}

TEST_F(SherdRun, ClosedStandardStreamsDoNoHarm) {
  EXPECT_EQ(run(shell(2, "cat > in.$SHERD_RANK; [ $SHERD_RANK = 0 ] || exit 6"), [] { ::close(0), ::close(1); }), 6);
  EXPECT_TRUE(exists("in.0"));
  EXPECT_EQ(run(shell(1, "exit 6"), [] { ::close(0), ::close(1), ::close(2); }), 6);
}

TEST_F(SherdRun, RankZeroReadsTheInput) {
  std::ofstream(folder_ + "/input") << "hello\n";
  EXPECT_EQ(run(shell(2, "cat > in.$SHERD_RANK"), [] { ::dup2(::open("input", O_RDONLY), 0); }), 0);
  EXPECT_EQ(read_file(folder_ + "/in.0"), "hello\n");
  EXPECT_EQ(read_file(folder_ + "/in.1"), "");
}

TEST_F(SherdRun, RanksInheritNoOtherDescriptors) {
  EXPECT_EQ(run(shell(2, "for n in /proc/$$/fd/*; do [ ${n##*/} -gt 2 ] && readlink $n; done; echo end"),
                [] { ::open("extra", O_RDWR | O_CREAT, 0600); }),
            0);
  for (const std::string& line : lines_of(out())) EXPECT_TRUE(line.ends_with("] end")) << line;
}

TEST_F(SherdRun, InterruptIsPassedOnAndCleansUp) {
  start(shell(
      2, "trap 'echo int > int.$SHERD_RANK; exit 0' INT; echo $$ > pid.$SHERD_RANK; while :; do sleep 0.01; done"));
  pid_in("pid.0"), pid_in("pid.1");
  ::kill(launcher_, SIGINT);
  EXPECT_EQ(finish(), 128 + SIGINT);
  EXPECT_EQ(note("int.0"), "int");
  EXPECT_EQ(note("int.1"), "int");
  EXPECT_TRUE(err().ends_with("sherd run: stopped by SIGINT\n")) << err();
}

TEST_F(SherdRun, WhoIgnoresTheRequestIsKilledAfterTheGrace) {
  auto options = shell(2, "trap '' TERM; echo $$ > pid.$SHERD_RANK; while :; do sleep 1000; done");
  options.save_grace = 100ms;
  start(options);
  pid_in("pid.0"), pid_in("pid.1");
  const auto begin = Clock::now();
  ::kill(launcher_, SIGTERM);
  EXPECT_EQ(finish(), 128 + SIGTERM);
  EXPECT_GE(Clock::now() - begin, 100ms);
}

TEST_F(SherdRun, ASecondInterruptKillsAtOnce) {
  auto options = shell(2, "trap '' INT; echo $$ > pid.$SHERD_RANK; while :; do sleep 1000; done");
  options.save_grace = 1000s;
  start(options);
  pid_in("pid.0"), pid_in("pid.1");
  ::kill(launcher_, SIGINT);
  EXPECT_TRUE(wait_for([&] { return err().find("once more kills at once") != std::string::npos; }));
  ::kill(launcher_, SIGINT);
  EXPECT_EQ(finish(), 128 + SIGINT);
}

// Ranks that save when they are asked to end, as `sherd train` does, and say so by their status.
const std::string kSaver = "trap 'exit 4' TERM; echo $$ > pid.$SHERD_RANK; while :; do :; done";

TEST_F(SherdRun, RanksThatSaveWhenAskedToEndGiveTheirStatus) {
  const std::string fails = "if [ $SHERD_RANK = 1 ]; then trap 'exit 5' TERM; else trap 'exit 4' TERM; fi\n";
  const std::string dies = "if [ $SHERD_RANK = 1 ]; then trap - TERM; else trap 'exit 4' TERM; fi\n";
  const std::string waits = "echo $$ > pid.$SHERD_RANK; while :; do :; done";
  for (const auto& [script, status] : {std::pair(kSaver, 4), {fails + waits, 5}, {dies + waits, 128 + SIGTERM}}) {
    start(shell(2, script));
    pid_in("pid.0"), pid_in("pid.1");
    ::kill(launcher_, SIGTERM);
    EXPECT_EQ(finish(), status) << script;
    fs::remove(folder_ + "/pid.0"), fs::remove(folder_ + "/pid.1");
  }
}

TEST_F(SherdRun, PeersOfARankThatWasAskedToEndFinishToo) {
  // Rank 0 is signalled by somebody; rank 1 ends, with it, a little later and undisturbed.
  EXPECT_EQ(run(shell(2,
                      "[ $SHERD_RANK = 0 ] && { echo $$ > ending; exit 4; }\n"
                      "while kill -0 $(cat ending) 2> /dev/null || ! [ -s ending ]; do :; done; seq 1 20000; exit 4")),
            4);
  EXPECT_NE(out().find("[1] 20000\n"), std::string::npos);
}

TEST_F(SherdRun, RanksThatDoNotHandleTheSignalToSaveGoOn) {
  start(shell(2,
              "if [ $SHERD_RANK = 0 ]; then trap 'echo usr > usr.0' USR1; fi; echo $$ > pid.$SHERD_RANK; "
              "until [ -e end ]; do sleep 0.01; done"));
  pid_in("pid.0"), pid_in("pid.1");
  ::kill(launcher_, SIGUSR1);
  EXPECT_EQ(note("usr.0"), "usr");
  std::ofstream(fs::path(folder_) / "end").flush();
  EXPECT_EQ(finish(), 0) << err();
}

TEST_F(SherdRun, AnIgnoredHangupStaysIgnored) {
  start(shell(1, "echo $$ > pid.0; while ! [ -e go ]; do :; done"), [] { ::signal(SIGHUP, SIG_IGN); });
  pid_in("pid.0");
  ::kill(launcher_, SIGHUP);  // what nohup is for
  std::ofstream(folder_ + "/go") << "";
  EXPECT_EQ(finish(), 0);
}

TEST_F(SherdRun, StoppedRanksAreStoppedForGood) {
  start(shell(2, kNoteAndWait));
  ::kill(pid_in("pid.0"), SIGSTOP);
  pid_in("pid.1");
  ::kill(launcher_, SIGTERM);
  EXPECT_EQ(finish(), 128 + SIGTERM);
}

TEST_F(SherdRun, WhatRanksLeaveBehindIsStopped) {
  EXPECT_EQ(run(shell(2,
                      "sleep 1000 & echo $! > pid.child.$SHERD_RANK\n"
                      "setsid sh -c 'echo $$ > pid.daemon.$SHERD_RANK; exec sleep 1000' &\n"
                      "while ! [ -s pid.daemon.$SHERD_RANK ]; do :; done; exit 0")),
            0);
  ASSERT_EQ(pids().size(), 4u);
  for (const pid_t pid : pids()) EXPECT_TRUE(is_gone(pid));  // already when the launcher ends
  expect_within(err(), {"left behind"});
}

TEST_F(SherdRun, AFailureStopsWholeFamilies) {
  EXPECT_EQ(run(shell(2, "[ $SHERD_RANK = 1 ] && { while ! [ -s pid.0 -a -s pid.daemon.0 ]; do :; done; exit 3; }\n" +
                             kFamily)),
            3);
  ASSERT_EQ(pids().size(), 3u);
  for (const pid_t pid : pids()) EXPECT_TRUE(is_gone(pid));
}

TEST_F(SherdRun, KillingTheLauncherLeavesNothing) {
  start(shell(2, kFamily));
  for (const auto* name : {"pid.0", "pid.1", "pid.daemon.0", "pid.daemon.1"}) EXPECT_FALSE(is_gone(pid_in(name)));
  ::kill(launcher_, SIGKILL);
  EXPECT_EQ(finish(), -SIGKILL);
  ASSERT_EQ(pids().size(), 6u);
  for (const pid_t pid : pids()) EXPECT_TRUE(wait_for([pid] { return is_gone(pid); })) << pid;
  EXPECT_TRUE(wait_for([pid = pid_in("inner.0")] { return is_gone(pid); }));
}

TEST_F(SherdRun, KillingItsSecondProcessLeavesNothing) {
  start(shell(2, kFamily));
  for (const auto* name : {"pid.0", "pid.1", "pid.daemon.0", "pid.daemon.1"}) EXPECT_FALSE(is_gone(pid_in(name)));
  ASSERT_NE(pid_in("inner.0"), launcher_);
  ::kill(pid_in("inner.0"), SIGKILL);
  EXPECT_EQ(finish(), kThrew);
  expect_within(err(), {"second process was killed by signal 9"});
  ASSERT_EQ(pids().size(), 6u);
  for (const pid_t pid : pids()) EXPECT_TRUE(is_gone(pid)) << pid;
}

TEST_F(SherdRun, RanksDieWithTheirParentEvenIfNobodyCleansUp) {
  start(shell(2, "echo $PPID > inner.$SHERD_RANK; echo $$ > pid.$SHERD_RANK; exec sleep 1000"));
  const std::vector<pid_t> ranks = {pid_in("pid.0"), pid_in("pid.1")};
  ::kill(launcher_, SIGSTOP);
  ::kill(pid_in("inner.0"), SIGKILL);
  for (const pid_t pid : ranks) EXPECT_TRUE(wait_for([pid] { return is_gone(pid); })) << pid;
  ::kill(launcher_, SIGKILL);
  EXPECT_EQ(finish(), -SIGKILL);
}

std::string message_of(std::vector<std::string_view> args) {
  try {
    run_launch(args);
  } catch (const Error& error) { return error.what(); }
  return "no error";
}

TEST(RunLaunch, WrongArgumentsAreErrors) {
  for (const auto* number : {"0", "-1", "x", "2x", "", "4097", "99999999999"})
    expect_within(message_of({"-n", number, "--", "true"}), {"-n", fmt::format("'{}'", number), "from 1"});
  expect_within(message_of({"-n"}), {"-n needs the number"});
  expect_within(message_of({"--save-grace"}), {"--save-grace needs the number of seconds"});
  for (const auto* seconds : {"-1", "x", "5s", "", "nan", "inf", "100000"})
    expect_within(message_of({"-n", "1", "--save-grace", seconds}), {fmt::format("'{}'", seconds), "from 0 to 86400"});
  expect_within(message_of({"--", "true"}), {"number of ranks is missing", "-n N"});
  expect_within(message_of({"-n", "2"}), {"command is missing"});
  expect_within(message_of({"-n", "2", "--"}), {"command is missing"});
  expect_within(message_of({"-n", "2", "--ranks", "true"}), {"unknown flag '--ranks'"});
}

TEST(RunLaunch, RunsTheCommandWithItsArguments) {
  const std::vector<std::string_view> args = {"-n", "2", "--", "sh", "-c", "[ \"$0 $1\" = '-n --' ] && exit 3",
                                              "-n", "--"};
  EXPECT_EQ(run_launch(args), 3);
}

}  // namespace
}  // namespace sherd
