// A shaped link. Oracle: the formula steps x latency + bytes x (n-1)/n / bandwidth, worked out by hand.
#include "runtime/comm/group/link.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "runtime/tensor/error.h"
#include "tests/comm/backends.h"

namespace sherd::testing {
namespace {

using comm::CommOp;
using comm::Link;
using std::chrono::milliseconds;

TEST(Link, OneCollectiveTakesStepsAndBytes) {
  const Link link({.bytes_per_second = 1e6, .seconds = 0.01}, 4);
  EXPECT_DOUBLE_EQ(link.seconds(CommOp::all_gather, 400'000), 3 * 0.01 + 0.3);
  EXPECT_DOUBLE_EQ(link.seconds(CommOp::reduce_scatter, 400'000), 3 * 0.01 + 0.3);
  EXPECT_DOUBLE_EQ(link.seconds(CommOp::all_reduce, 400'000), 6 * 0.01 + 0.6);
  EXPECT_DOUBLE_EQ(link.seconds(CommOp::broadcast, 400'000), 3 * 0.01 + 0.3);
  EXPECT_DOUBLE_EQ(link.seconds(CommOp::barrier, 0), 3 * 0.01);
  EXPECT_EQ(Link({.bytes_per_second = 1, .seconds = 1}, 1).seconds(CommOp::all_gather, 100), 0);
}

// Times are invented, so nobody sleeps.
TEST(Link, CollectivesFollowEachOther) {
  Link link({.bytes_per_second = 1e6, .seconds = 0}, 2);
  const Link::Clock::time_point start{};
  const auto pass = [&](int met_at_ms, int takes_ms) {
    const auto end = link.pass(start + milliseconds(met_at_ms), CommOp::all_gather, takes_ms * 2000);
    return std::chrono::round<milliseconds>(end - start).count();
  };
  EXPECT_EQ(pass(5, 10), 15);
  EXPECT_EQ(pass(7, 10), 25) << "the link was taken until 15";
  EXPECT_EQ(pass(40, 10), 50) << "the link was free";
  EXPECT_EQ(pass(40, 0), 50);
}

TEST(Link, ImpossibleLinksAreRefused) {
  for (const LinkShape& shape :
       {LinkShape{0, 0}, LinkShape{-1, 0}, LinkShape{1, -1}, LinkShape{1, NAN}, LinkShape{INFINITY, 0}})
    EXPECT_THROW(Link(shape, 2), Error);
}

class ShapedGroups : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Groups, ShapedGroups, ::testing::ValuesIn(all_backends()),
                         [](const auto& param) { return param.param.name; });

// 3 ranks, 90 kB at 10 MB/s: 2 x 1 ms + 6 ms. A lower bound cannot fail by chance.
TEST_P(ShapedGroups, ACollectiveTakesAsLongAsTheLinkSays) {
  const auto messages = GetParam().run(3, [](HostGroup& group) {
    group.shape_link({.bytes_per_second = 10e6, .seconds = 1e-3});
    std::vector<float> data(22'500);
    const std::vector<std::int64_t> counts(3, 7'500);
    const CollectivePart part = in_place(data.data(), DType::f32, counts);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 2; ++i) group.lane(i).all_gather({part});
    EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(16)) << "lanes share the link";
    EXPECT_GE(group.counts().seconds, 0.016);
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "");
}

// The link would take an hour.
TEST_P(ShapedGroups, AbortEndsTheWaitForTheLink) {
  const auto messages = GetParam().run(2, [](HostGroup& group) {
    group.shape_link({.bytes_per_second = 1, .seconds = 3600});
    std::thread aborter;
    if (group.rank() == 0) aborter = std::thread([&] { group.abort("enough"); });
    EXPECT_THROW(group.barrier(), CommError);
    if (aborter.joinable()) aborter.join();
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "");
}

}  // namespace
}  // namespace sherd::testing
