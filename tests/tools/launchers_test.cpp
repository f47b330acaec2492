// `sherd train` under mpirun as it is: the ranks find each other and train as under `sherd run`. Skipped, saying so,
// where it is not installed or does not start. torchrun: tests/python.
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/tools/program_test.h"

namespace sherd::testing {
namespace {

class Launchers : public ProgramTest {
 protected:
  /// Under `launcher`, two ranks train what they would under `sherd run`.
  void expect_trains(const Words& launcher) const {
    ASSERT_EQ(train(2, {"--metrics", dir_ / "expected.jsonl"}).status, 0);
    Words command = launcher;
    command.insert(command.end(), {SHERD_PROGRAM, "train", config_file_, "--metrics", dir_ / "metrics.jsonl"});
    const ProgramEnd end = run_program(command, {}, kSlow);
    EXPECT_EQ(end.status, 0) << end.err;
    expect_within(end.out, {"collectives of the last step"});
    const auto losses = losses_of("metrics.jsonl");
    ASSERT_EQ(losses.size(), 5u);
    EXPECT_EQ(losses, losses_of("expected.jsonl"));
  }
  /// A mistake that every rank sees ends the run, with the message.
  void expect_fails(const Words& launcher) const {
    Words command = launcher;
    command.insert(command.end(), {SHERD_PROGRAM, "train", config_file_, "--batch", "5"});
    const ProgramEnd end = run_program(command, {}, kSlow);
    EXPECT_NE(end.status, 0);
    EXPECT_FALSE(end.timed_out);
    expect_within(end.err, {"batch = 5", "2 ranks"});
  }
  std::vector<double> losses_of(std::string_view file) const {
    std::vector<double> losses;
    std::istringstream text(dir_.read(file));
    for (std::string line; std::getline(text, line);)
      if (const auto object = nlohmann::json::parse(line); object.contains("loss"))
        losses.push_back(object["loss"].get<double>());
    return losses;
  }
  /// Whether the launcher exists and can start anything at all.
  static bool starts(Words launcher) {
    launcher.emplace_back("/bin/true");
    return run_program(launcher, {}, kSlow).status == 0;
  }
  static constexpr std::chrono::seconds kSlow{120};
};

TEST_F(Launchers, MpirunStartsRanks) {
  Words launcher{"mpirun", "-n", "2", "--oversubscribe"};
  if (::geteuid() == 0) launcher.emplace_back("--allow-run-as-root");
  if (!starts(launcher)) GTEST_SKIP() << "no mpirun on PATH that starts two processes";
  expect_trains(launcher);
  expect_fails(launcher);
}

}  // namespace
}  // namespace sherd::testing
