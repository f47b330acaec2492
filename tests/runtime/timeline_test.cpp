// What ghosts write down of their programs. Oracles: timelines written by hand, and texts that read back.
#include "runtime/exec/timeline.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/comm/group/ghost_group.h"
#include "runtime/exec/timeline_recording.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

// A sum of four ranks beside a product, which reads nothing of it.
Timeline recorded_sum(int rank) {
  const RankScope scope("", {.ghost = true});
  const auto world = make_ghost_group(rank, 4);
  const int pair[] = {rank % 2, rank % 2 + 2};
  const auto group = world->subgroup(pair, "dp");
  RankContext& context = RankContext::current();
  const Tensor x = Tensor::empty({8, 4}, DType::f32), w = Tensor::empty({4, 2}, DType::f32);
  Timeline timeline;
  const TimelineRecording recording(timeline, {rank, 4});
  context.module_path = context.intern("mlp");
  const Tensor sum = all_reduce(x, *group), product = matmul(x, w), out = relu(sum);
  return timeline;
}

TEST(Timeline, AGhostWritesWhatItsProgramDoes) {
  EXPECT_EQ(recorded_sum(3).print(),
            "sherd timeline 1\n"
            "rank 3 of 4\n"
            "base 0 0 0 0 160 0 0\n"
            "group dp#1 dp 2x2\n"
            "at mlp forward\n"
            "memory activations 128\n"
            "call all_reduce issue f32 0 0 f32[8,4]\n"
            "item 0 collective all_reduce \"\" dp#1 reduce_all 128 after - uses w0,r1\n"
            "memory activations 64\n"
            "call matmul contraction f32 128 224 \"f32[8,4] f32[4,2]\"\n"
            "wait 0 touch\n"
            "memory activations 128\n"
            "call relu pointwise f32 32 256 f32[8,4]\n"
            "memory activations -320\n");
}

TEST(Timeline, IsEqualOnAllRanksButForTheirNumber) {
  const Timeline a = recorded_sum(0), b = recorded_sum(1);
  EXPECT_EQ(a.hash(), b.hash());
  EXPECT_TRUE(a.plays_as(b));
  EXPECT_NE(a.print(), b.print());
  Timeline other = a;
  other.calls[1].work.flops = 1;
  EXPECT_EQ(other.hash(), a.hash()) << "may be local";
  EXPECT_FALSE(other.plays_as(a));
  other.calls[1].op = other.intern("einsum");
  EXPECT_NE(other.hash(), a.hash());
}

TEST(Timeline, ReadsBack) {
  const Timeline a = recorded_sum(2), b = Timeline::parse(a.print());
  EXPECT_EQ(b.print(), a.print());
  EXPECT_EQ(b.hash(), a.hash());
  Timeline moved = b;
  std::swap(moved.entries[3], moved.entries[4]);  // memory of the product, and the product itself
  EXPECT_EQ(Timeline::parse(moved.print()).print(), moved.print()) << "another order is a timeline too";
}

TEST(Timeline, AFullQueueIsWaitedForBeforeTheNextItem) {
  const RankScope scope("", {.ghost = true});
  Queue& queue = RankContext::current().queue("gather");
  Timeline timeline;
  const TimelineRecording recording(timeline, {});
  for (const char* unit : {"b0", "b1"})
    queue.submit({.name = "unshard", .subject = unit, .bytes = 7, .max_in_flight = 1});
  queue.drain();
  const std::string text = timeline.print();
  EXPECT_EQ(text.substr(text.find("item")),
            "item 0 gather unshard b0 - gather 7 after - uses -\n"
            "wait 0 throttle\n"
            "item 1 gather unshard b1 - gather 7 after - uses -\n"
            "wait 1 touch\n");
}

