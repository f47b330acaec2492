// A restart of a job on a disk that for a moment gives none of its saves. Oracle: the same run without any of that.
#include <cerrno>

#include "tests/tools/program_test.h"

namespace sherd::testing {
namespace {

class FileFaultsRestart : public ProgramTest {};

TEST_F(FileFaultsRestart, SavesThatCannotBeReadAreNotReplaced) {
  const auto train = [](const std::string& folder, int steps) {
    return fmt::format("\"$0\" train \"$1\" --steps {} --save {} --save-every 1 --overwrite true", steps, folder);
  };
  const std::string faults = fmt::format(
      "export LD_PRELOAD={} FILE_FAULT_UNDER={} FILE_FAULT_CALL=read FILE_FAULT_AT=1 FILE_FAULT_ERROR={} "
      "FILE_FAULT_LASTS=1",
      SHERD_FILE_FAULTS, dir_ / "saves", ESTALE);
  const std::string script = "cd " + dir_.path() + "\n[ $SHERD_RESTART = 0 ] && { " + train("quiet", 6) + "; " +
                             train("saves", 3) + "; exit 7; }\n[ $SHERD_RESTART = 1 ] && " + faults +
                             "\n[ $SHERD_RESTART = 2 ] && ls saves > found\nexec " + train("saves", 6);
  const ProgramEnd end = sherd({"run", "-n", "1", "--restarts", "9", "--backoff", "0", "--", "/bin/sh", "-c", script,
                                SHERD_PROGRAM, config_file_});
  ASSERT_EQ(end.status, kDone) << end.err;
  expect_within(end.err, {"no save of this job can be read", "Stale file handle", "done, after 2 restarts"});
  expect_within(dir_.read("found"), {"step-000001", "step-000002", "step-000003"});
  const ProgramEnd difference = sherd({"ckpt", "diff", dir_ / "quiet", dir_ / "saves"});
  EXPECT_EQ(difference.status, 0) << difference.out << difference.err;
}

}  // namespace
}  // namespace sherd::testing
