// A recorded step as files for people: each pass, and what it has changed. Oracles: the text reads back as the program;
// a difference, applied to the text before, gives the one after.
#include "compile/run/dump.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "compile/ir/text/line_diff.h"
#include "compile/ir/text/parse.h"
#include "compile/ir/text/print.h"
#include "tests/compile/corruptions.h"
#include "tests/compile/recorded_step.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// As `patch` does: what stands in a hunk must be there, at its place.
std::string patched(const std::string& before, const std::string& diff) {
  const std::vector<std::string> old = lines_of(before);
  std::string after;
  std::size_t at = 0;
  const auto keep = [&](std::size_t until) {
    for (; at < until; ++at) after += old.at(at) + "\n";
  };
  for (const std::string& line : lines_of(diff)) {
    const std::string rest = line.substr(1);
    if (line[0] == '@') {
      std::size_t first = 0, count = 0;
      std::istringstream(line.substr(4)) >> first;
      std::istringstream(line.substr(line.find(',') + 1)) >> count;
      keep(count > 0 ? first - 1 : first);
    } else if (line[0] == '+') {
      after += rest + "\n";
    } else {
      EXPECT_EQ(old.at(at), rest);
      if (line[0] == ' ') keep(at + 1);
      else ++at;
    }
  }
  keep(old.size());
  return after;
}

TEST(LineDiff, ShowsWhatHasChangedAndThreeLinesAroundIt) {
  EXPECT_EQ(ir::line_diff("a\nb\n", "a\nb\n"), "");
  EXPECT_EQ(ir::line_diff("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\nV\n6\n7\n8\n9\n"),
            "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+V\n 6\n 7\n 8\n");
  EXPECT_EQ(ir::line_diff("", "a\n"), "@@ -0,0 +1,1 @@\n+a\n");
  EXPECT_EQ(ir::line_diff("a\nb\n", "b\n"), "@@ -1,2 +1,1 @@\n-a\n b\n");
}

TEST(LineDiff, LeadsFromAnyTextToAnyOther) {
  Dice dice(20261201);
  for (int drawn = 0; drawn < 500; ++drawn) {
    const auto draw = [&] {
      std::string text;
      for (std::size_t i = dice.below(30); i > 0; --i) text += std::to_string(dice.below(20)) + "\n";
      return text;
    };
    const std::string before = draw(), after = draw(), diff = ir::line_diff(before, after);
    ASSERT_EQ(patched(before, diff), after) << "step " << drawn << "\n" << before << "\n" << diff;
    EXPECT_EQ(diff.empty(), before == after);
  }
}

TEST(DumpGraph, WritesEachPassAndWhatItHasChanged) {
  const std::vector<Pass> passes = standard_passes();
  for_each_step([&](const StepCase& c, const RecordedStep& step) {
    const TempDir dir;
    const std::string folder = step.group().rank() == 0 ? dir / "made/graph" : "";
    const FitOptions options{.budget = c.ranks == 1 ? "99.8%" : "none", .passes = passes, .group = &step.group()};
    const Fitted fitted = dump_graph(step.recorded(), options, folder);
    EXPECT_EQ(fitted.program, fit_program(step.recorded(), options).program);
    if (folder.empty()) return;
    std::string before = dir.read("made/graph/00-recorded.txt");
    EXPECT_EQ(before, text(step.recorded()));
    for (std::size_t i = 0; i < passes.size(); ++i) {
      const std::string stem = fmt::format("made/graph/{:02}-{}", i + 1, passes[i].name), now = dir.read(stem + ".txt");
      EXPECT_EQ(text(parse(now)), now) << stem;
      EXPECT_EQ(patched(before, dir.read(stem + ".diff")), now) << stem;
      before = now;
    }
    EXPECT_EQ(before, text(fitted.program));
    const auto files = std::distance(std::filesystem::directory_iterator(folder), {});
    EXPECT_EQ(files, 1 + 2 * static_cast<std::ptrdiff_t>(passes.size()));
  });
}

TEST(DumpGraph, AFileThatCannotBeWrittenIsNamedOnAllRanks) {
  const std::vector<Pass> passes = standard_passes();
  for_each_step([&](const StepCase&, const RecordedStep& step) {
    const TempDir dir;
    const std::string folder = step.group().rank() == 0 ? dir.write("text", "") + "/graph" : "";
    expect_error([&] { dump_graph(step.recorded(), {.passes = passes, .group = &step.group()}, folder); },
                 {"cannot make the folder", "text/graph", "Not a directory"});
    std::filesystem::create_directories(dir / "full/01-ssa.txt");
    expect_error(
        [&] {
          dump_graph(step.recorded(), {.passes = passes, .group = &step.group()},
                     step.group().rank() == 0 ? dir / "full" : "");
        },
        {"cannot write", "full/01-ssa.txt", "Is a directory"});
  });
}

}  // namespace
}  // namespace sherd::testing
