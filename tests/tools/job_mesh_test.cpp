#include "nn/plan/job_mesh.h"

#include <gtest/gtest.h>

#include <chrono>

#include "nn/parallel/shard/unit/unit_slices.h"
#include "runtime/comm/group/host_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tools/train/links.h"

namespace sherd::testing {

using namespace train;

namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Axes = std::vector<DeviceMesh::Axis>;
using nn::JobMesh;
using nn::MeshAxes;

TEST(JobMesh, TextSaysTheAxes) {
  EXPECT_EQ(MeshAxes("").of(3), (Axes{{"dp", 3}}));
  EXPECT_EQ(MeshAxes("dp=2,tp=3").of(6), (Axes{{"dp", 2}, {"tp", 3}}));
  EXPECT_EQ(MeshAxes("tp=2,dp=2").of(4), (Axes{{"tp", 2}, {"dp", 2}}));
  EXPECT_EQ(MeshAxes("tp=2").of(2), (Axes{{"dp", 1}, {"tp", 2}}));
  EXPECT_EQ(MeshAxes("replicate=2,tp=2").of(4), (Axes{{"replicate", 2}, {"dp", 1}, {"tp", 2}}));
  EXPECT_EQ(nn::count_data_ranks(MeshAxes("replicate=2,dp=3,tp=2").of(12)), 6);
  expect_error([] { MeshAxes("dp=2,tp=2").of(3); },
               {"mesh = \"dp=2,tp=2\"", "for 4 ranks, this run has 3", "--mesh \"\"", "sherd run -n 4"});
  expect_error([] { MeshAxes("dp=2,tp=2").of(8); }, {"for 4 ranks", "this run has 8"});
  expect_error([] { MeshAxes("dp=2000000,tp=2000000").of(4); }, {"dp=2000000", "this run has 4"});
}

TEST(JobMesh, HostsAreTheReplicasWhereTheTextNamesNone) {
  const auto text = [](const char* given, int ranks, int hosts) {
    return MeshAxes(given).with_replicas(ranks, hosts, "hybrid_shard").text();
  };
  EXPECT_EQ(text("", 8, 2), "replicate=2,dp=4");
  EXPECT_EQ(text("", 3, 3), "replicate=3,dp=1");
  EXPECT_EQ(text("dp=2,tp=2", 8, 2), "replicate=2,dp=2,tp=2");
  EXPECT_EQ(text("tp=4", 8, 2), "replicate=2,dp=1,tp=4");
  EXPECT_EQ(MeshAxes(text("dp=2,tp=2", 8, 2)).of(8), (Axes{{"replicate", 2}, {"dp", 2}, {"tp", 2}}));
  for (const int hosts : {1, 2}) EXPECT_EQ(text("replicate=4,dp=2", 8, hosts), "replicate=4,dp=2");
  for (const char* given : {"", "dp=4", "dp=2,tp=2"})
    expect_error([&] { text(given, 4, 1); }, {"strategy = hybrid_shard", fmt::format("mesh = \"{}\"", given),
                                              "all ranks are on one host", "--mesh replicate=2,dp=2"});
  expect_error([&] { text("tp=2,dp=2", 8, 2); }, {"mesh = \"tp=2,dp=2\"", "another axis before dp"});
  expect_error([&] { text("dp=8", 8, 2); }, {"2 hosts of 4 ranks", "mesh = \"dp=8\"", "for 8 ranks"});
  expect_error([&] { text("dp=2000000,tp=2000000", 8, 2); }, {"2 hosts of 4 ranks"});
  expect_error([&] { text("", 5, 2); }, {"5 ranks on 2 hosts"});
}

TEST(JobMesh, DataRanksAreThoseThatDifferInTheirData) {
  run_ranks(8, [](const Group& group) {
    const int rank = group->rank();
    const JobMesh mesh("replicate=2,dp=2,tp=2", group);
    EXPECT_EQ(mesh.num_data_ranks(), 4);
    EXPECT_EQ(mesh.data_rank(), rank / 2);
    EXPECT_EQ(mesh.data().axes(), (Axes{{"replicate", 2}, {"dp", 2}}));
    ASSERT_TRUE(mesh.tensor());
    EXPECT_EQ(mesh.tensor()->coordinate(), rank % 2);
    EXPECT_EQ(mesh.rank_text(),
              fmt::format("rank {} of 8 (replicate {}, dp {}, tp {})", rank, rank / 4, rank / 2 % 2, rank % 2));
    const CollectivePart none = in_place(nullptr, DType::f32, 0);
    mesh.data_group().host().all_reduce({none}, {});
    mesh.root().group("tp").host().all_reduce({none}, {});
  });
  run_ranks(2, [](const Group& group) {
    const JobMesh mesh("", group);
    EXPECT_FALSE(mesh.tensor());
    EXPECT_EQ(mesh.group(), group);
    EXPECT_EQ(&mesh.data_group(), group.get());
    EXPECT_EQ(mesh.rank_text(), fmt::format("rank {} of 2", group->rank()));
  });
}

TEST(JobMesh, AGroupOfSeveralAxesHasTheSlowestOfTheirLinks) {
  const Axes axes = MeshAxes("replicate=2,dp=2,tp=2").of(8), flat = MeshAxes("replicate=1,dp=8").of(8);
  const auto over = [](const char* links, const Axes& of) { return Links(links).over(of); };
  const auto expect_link = [](const std::optional<LinkShape>& link, double rate, double seconds) {
    ASSERT_TRUE(link.has_value());
    EXPECT_EQ(link->bytes_per_second, rate);
    EXPECT_EQ(link->seconds, seconds);
  };
  for (const Axes& of : {axes, flat, Axes{axes[1]}}) expect_link(over("2.5e9,20e-6", of), 2.5e9, 20e-6);
  const char* const apart = "dp=2e9,3e-6;replicate=2e8,1e-6";
  expect_link(over(apart, {axes[0]}), 2e8, 1e-6);
  expect_link(over(apart, {axes[1]}), 2e9, 3e-6);
  expect_link(over(apart, axes), 2e8, 3e-6);
  expect_link(over(apart, flat), 2e9, 3e-6);
  EXPECT_FALSE(over(apart, {axes[2]}).has_value());
  EXPECT_FALSE(over("", axes).has_value());
  for (const char* twice : {"dp=1,0;dp=2,0", "1,0;dp=2,0", "1,0;2,0", "dp=2,0;1,0"})
    expect_error([&] { Links links(twice); }, {twice, "two links"});
  expect_error([] { Links links("replica=1,0"); }, {"no axis \"replica\"", "did you mean replicate?"});
}

/// What so many calls take.
double seconds_of_barriers(ProcessGroup& over, int calls) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) over.host().barrier();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Lower bounds cannot fail by chance: a hundred calls within an axis would take 5 s on the link between the others.
TEST(JobMesh, LinksShapeTheAxesApart) {
  run_ranks(4, [](const Group& group) {
    const JobMesh mesh("replicate=2,dp=2", group);
    Links("dp=1e12,0;replicate=1e12,50e-3").shape(mesh);
    EXPECT_LT(seconds_of_barriers(mesh.root().group("dp"), 100), 5);
    EXPECT_GE(seconds_of_barriers(mesh.root().group("replicate"), 1), 50e-3);
    EXPECT_GE(seconds_of_barriers(mesh.data_group(), 1), 150e-3) << "three steps of four ranks";
    expect_error([&] { Links("tp=1,0").shape(mesh); }, {"the axis tp", "mesh(replicate=2,dp=2)"});
  });
}

// What a unit reshards to is a part of dp, and communicates on its link, not on the slowest of the job.
TEST(JobMesh, GroupsWithinAnAxisHaveItsLink) {
  run_ranks(4, [](const Group& group) {
    const JobMesh mesh("replicate=2,dp=2", group);
    Links("dp=1e12,1e-3;replicate=1e12,50e-3").shape(mesh);
    const DeviceMesh split = nn::split_for_slices(mesh.data(), 2);
    ASSERT_EQ(split.group("dp_inner").size(), 2);
    const double taken = seconds_of_barriers(split.group("dp_inner"), 100);
    EXPECT_GE(taken, 99e-3);
    EXPECT_LT(taken, 5);
  });
}

}  // namespace
}  // namespace sherd::testing
