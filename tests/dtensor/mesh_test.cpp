// DeviceMesh: names, sizes and coordinates, and the meshes that are refused.
#include "dtensor/mesh.h"

#include <gtest/gtest.h>

#include "runtime/comm/job/world.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

TEST(DeviceMesh, OneAxisOverTheRanksOfAGroup) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [=](const Group& group) {
      const DeviceMesh mesh(group, "fsdp");
      EXPECT_EQ(mesh.ndim(), 1);
      EXPECT_EQ(mesh.axis_name(), "fsdp");
      EXPECT_EQ(mesh.size(), ranks);
      EXPECT_EQ(mesh.coordinate(), group->rank());
      EXPECT_EQ(&mesh.group(), group.get());
      EXPECT_EQ(mesh.describe(), fmt::format("mesh(fsdp={})", ranks));
    });
}

TEST(DeviceMesh, F111_EqualityIsOfGroupAndAxes) {
  const Group group = make_single_group();
  const DeviceMesh mesh(group), same(group), renamed(group, "fsdp"), apart(make_single_group());
  const DeviceMesh copy = mesh;  // NOLINT: the copy is what is tested
  EXPECT_EQ(mesh, copy);
  EXPECT_EQ(mesh, same);
  EXPECT_EQ(mesh.id(), same.id());
  EXPECT_FALSE(mesh == renamed);
  EXPECT_FALSE(mesh == apart);
  EXPECT_NE(mesh.id(), apart.id());
}

TEST(DeviceMesh, WorldIsAllRanksOfTheJob) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh world = DeviceMesh::world();
    EXPECT_EQ(&world.group(), group.get());
    EXPECT_EQ(world.describe(), "mesh(dp=3)");
  });
}

TEST(DeviceMesh, RefusalsNameWhatIsWrong) {
  run_ranks(2, [](const Group& group) {
    using AxisList = std::vector<DeviceMesh::Axis>;
    expect_error([&] { DeviceMesh(group, AxisList{}); }, {"at least one axis"});
    expect_error([&] { DeviceMesh(group, AxisList{{"", 2}}); }, {"needs a name"});
    expect_error([&] { DeviceMesh(group, AxisList{{"dp", 0}}); }, {"\"dp\"", "size 0", "least is 1"});
    expect_error([&] { DeviceMesh(group, AxisList{{"dp", 3}}); }, {"3 places", "2 ranks"});
    expect_error([&] { DeviceMesh(group, AxisList{{"dp", 2}, {"tp", 2}}); }, {"4 places", "2 ranks"});
    expect_error([&] { DeviceMesh(group, AxisList{{"dp", 2}, {"dp", 1}}); }, {"two axes", "\"dp\""});
    expect_error([&] { DeviceMesh(group, "dp").group(1); }, {"axis 1", "mesh(dp=2)"});
    expect_error([&] { DeviceMesh(nullptr, "dp"); }, {"needs a process group"});
  });
}

}  // namespace
}  // namespace sherd::testing