TEST(Timeline, IsOfAGhostAndOneAtATime) {
  Timeline timeline;
  {
    const RankScope scope;
    expect_error([&] { TimelineRecording(timeline, {}); }, {"a rank that computes writes no timeline", "ghost"});
  }
  const RankScope scope("", {.ghost = true});
  const TimelineRecording recording(timeline, {});
  Timeline second;
  expect_error([&] { TimelineRecording(second, {}); }, {"being written already"});
}

TEST(Timeline, WrongTextsAreRefusedByLineAndColumn) {
  const std::string head = "sherd timeline 1\nrank 0 of 4\nbase 0 0 0 0 0 0 0\n";
  const auto refuse = [](const std::string& text, std::initializer_list<std::string_view> parts) {
    expect_error([&] { Timeline::parse(text, "f"); }, {"f: line ", ", column "});
    expect_error([&] { Timeline::parse(text, "f"); }, parts);
  };
  refuse("", {"line 0", "first line"});
  refuse("sherd timeline 2\n", {"line 1", "\"sherd timeline 1\""});
  refuse("sherd timeline 1\nrank 4 of 4\n", {"line 2, column 11", "number of ranks", "from 5"});
  refuse(head + "calls x\n", {"line 4, column 1", "\"calls\" is no line"});
  refuse(head + "call linear contraction f32 1\n", {"line 4, column 30", "the line ends where bytes"});
  refuse(head + "call linear contracting f32 1 1 x\n", {"column 13", "contracting", "contraction"});
  refuse(head + "call linear contraction f32 nan 1 x\n", {"column 29", "FLOPs"});
  refuse(head + "call linear contraction f32 1 1e19 x\n", {"column 31", "bytes"});
  refuse(head + "call linear contraction f32 1 1 x y\n", {"column 35", "end of the line"});
  refuse(head + "call \"linear contraction f32 1 1 x\n", {"column 6", "no closing quote"});
  refuse(head + "wait 0 touch\n", {"column 6", "no item 0 before"});
  refuse(head + "item 1 gather unshard b - gather 1 after - uses -\n", {"no item 0"});
  refuse(head + "item 99 gather unshard b - gather 1 after - uses -\n", {"column 6", "from 0 to"});
  refuse(head + "item 0 gather unshard b dp gather 1 after - uses -\n", {"no group \"dp\""});
  refuse(head + "item 0 gather unshard b - gathers 1 after - uses -\n", {"\"gathers\" is no movement"});
  refuse(head + "item 0 gather unshard b - gather 1 after 0 uses -\n", {"no item 0 before"});
  refuse(head + "item 0 gather unshard b - gather 1 after - uses x1\n", {"rN or wN"});
  refuse(head + "group dp#1 dp 3x1\n", {"3x1", "4 ranks"});
  refuse(head + "memory pages 1\n", {"\"pages\" is no category"});
  refuse(head + "memory gradients 1e3\n", {"whole number"});
}

// A timeline with some bytes changed, cut or doubled: read, or an Error with its place.
TEST(Timeline, HostileTextsAreErrorsWithTheirPlace) {
  const std::string good = recorded_sum(0).print();
  std::mt19937 random(36);
  int num_read = 0;
  for (int i = 0; i < 10000; ++i) {
    std::string text = good;
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0 && !text.empty(); --changes) {
      const std::size_t at = random() % text.size();
      const unsigned kind = random() % 4;
      if (kind == 0) text[at] = static_cast<char>(random() % 256);
      else if (kind == 1) text.erase(at, 1 + random() % 20);
      else if (kind == 2) text.insert(at, text.substr(random() % text.size(), 1 + random() % 30));
      else text.resize(at + 1);
    }
    try {
      const Timeline read = Timeline::parse(text, "f");
      EXPECT_EQ(Timeline::parse(read.print()).print(), read.print());
      ++num_read;
    } catch (const Error& error) { EXPECT_EQ(error.message().rfind("f: line ", 0), 0u) << error.message(); }
  }
  EXPECT_GT(num_read, 100);
}

}  // namespace
}  // namespace sherd::testing
