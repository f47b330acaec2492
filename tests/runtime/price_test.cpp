// Prices as data. Oracles: the formula by hand, and texts that read back.
#include "runtime/exec/price.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "tests/support/expect_error.h"
#include "tests/support/source_path.h"

namespace sherd::testing {
namespace {

TEST(Price, ALinkIsPricedByWhatMoves) {
  const LinkPrice link{.call_seconds = 1, .peer_seconds = 0.25, .bytes_per_second = 1024};
  EXPECT_DOUBLE_EQ(link.seconds(Movement::gather, 2, 4096), 1 + 0.25 + 2);
  EXPECT_DOUBLE_EQ(link.seconds(Movement::scatter, 4, 4096), 1 + 0.75 + 3);
  EXPECT_DOUBLE_EQ(link.seconds(Movement::reduce_all, 4, 4096), 1 + 2 * (0.75 + 3)) << "round twice";
  EXPECT_DOUBLE_EQ(link.seconds(Movement::all_to_all, 2, 4096), 1 + 0.25 + 4) << "packed and unpacked";
  EXPECT_DOUBLE_EQ(link.seconds(Movement::gather, 1, 4096), 1) << "nothing moves on one rank";
}

TEST(Price, TextReadsBackToTheBit) {
  Prices prices;
  prices.rows = {{"matmul f32[2,3] -> f32[2,2]", 0.1 + 0.2}, {"call", 1e-300}, {"add  two blanks", 0}};
  prices.links = {{link_name(Movement::gather, "dp#1"), {1.0 / 3, 0, 4e9}}, {"reduce_all world", {}}};
  EXPECT_EQ(parse_prices(prices.print()), prices);
  EXPECT_EQ(parse_prices(""), Prices());
  EXPECT_EQ(link_name(Movement::all_to_all, "tp"), "all_to_all tp");
}

TEST(Price, ATextThatIsNoneIsRefusedByItsLine) {
  for (const char* text : {"row 1", "row x add", "row -1 add", "row nan add", "way 1 2 3 dp", "link 1 2 dp", "\n"})
    expect_error([&] { parse_prices(std::string("row 1 add\n") + text + "\n"); }, {"line 2 of the prices", "expected"});
  expect_error([] { parse_prices("link 1 0 0 gather dp\n"); }, {"line 1", "0 bytes/s"});
  expect_error([] { parse_prices("link -1 0 1 gather dp\n"); }, {"line 1", "-1 s"});
  expect_error([] { parse_prices("row 1 add\nrow 2 add\n"); }, {"line 2", "\"add\"", "second price"});
}

TEST(Price, BytesOnTheWireAreThoseOfARing) {
  EXPECT_DOUBLE_EQ(wire_bytes(Movement::gather, 4, 4096), 3072);
  EXPECT_DOUBLE_EQ(wire_bytes(Movement::reduce_all, 4, 4096), 2 * 3072) << "round twice";
  EXPECT_DOUBLE_EQ(wire_bytes(Movement::all_to_all, 2, 4096), 2048);
  EXPECT_DOUBLE_EQ(wire_bytes(Movement::scatter, 1, 4096), 0);
}

// Shares of a ring, and bytes over a bandwidth, are divided in one file.
TEST(Price, OneFileHasTheFormulaOfLinks) {
  const std::regex share(R"(bytes\w*\)? ?\*.*- 1\) ?/|/ ?[\w.>()-]*bytes_per_second)");
  std::vector<std::string> found;
  for (const char* folder : {"runtime", "dtensor", "compile", "nn", "tools"})
    for (const auto& file : std::filesystem::recursive_directory_iterator(source_path(folder))) {
      const std::string end = file.path().extension();
      if (end != ".cpp" && end != ".h" && end != ".cu") continue;
      std::ifstream in(file.path());
      for (std::string line; std::getline(in, line);)
        if (std::regex_search(line.substr(0, line.find("//")), share)) found.push_back(file.path().filename());
    }
  EXPECT_EQ(found, (std::vector<std::string>{"price.cpp", "price.cpp"}));
}

}  // namespace
}  // namespace sherd::testing
