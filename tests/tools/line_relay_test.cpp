// Output of ranks on its way: whole lines with prefixes, and a queue that ends pieces at line ends.
#include "tools/launch/line_relay.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <string>

namespace sherd {

namespace {

TEST(RankLines, PiecesBecomeWholeLines) {
  RankLines lines("[1] ", false, 0);
  EXPECT_EQ(lines.feed("ab"), "");
  EXPECT_EQ(lines.feed("c\n\nd"), "[1] abc\n[1] \n");
  EXPECT_EQ(lines.feed("\r"), "");
  EXPECT_EQ(lines.feed("\ne"), "[1] d\n");
  EXPECT_EQ(lines.finish(), "[1] e\n");
  EXPECT_EQ(lines.finish(), "");
}

TEST(RankLines, AFileSeesTheLastStateOfAProgressLine) {
  RankLines lines("[0] ", false, 0);
  EXPECT_EQ(lines.feed("\rstep 1\rstep 2"), "");
  EXPECT_EQ(lines.feed("\rstep 3\ndone\n"), "[0] step 3\n[0] done\n");
  EXPECT_EQ(lines.feed("10 %\r20 %\r"), "");
  EXPECT_EQ(lines.finish(), "[0] 20 %\n");
}

TEST(RankLines, ATerminalSeesEveryStateInPlace) {
  const std::string erase = "\r\x1b[K";
  RankLines lines("[0] ", true, 0);
  EXPECT_EQ(lines.feed("\rstep 1"), erase + "[0] step 1");
  EXPECT_EQ(lines.feed("\rstep 2\r"), erase + "[0] step 2");
  EXPECT_EQ(lines.feed("step 3\nplain"), erase + "[0] step 3\n");
  EXPECT_EQ(lines.feed("\n"), erase + "[0] plain\n");
}

TEST(RankLines, AnEndlessLineIsCut) {
  RankLines lines("[0] ", false, 1);
  EXPECT_TRUE(lines.feed(std::string((1 << 20) + 10, 'x')) == "[0] " + std::string(1 << 20, 'x') + "\n");
  EXPECT_EQ(lines.finish(), "[0] xxxxxxxxxx\n");
}

TEST(RankLines, TheTailHasTheLastLinesWithoutPrefix) {
  RankLines lines("[0] ", false, 2);
  lines.feed("a\nb\n1\r2\r\nc");
  EXPECT_EQ(lines.tail(), (std::deque<std::string>{"b", "2"}));
  lines.finish();
  EXPECT_EQ(lines.tail(), (std::deque<std::string>{"2", "c"}));
}

TEST(OutputQueue, KeepsOrderAndEndsPiecesAtLineEnds) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  OutputQueue queue(ends[1]);
  std::string sent, got;
  for (int i = 0; i < 5000; ++i) sent += fmt::format("line {}\n", i);
  queue.append(sent);
  char buffer[8192];
  while (!queue.is_empty()) {
    queue.write_some();
    EXPECT_FALSE(queue.is_within_line());
    const ssize_t size = ::read(ends[0], buffer, sizeof buffer);
    ASSERT_GT(size, 0);
    got.append(buffer, static_cast<std::size_t>(size));
  }
  EXPECT_EQ(got, sent);
  queue.append(std::string(10'000, 'x'));
  queue.write_some();
  EXPECT_TRUE(queue.is_within_line());
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace sherd
