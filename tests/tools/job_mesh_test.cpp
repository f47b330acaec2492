#include "tools/train/job_mesh.h"

#include <gtest/gtest.h>

#include "runtime/comm/group/host_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Axes = std::vector<DeviceMesh::Axis>;

TEST(JobMesh, TextSaysTheAxes) {
  EXPECT_EQ(mesh_of("", 3), (Axes{{"dp", 3}}));
  EXPECT_EQ(mesh_of("dp=2,tp=3", 6), (Axes{{"dp", 2}, {"tp", 3}}));
  EXPECT_EQ(mesh_of("tp=2,dp=2", 4), (Axes{{"tp", 2}, {"dp", 2}}));
  EXPECT_EQ(mesh_of("tp=2", 2), (Axes{{"dp", 1}, {"tp", 2}}));
  EXPECT_EQ(mesh_of("replicate=2,tp=2", 4), (Axes{{"replicate", 2}, {"dp", 1}, {"tp", 2}}));
  EXPECT_EQ(count_data_ranks(mesh_of("replicate=2,dp=3,tp=2", 12)), 6);
  expect_error([] { mesh_of("dp=2,tp=2", 3); }, {"mesh = \"dp=2,tp=2\"", "more ranks than the 3"});
  expect_error([] { mesh_of("dp=2,tp=2", 8); }, {"for 4 ranks", "this run has 8"});
  expect_error([] { mesh_of("dp=2000000,tp=2000000", 4); }, {"more ranks than the 4"});
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
    const FlatPart none{nullptr, DType::f32, 0};
    mesh.data_group().host().all_reduce({&none, 1}, {});
    mesh.root().group("tp").host().all_reduce({&none, 1}, {});
  });
  run_ranks(2, [](const Group& group) {
    const JobMesh mesh("", group);
    EXPECT_FALSE(mesh.tensor());
    EXPECT_EQ(mesh.group(), group);
    EXPECT_EQ(&mesh.data_group(), group.get());
    EXPECT_EQ(mesh.rank_text(), fmt::format("rank {} of 2", group->rank()));
  });
}

}  // namespace
}  // namespace sherd::testing
