// Lines that differ. Oracle: a difference, applied to the text before, gives the one after.
#include <gtest/gtest.h>

#include <sstream>

#include "compile/ir/text/line_diff.h"
#include "tests/compile/corruptions.h"

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

}  // namespace
}  // namespace sherd::testing
