// The secret of a job, which opens its store, stays in the environment of its ranks: it is in no file that a run
// leaves, in nothing that it prints and on no command line. Oracle: a rank's script, which writes the secret down.
#include <signal.h>

#include <filesystem>

#include "tests/tools/program_test.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

class Secret : public ProgramTest {};

TEST_F(Secret, IsInNoFileInNoOutputAndOnNoCommandLine) {
  fs::create_directories(dir_ / "left");
  // Rank 1 dies when it has looked at the command lines of all processes.
  const std::string script =
      "cd " + dir_.path() +
      "; printf %s \"$SHERD_SECRET\" > secret.$SHERD_RANK\n"
      "[ $SHERD_RANK = 1 ] && { (until grep -q '\"step\":6,' left/metrics.jsonl; do :; done 2> /dev/null\n"
      "  cat /proc/[0-9]*/cmdline > left/cmdlines 2> /dev/null; kill -KILL $$) & }\n"
      "exec \"$0\" train \"$1\" --steps 1000000 --metrics left/metrics.jsonl --trace left/trace.json --trace-steps 2:3 "
      "--save left/saves --save-every 2";
  const ProgramEnd end = train_by_script(2, script);
  EXPECT_EQ(end.status, 128 + SIGKILL);
  expect_within(end.err, {"rank 1 was killed by SIGKILL", "CommError"});

  const std::string secret = dir_.read("secret.0");
  ASSERT_GE(secret.size(), 32u);
  EXPECT_EQ(dir_.read("secret.1"), secret);
  EXPECT_EQ((end.out + end.err).find(secret), std::string::npos);
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(dir_ / "left")) {
    if (!entry.is_regular_file()) continue;
    ++files;
    const std::string name = fs::relative(entry.path(), dir_.path()).string();
    EXPECT_EQ(dir_.read(name).find(secret), std::string::npos) << name;
  }
  EXPECT_GE(files, 3 + 3) << "metrics, a trace, command lines, and a save of two ranks";
  expect_within(dir_.read("left/cmdlines"), {std::string("train\0", 6) + config_file_});
  expect_within(dir_.read("left/trace.json"), {"traceEvents"});
}

}  // namespace
}  // namespace sherd::testing
