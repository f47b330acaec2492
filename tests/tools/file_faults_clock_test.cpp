// Runs on a host whose wall clock is an hour further off at each look at it, forwards or backwards. Oracle: the same
// run under a clock that goes as it should.
#include <nlohmann/json.hpp>

#include "nn/checkpoint/format/saves.h"
#include "tests/tools/program_test.h"

namespace sherd::testing {
namespace {

class WallClock : public ProgramTest {
 protected:
  static Words jumping(const std::string& seconds) {
    return {"LD_PRELOAD=" SHERD_FILE_FAULTS, "FILE_FAULT_CLOCK=" + seconds};
  }
  /// Two ranks.
  ProgramEnd train(const std::string& folder, const Words& flags, const Words& environment = {}) const {
    Words words{"run", "-n", "2", "--", SHERD_PROGRAM, "train", config_file_, "--save", folder, "--save-every", "0"};
    words.insert(words.end(), flags.begin(), flags.end());
    return sherd(words, environment);
  }
  static std::vector<std::int64_t> steps_in(const std::string& folder) {
    std::vector<std::int64_t> steps;
    for (const ckpt::SavePlace& save : ckpt::list_saves(folder)) steps.push_back(save.step);
    return steps;
  }
  using Steps = std::vector<std::int64_t>;
};

TEST_F(WallClock, ItsJumpsChangeNeitherTheRunNorWhenItSaves) {
  ASSERT_EQ(train(dir_ / "quiet", {"--steps", "5"}).status, kDone);
  for (const std::string hour : {"3600", "-3600"}) {
    const std::string folder = dir_ / ("hit" + hour);
    const ProgramEnd first = train(folder, {"--steps", "3", "--save-minutes", "30"}, jumping(hour));
    ASSERT_EQ(first.status, kDone) << first.err;
    EXPECT_EQ(steps_in(folder), Steps{3}) << "half an hour has not passed";
    const ProgramEnd rest =
        train(folder, {"--steps", "5", "--resume", folder, "--save-minutes", "0.000000001"}, jumping(hour));
    ASSERT_EQ(rest.status, kDone) << rest.err;
    EXPECT_EQ(steps_in(folder), (Steps{5, 4, 3})) << "each step takes longer";
    const ProgramEnd difference = sherd({"ckpt", "diff", dir_ / "quiet", folder});
    EXPECT_EQ(difference.status, 0) << difference.out << difference.err;
  }
}

TEST_F(WallClock, OnlyTheAgeOfSavesIsByIt) {
  const std::string folder = dir_ / "saves";
  ASSERT_EQ(train(folder, {"--steps", "1"}).status, kDone);
  const auto age_by = [&](const std::string& jump) {
    const ProgramEnd ls = sherd({"ckpt", "ls", folder, "--json", "true"}, jumping(jump));
    return nlohmann::json::parse(ls.out).at(0).at("age_seconds").get<std::int64_t>();
  };
  EXPECT_GE(age_by("3600"), 3600);
  EXPECT_EQ(age_by("-3600"), 0) << "of the future";
}

}  // namespace
}  // namespace sherd::testing
