// Ranks that are stopped or killed, as `sherd run` and its user see it.
#include <filesystem>

#include "tests/tools/program_test.h"

namespace sherd::testing {
namespace {

using namespace std::chrono_literals;
using FrozenClock = std::chrono::steady_clock;

// What may pass from the moment at which peers may give up a rank until all have ended.
constexpr auto kEnd = 5s;
// Where ranks begin to wait only when they have started: a second at most, but two cores may have to run two such
// tests.
constexpr auto kStart = 5s;

class Frozen : public ProgramTest {
 protected:
  /// Trains two ranks until the metrics show step 3, then sends the signal to rank 1.
  ProgramEnd train_and_strike(const std::string& signal, const std::string& flags) const {
    const std::string script = fmt::format(
        "\"$0\" run -n 2 -- /bin/sh -c 'echo $$ > $2.pid.$SHERD_RANK; exec $0 train $1 --steps 1000000 --metrics $2 "
        "{}' "
        "\"$0\" \"$1\" \"$2\" & pid=$!\n"
        "until grep -q '\"step\":3,' \"$2\" 2> /dev/null; do kill -0 $pid || break; done\n"
        ": > \"$2.struck\"; kill -{} $(cat \"$2.pid.1\"); wait $pid",
        flags, signal);
    return run_program({"/bin/sh", "-c", script, SHERD_PROGRAM, config_file_, dir_ / "metrics.jsonl"}, {}, kLimit);
  }
};

TEST_F(Frozen, AStoppedRankEndsTheRunWithinItsDeadline) {
  const ProgramEnd end = train_and_strike("STOP", "--frozen-after 6");
  const auto struck = std::filesystem::last_write_time(dir_ / "metrics.jsonl.struck");
  EXPECT_LT(std::filesystem::file_time_type::clock::now() - struck, 6s + kEnd);
  EXPECT_EQ(end.status, 1) << end.err;
  // The first at 4.5 s.
  expect_within(end.err, {"[0] sherd: rank 0 has waited ", "not there: rank 1 (", "frozen: no sign of life for ",
                          "[0] sherd: CommError: rank 1 (process ", ") is frozen: no sign of life for 6",
                          " s (limit 6 s) while rank 0 waits for it in ",
                          "sherd run: rank 0 exited with status 1; the end of what it wrote to stderr:"});
}

TEST_F(Frozen, ARankThatIsStoppedBeforeItMeetsTheOthersIsNamed) {
  for (const auto& [rank, named] : {std::pair(1, "ranks 1 have"), std::pair(0, "rank 0 has")}) {
    const auto start = FrozenClock::now();
    const ProgramEnd end = train_by_script(
        2, fmt::format("[ $SHERD_RANK = {} ] && kill -STOP $$; exec \"$0\" train \"$1\" --frozen-after 1", rank));
    EXPECT_EQ(end.status, 1);
    expect_within(
        end.err, {fmt::format("CommError: shm_group world: {} not come within 1 s, and given no sign of life", named)});
    EXPECT_LT(FrozenClock::now() - start, 1s + kEnd + kStart);
  }
}

TEST_F(Frozen, AKillDuringTheStartEndsAllRanksSoon) {
  // Before it meets the others, and when it has.
  for (const char* script :
       {"[ $SHERD_RANK = 1 ] && kill -KILL $$; exec \"$0\" train \"$1\"",
        "[ $SHERD_RANK = 2 ] && exec sleep 1000\n"
        "[ $SHERD_RANK = 1 ] && { (until grep -q memfd:sherd /proc/$$/maps; do :; done; kill -KILL $$) & }\n"
        "exec \"$0\" train \"$1\""}) {
    const auto start = FrozenClock::now();
    const ProgramEnd end = train_by_script(3, script);
    EXPECT_EQ(end.status, 128 + SIGKILL) << end.err;
    expect_within(end.err, {"rank 1 was killed by SIGKILL (Killed); stopping the other ranks"});
    EXPECT_LT(FrozenClock::now() - start, kEnd + kStart);
  }
}

}  // namespace
}  // namespace sherd::testing
