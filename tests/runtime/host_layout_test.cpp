// RankList on hosts. Oracles: groups listed by hand, and the bandwidths of 16 ranks on two hosts.
#include <gtest/gtest.h>

#include "runtime/exec/cluster.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using RankList = std::vector<int>;

TEST(RankGrid, IsFoundFromTheRanksOfAGroup) {
  EXPECT_EQ(RankGrid::of(RankList{3}).text(), "1");
  EXPECT_EQ(RankGrid::of(RankList{0, 1, 2, 3}).text(), "4x1");
  EXPECT_EQ(RankGrid::of(RankList{1, 9}).text(), "2x8");
  EXPECT_EQ(RankGrid::of(RankList{0, 1, 4, 5, 8, 9}).text(), "3x4,2x1");
  for (const char* text : {"1", "4x1", "2x8,4x1", "2x16,2x4,2x1"}) EXPECT_EQ(RankGrid::parse(text).text(), text);
  expect_error([] { RankGrid::of(RankList{0, 1, 3}); }, {"no "});
  expect_error([] { RankGrid::of(RankList{0, 1, 4, 6}); }, {"0,1,4,6"});
  for (const char* text : {"", "x", "2x", "2", "2x3,2x2", "1x1", "2x0", "-2x1", "2x1,", "9999999999x1"})
    expect_error([&] { RankGrid::parse(text); }, {text});
}

TEST(RankGrid, NumbersGroupsByTheirFirstRank) {
  const RankGrid grid = RankGrid::parse("2x8,2x1");  // of 16 ranks: {0,1,8,9}, {2,3,10,11}, ...
  EXPECT_EQ(grid.size(), 4);
  EXPECT_EQ(grid.first(11), 2);
  EXPECT_EQ(grid.members(11), (RankList{2, 3, 10, 11}));
  EXPECT_NO_THROW(grid.check_divides(32));
  expect_error([&] { grid.check_divides(24); }, {"2x8,2x1", "24 ranks"});
}

TEST(HostLayout, FlagsSayEachOther) {
  EXPECT_EQ(host_layout(16, {}, {}).text(), "1 host x 16 ranks");
  EXPECT_EQ(host_layout(16, 2, {}).text(), "2 hosts x 8 ranks");
  EXPECT_EQ(host_layout(16, {}, 4).text(), "4 hosts x 4 ranks");
  EXPECT_EQ(host_layout(16, 2, 8).host_of(9), 1);
  expect_error([] { host_layout(16, 3, {}); }, {"--hosts 3", "16 ranks"});
  expect_error([] { host_layout(16, {}, 5); }, {"--per-host 5", "16 ranks"});
  expect_error([] { host_layout(16, 2, 4); }, {"--hosts 2 x --per-host 4 are 8 ranks", "16"});
  expect_error([] { host_layout(16, 0, {}); }, {"--hosts is 0"});
  expect_error([] { host_layout(2, {}, 4); }, {"--per-host 4", "2 ranks"});
  expect_error([] { host_layout(16, 1 << 30, 1 << 30); }, {"--hosts"});
}

TEST(HostLayout, FabricsAreNamed) {
  EXPECT_EQ(parse_fabric_names("in=nvlink4,out=ib400x1").out, "ib400x1");
  EXPECT_EQ(parse_fabric_names("in=pcie5").in, "pcie5");
  for (const char* text : {"", "out=x", "nvlink4", "in=", "in=a,in=b", "in=a,side=b"})
    expect_error([&] { parse_fabric_names(text); }, {"--fabric"});
}

TEST(GroupSpan, CountsHostsAndWhoSharesThem) {
  const HostLayout hosts{.hosts = 2, .per_host = 8};
  const auto expect = [&](const char* grid, GroupSpan span) {
    const GroupSpan got = span_of(RankGrid::parse(grid), hosts, 3);
    EXPECT_EQ(got.hosts, span.hosts) << grid;
    EXPECT_EQ(got.per_host, span.per_host) << grid;
    EXPECT_EQ(got.sharing, span.sharing) << grid;
  };
  expect("8x1", {1, 8, 1});
  expect("16x1", {2, 8, 1});
  expect("2x8", {2, 1, 8});
  expect("2x8,2x1", {2, 2, 4});
  expect("4x4", {2, 2, 4});
  const GroupSpan apart = span_of(RankGrid::parse("8x2"), {2, 8, HostLayout::Order::round_robin}, 3);
  EXPECT_EQ(apart.hosts, 1) << "every other rank is of one host";
}

// peers: 16 cards, 8 on each of two hosts: a ring over all has all NICs, 8 rings of two ranks an eighth each.
TEST(GroupLink, DividesTheNicsOfAHost) {
  FabricModel in, out;
  in.name = "in";
  in.link = {0, 0, 362e9};
  out.name = "out";
  out.link = {0, 0, 45e9};
  Cluster cluster{.device = {}, .hosts = {2, 8}, .in = in, .out = out};
  const auto seconds = [&](const char* grid, int nics, Movement movement, double bytes) {
    cluster.out->nics = nics;
    return group_link(cluster, "dp", RankGrid::parse(grid), 0).seconds(movement, bytes);
  };
  EXPECT_DOUBLE_EQ(seconds("8x1", 1, Movement::gather, 8e9), 7e9 / 362e9) << "within a host";
  EXPECT_DOUBLE_EQ(seconds("16x1", 1, Movement::gather, 16e9), 15e9 / 45e9);
  EXPECT_DOUBLE_EQ(seconds("16x1", 8, Movement::gather, 16e9), 15e9 / 360e9) << "eight NICs";
  EXPECT_DOUBLE_EQ(seconds("16x1", 0, Movement::gather, 16e9), 15e9 / 360e9) << "a NIC for each rank";
  EXPECT_DOUBLE_EQ(seconds("16x1", 16, Movement::gather, 16e9), 15e9 / 360e9) << "no more than ranks";
  EXPECT_DOUBLE_EQ(seconds("2x8", 1, Movement::reduce_all, 2e9), 8 * 2e9 / 45e9) << "an eighth of one NIC";
  EXPECT_DOUBLE_EQ(seconds("2x8", 8, Movement::reduce_all, 2e9), 2e9 / 45e9) << "a NIC each";
  EXPECT_EQ(group_link(cluster, "dp", RankGrid::parse("16x1"), 0).name(), "out");
  cluster.axes["dp"] = {0, 0, 1e9};
  EXPECT_DOUBLE_EQ(seconds("8x1", 1, Movement::gather, 8e9), 7) << "a shaped link replaces them";
  cluster.out.reset();
  cluster.axes.clear();
  expect_error([&] { group_link(cluster, "dp", RankGrid::parse("16x1"), 0); },
               {"\"dp\"", "2 hosts", "--fabric in=in,out="});
}

}  // namespace
}  // namespace sherd::testing
