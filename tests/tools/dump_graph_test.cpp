// `sherd train --dump-graph` as a user sees it. Oracles: an XML parser; footprints of programs that the texts are.
#include <cmath>
#include <filesystem>
#include <regex>

#include "compile/ir/text/parse.h"
#include "compile/run/footprint.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/group/group_names.h"
#include "tests/tools/program_test.h"
#include "tools/table/graph_pictures.h"

namespace sherd::testing {

using namespace train;

namespace {

class DumpGraph : public ProgramTest {
 protected:
  ProgramEnd dump(int ranks, Words words) const {
    words.insert(words.begin(), {"--compile", "--dump-graph", dir_ / "a/graph"});
    return train(ranks, words);
  }
  std::string file(const std::string& name) const { return dir_.read("a/graph/" + name); }

  // Elements open and close, attributes are quoted, and nothing else stands between tags but text.
  static void expect_xml(const std::string& svg) {
    static const std::regex tag("<(/?)([a-z]+)((?: [a-zA-Z0-9-]+=\"[^\"<>]*\")*) ?(/?)>");
    std::vector<std::string> open;
    std::size_t end = 0;
    for (std::sregex_iterator it(svg.begin(), svg.end(), tag), last; it != last; ++it) {
      const std::string between = svg.substr(end, static_cast<std::size_t>(it->position()) - end);
      EXPECT_EQ(between.find_first_of("<>"), std::string::npos) << between;
      end = static_cast<std::size_t>(it->position() + it->length());
      if ((*it)[1].length() > 0) {
        ASSERT_FALSE(open.empty());
        EXPECT_EQ(open.back(), (*it)[2].str());
        open.pop_back();
      } else if ((*it)[4].length() == 0) {
        open.push_back((*it)[2].str());
      }
    }
    EXPECT_TRUE(open.empty());
    EXPECT_TRUE(svg.starts_with("<svg ") && svg.substr(end) == "\n");
  }
};

// Bytes in order of "peak N MB (BYTES bytes)".
std::vector<std::int64_t> bytes_after(const std::string& text, const std::string& before) {
  std::vector<std::int64_t> bytes;
  const std::regex number(before + "[^(<]*\\((\\d+) bytes\\)");
  for (std::sregex_iterator it(text.begin(), text.end(), number), last; it != last; ++it)
    bytes.push_back(std::stoll((*it)[1]));
  return bytes;
}

TEST_F(DumpGraph, PicturesHaveTheNumbersOfThePrograms) {
  const ProgramEnd end = dump(1, {"--memory-budget", "85%", "--steps", "2"});
  ASSERT_EQ(end.status, 0) << end.err;
  const std::string memory = file("memory.svg"), curve = file("budget.svg");
  expect_xml(memory);
  expect_xml(curve);
  const ir::Program fitted = ir::parse(file("07-place_waits.txt"));
  const ir::Footprint footprint = footprint_of(fitted);
  const std::vector<std::int64_t> peaks = bytes_after(memory, ">peak"), beside = bytes_after(memory, "beside");
  ASSERT_EQ(peaks.size(), 2u) << memory;
  const std::int64_t others = beside.empty() ? 0 : beside.back();
  EXPECT_EQ(peaks[1], footprint.peak + others);
  EXPECT_LT(peaks[1], peaks[0]);
  expect_within(memory, {describe(footprint.at_peak), fmt::format("node {}: ", footprint.node),
                         std::string(fitted.nodes[static_cast<std::size_t>(footprint.node)].op->name)});
  const std::vector<std::int64_t> budgets = bytes_after(memory, "budget");
  ASSERT_EQ(budgets.size(), 2u);
  EXPECT_GE(budgets[1], peaks[1]);
  const std::vector<std::int64_t> points = bytes_after(curve, "class=\"n\">[0-9]");
  ASSERT_EQ(points.size(), 10u) << curve;
  EXPECT_TRUE(std::ranges::is_sorted(points));
  EXPECT_LE(points[0], peaks[1]);
  EXPECT_EQ(bytes_after(curve, "the least that it can hold").back(), points[0]);
  EXPECT_EQ(bytes_after(curve, "this run").back(), peaks[1]);
}

// Where a text begins, in pixels down the picture.
double height_of(const std::string& svg, const std::string& text) {
  std::smatch found;
  const bool is_there = std::regex_search(svg, found, std::regex("y=\"([0-9.]+)\"[^>]*>" + text));
  EXPECT_TRUE(is_there) << text;
  return is_there ? std::stod(found[1]) : 0;
}

TEST(GraphPictures, LabelsOfABudgetsCurveLieOnNothing) {
  constexpr double kLineHeight = 11;
  const std::vector<BudgetPoint> curve{{1'000'000, 0.0015}, {1'100'000, 0.0013}, {2'000'000, 0.0011}};
  for (const BudgetPoint& run : {curve[0], BudgetPoint{1'010'000, 0.00149}}) {
    const std::string svg = table::budget_svg(curve, run);
    EXPECT_GE(std::abs(height_of(svg, "this run") - height_of(svg, "the least")), kLineHeight) << svg;
  }
  // The line comes from above on the left.
  const std::string svg = table::budget_svg(curve, curve[2]);
  std::smatch dot;
  ASSERT_TRUE(std::regex_search(svg, dot, std::regex("cy=\"([0-9.]+)\"[^>]*><title>this run")));
  EXPECT_GE(height_of(svg, "this run") - kLineHeight, std::stod(dot[1]));
}

TEST_F(DumpGraph, RanksDumpTheRecordingWithoutABudgetToo) {
  const ProgramEnd end = dump(2, {"--passes", "-dead_nodes", "--steps", "2", "--accumulate", "2"});
  ASSERT_EQ(end.status, 0) << end.err;
  expect_within(file("00-recorded.txt"), {"program 1", "gather_start"});
  expect_within(file("02-budget.txt"), {"program 1"});
  expect_within(file("03-place_eager.diff"), {"@@ -"});
  expect_xml(file("memory.svg"));
  expect_within(file("memory.svg"), {"gathered", "unsharded"});
  EXPECT_EQ(bytes_after(file("budget.svg"), "class=\"n\">[0-9]").size(), 10u);
}

TEST_F(DumpGraph, StepsAreTheSameWithAndWithoutIt) {
  const auto loss = [](const ProgramEnd& end) { return end.out.substr(0, end.out.find(';')); };
  const ProgramEnd plain = train(1, {"--compile", "--steps", "5"}), dumped = dump(1, {"--steps", "5"});
  EXPECT_EQ(loss(plain), loss(dumped)) << dumped.err;
}

TEST_F(DumpGraph, BadInput) {
  dir_.write("file", "text");
  for (const int ranks : {1, 2}) {
    const ProgramEnd end = train(ranks, {"--compile", "--dump-graph", dir_ / "file/graph"});
    EXPECT_EQ(end.status, kFailed);
    expect_within(end.err, {"cannot make the folder", "file/graph", "Not a directory"});
  }
  std::filesystem::create_directories(dir_ / "a/graph/memory.svg");
  const ProgramEnd end = dump(1, {});
  EXPECT_EQ(end.status, kFailed);
  expect_within(end.err, {"memory.svg", "Is a directory"});
}

}  // namespace
}  // namespace sherd::testing
