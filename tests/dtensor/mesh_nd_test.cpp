// Meshes of several axes. Oracle: the ranks drawn as a row-major grid by hand, and all-gathers of rank numbers over the
// groups.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "dtensor/api.h"
#include "dtensor/mesh.h"
#include "dtensor/spec.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Axes = std::vector<DeviceMesh::Axis>;
using Ranks = std::vector<int>;

/// Numbers in `world` of the ranks of a group, in its order.
Ranks ranks_in(ProcessGroup& group, const Group& world) {
  Ranks all(static_cast<std::size_t>(group.size()));
  const std::vector<std::int64_t> ones(all.size(), 1);
  all[static_cast<std::size_t>(group.rank())] = world->rank();
  group.host().all_gather({in_place(all.data(), DType::i32, ones)});
  return all;
}

TEST(DeviceMesh, F105_CoordinatesAreRowMajorAndGroupsRunAlongOneAxis) {
  // 0 1 2
  // 3 4 5
  run_ranks(6, [](const Group& world) {
    const DeviceMesh mesh(world, Axes{{"dp", 2}, {"tp", 3}});
    const int row = world->rank() / 3, column = world->rank() % 3;
    EXPECT_EQ(mesh.ndim(), 2);
    EXPECT_EQ(mesh.num_ranks(), 6);
    EXPECT_EQ(Ranks(mesh.coordinates().begin(), mesh.coordinates().end()), (Ranks{row, column}));
    EXPECT_EQ(mesh.coordinate(0), row);
    EXPECT_EQ(mesh.coordinate(1), column);
    EXPECT_EQ(mesh.group("dp").rank(), row);
    EXPECT_EQ(mesh.group("tp").rank(), column);
    EXPECT_EQ(ranks_in(mesh.group("dp"), world), (Ranks{column, 3 + column}));
    EXPECT_EQ(ranks_in(mesh.group("tp"), world), (Ranks{3 * row, 3 * row + 1, 3 * row + 2}));
    EXPECT_EQ(mesh.ranks(), (Ranks{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(mesh.coordinates_of(world->rank()), (Ranks{row, column}));
    EXPECT_EQ(mesh.coordinates_of(5), (Ranks{1, 2}));
    EXPECT_EQ(mesh["tp"].coordinates_of(1), Ranks{1});
    expect_error([&] { (void)mesh.coordinates_of(6); }, {"rank 6", "mesh(dp=2,tp=3)", "6"});
    EXPECT_EQ(mesh.describe(), "mesh(dp=2,tp=3)");
  });
}

TEST(DeviceMesh, F105_ThreeAxesOneOfSizeOne) {
  // pp 0:  0 1    pp 1:  2 3
  run_ranks(4, [](const Group& world) {
    const DeviceMesh mesh(world, Axes{{"pp", 2}, {"dp", 1}, {"tp", 2}});
    const int r = world->rank();
    EXPECT_EQ(Ranks(mesh.coordinates().begin(), mesh.coordinates().end()), (Ranks{r / 2, 0, r % 2}));
    EXPECT_EQ(ranks_in(mesh.group("pp"), world), (Ranks{r % 2, 2 + r % 2}));
    EXPECT_EQ(ranks_in(mesh.group("dp"), world), Ranks{r});
    EXPECT_EQ(ranks_in(mesh.group("tp"), world), (Ranks{r / 2 * 2, r / 2 * 2 + 1}));
  });
}

TEST(DeviceMesh, F106_MeshesThatDoNotFitAreRefusedOnEveryRank) {
  run_ranks(4, [](const Group& world) {
    expect_error([&] { DeviceMesh(world, Axes{{"dp", 4}, {"tp", 2}}); }, {"mesh(dp=4,tp=2)", "8 places", "4 ranks"});
    expect_error([&] { DeviceMesh(world, Axes{{"dp", 1}, {"tp", 2}}); }, {"2 places", "4 ranks", "sizes of the axes"});
    expect_error([&] { DeviceMesh(world, Axes{{"dp", 2}, {"dp", 2}}); }, {"two axes", "\"dp\""});
    expect_error([&] { DeviceMesh(world, Axes{{"dp", 2}, {"", 2}}); }, {"needs a name"});
    world->host().barrier();
  });
}

TEST(DeviceMesh, F107_SlicesShareTheGroupsOfTheirMesh) {
  run_ranks(4, [](const Group& world) {
    const DeviceMesh mesh(world, Axes{{"pp", 1}, {"dp", 2}, {"tp", 2}});
    const CommCounts before = world->host().counts();
    const DeviceMesh tp = mesh["tp"], both = mesh.slice({"dp", "tp"});
    EXPECT_EQ(&tp.group(), &mesh.group("tp"));
    EXPECT_EQ(&both.group("dp"), &mesh.group("dp"));
    EXPECT_EQ(tp.describe(), "mesh(tp=2)");
    EXPECT_EQ(tp.coordinate(), mesh.coordinate(2));
    EXPECT_EQ(tp.ranks(), (Ranks{world->rank() / 2 * 2, world->rank() / 2 * 2 + 1}));
    EXPECT_EQ(both.ranks(), (Ranks{0, 1, 2, 3}));
    EXPECT_EQ(both["tp"], tp) << "a slice of a slice is the same mesh";
    EXPECT_EQ(tp.root(), mesh);
    EXPECT_EQ(mesh.slice({"pp", "dp", "tp"}), mesh);
    EXPECT_EQ(world->host().counts().all_gather.calls, before.all_gather.calls) << "slices are local";
    expect_error([&] { mesh["cp"]; }, {"mesh(pp=1,dp=2,tp=2)", "no axis \"cp\""});
    expect_error([&] { mesh.slice({}); }, {"at least one axis"});
    expect_error([&] { mesh.slice({"tp", "dp"}); }, {"order", "\"dp\" comes too late"});
    expect_error([&] { mesh.slice({"tp", "tp"}); }, {"\"tp\" comes too late"});
    expect_error([&] { tp["dp"]; }, {"mesh(tp=2)", "\"dp\""});
  });
}

TEST(DeviceMesh, F108_FlattenedAxesKeepTheOrderAndAreFoundAgain) {
  run_ranks(4, [](const Group& world) {
    const DeviceMesh mesh(world, Axes{{"dp", 2}, {"tp", 2}});
    const DeviceMesh flat = mesh.flatten({"dp", "tp"});
    EXPECT_EQ(flat.describe(), "mesh(dp_tp=4)");
    EXPECT_EQ(flat.coordinate(), world->rank());
    EXPECT_EQ(ranks_in(flat.group(), world), (Ranks{0, 1, 2, 3}));
    EXPECT_EQ(&flat.group(), world.get()) << "all axes in order are the ranks of the mesh";
    EXPECT_EQ(mesh.flatten(), flat);
    EXPECT_EQ(mesh["dp_tp"], flat);
    expect_error([&] { mesh.flatten({"dp", "tp"}, "tp"); }, {"\"tp\" is an axis already"});
    expect_error([&] { mesh.flatten({"tp", "dp"}); }, {"order"});
    expect_error([&] { mesh.flatten({"dp", "cp"}); }, {"no axis \"cp\""});
    expect_error([&] { mesh.flatten({}); }, {"names of axes"});
  });
}

TEST(DeviceMesh, F108_FlattenSomeAxesOfThree) {
  run_ranks(8, [](const Group& world) {
    const DeviceMesh mesh(world, Axes{{"replicate", 2}, {"shard", 2}, {"tp", 2}});
    const DeviceMesh dp = mesh.flatten({"replicate", "shard"}, "dp");
    const int tp = world->rank() % 2;
    EXPECT_EQ(dp.coordinate(), world->rank() / 2);
    EXPECT_EQ(ranks_in(dp.group(), world), (Ranks{tp, 2 + tp, 4 + tp, 6 + tp}));
    EXPECT_EQ(mesh.flatten({"replicate", "shard"}, "dp"), dp);
    const DeviceMesh again = mesh.flatten({"replicate", "shard"});
    EXPECT_EQ(&again.group(), &dp.group()) << "another name, the same group";
    EXPECT_EQ(mesh.slice({"dp", "tp"}).ranks(), (Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
    expect_error([&] { mesh.flatten({"shard", "tp"}, "dp"); }, {"\"dp\" names other flattened axes"});
    const int axes[] = {0, 1}, others[] = {1, 2};
    EXPECT_EQ(mesh.joint_group(axes), &dp.group());
    EXPECT_EQ(mesh.joint_group(others), nullptr) << "nobody has flattened these";
    ProcessGroup& flat = mesh.flatten({"shard", "tp"}).group();
    EXPECT_EQ(mesh.joint_group(others), &flat);
  });
}

// 8 ranks, dp of 4 into replicas of shards:  replicate = rank / 4, shard = rank / 2 % 2, tp = rank % 2.
TEST(DeviceMesh, F207_UnflattenSplitsAnAxis) {
  run_ranks(8, [](const Group& world) {
    const int r = world->rank();
    const DeviceMesh mesh(world, Axes{{"dp", 4}, {"tp", 2}});
    const DeviceMesh fine = mesh.unflatten("dp", {{"replicate", 2}, {"shard", 2}});
    EXPECT_EQ(fine.describe(), "mesh(replicate=2,shard=2,tp=2)");
    EXPECT_EQ(Ranks(fine.coordinates().begin(), fine.coordinates().end()), (Ranks{r / 4, r / 2 % 2, r % 2}));
    EXPECT_EQ(ranks_in(fine.group("replicate"), world), (Ranks{r % 4, 4 + r % 4}));
    EXPECT_EQ(ranks_in(fine.group("shard"), world), (Ranks{r / 4 * 4 + r % 2, r / 4 * 4 + 2 + r % 2}));
    EXPECT_EQ(&fine.group("tp"), &mesh.group("tp")) << "what is not split keeps its group";
    EXPECT_EQ(&fine["dp"].group(), &mesh.group("dp")) << "and so does the axis as a whole";
    EXPECT_EQ(fine.slice({"dp", "tp"}).ranks(), mesh.ranks());
    EXPECT_EQ(fine.flatten({"replicate", "shard"}, "dp"), fine["dp"]);
    EXPECT_EQ(fine.root(), fine);
    const CommCounts before = world->host().counts();
    EXPECT_EQ(mesh.unflatten("dp", {{"replicate", 2}, {"shard", 2}}), fine) << "found again";
    EXPECT_EQ(world->host().counts().all_gather.calls, before.all_gather.calls) << "without communication";
    const Tensor values = random_normal({8, 3}, 5);
    EXPECT_TRUE(same_bits(full_tensor(distribute(values, fine, {Shard(0), Shard(0), Shard(1)})), values));
  });
}

TEST(DeviceMesh, F207_UnflattenOfASliceAndOfAFlattenedAxis) {
  run_ranks(8, [](const Group& world) {
    const int r = world->rank();
    const DeviceMesh mesh(world, Axes{{"dp", 4}, {"tp", 2}});
    const DeviceMesh fine = mesh["dp"].unflatten("dp", {{"dp_out", 2}, {"dp", 2}});
    EXPECT_EQ(fine.describe(), "mesh(dp_out=2,dp=2)") << "a part may have the name of the whole";
    EXPECT_EQ(ranks_in(fine.group("dp"), world), (Ranks{r / 4 * 4 + r % 2, r / 4 * 4 + 2 + r % 2}));
    EXPECT_EQ(fine.root().describe(), "mesh(dp_out=2,dp=2,tp=2)");
    const DeviceMesh three(world, Axes{{"a", 2}, {"b", 2}, {"c", 2}}), flat = three.flatten({"a", "b"}, "ab");
    EXPECT_EQ(flat.unflatten("ab", {{"a", 2}, {"b", 2}}), three.slice({"a", "b"})) << "no new mesh";
    EXPECT_EQ(three.slice({"ab", "c"}).unflatten("ab", {{"a", 2}, {"b", 2}}), three);
    // What is flattened stays so when another axis is split.
    const DeviceMesh one(world, Axes{{"x", 4}, {"y", 2}});
    const DeviceMesh whole = one.flatten({"x", "y"}, "xy");
    EXPECT_EQ(&one.unflatten("x", {{"x0", 2}, {"x1", 2}})["xy"].group(), &whole.group());
  });
}

TEST(DeviceMesh, F207_AWorldSplitInSteps) {
  run_ranks(8, [](const Group& world) {
    const int r = world->rank();
    const DeviceMesh all(world, "world");
    const DeviceMesh mesh = all.unflatten("world", {{"pp", 2}, {"rest", 4}}).unflatten("rest", {{"dp", 2}, {"tp", 2}});
    EXPECT_EQ(mesh.describe(), "mesh(pp=2,dp=2,tp=2)");
    EXPECT_EQ(Ranks(mesh.coordinates().begin(), mesh.coordinates().end()), (Ranks{r / 4, r / 2 % 2, r % 2}));
    EXPECT_EQ(&mesh["world"].group(), world.get());
    EXPECT_EQ(ranks_in(mesh["rest"].group(), world), (Ranks{r / 4 * 4, r / 4 * 4 + 1, r / 4 * 4 + 2, r / 4 * 4 + 3}));
    EXPECT_EQ(mesh.ranks(), all.ranks());
  });
}

TEST(DeviceMesh, F207_AxesThatCannotBeSplitSo) {
  run_ranks(4, [](const Group& world) {
    const DeviceMesh mesh(world, Axes{{"dp", 4}});
    expect_error([&] { mesh.unflatten("tp", {{"a", 2}, {"b", 2}}); }, {"mesh(dp=4)", "no axis \"tp\""});
    expect_error([&] { mesh.unflatten("dp", {}); }, {"unflatten() of \"dp\"", "needs the new axes"});
    expect_error([&] { mesh.unflatten("dp", {{"a", 2}, {"b", 3}}); },
                 {"mesh(a=2,b=3)", "6 places", "\"dp\" has 4 ranks"});
    expect_error([&] { mesh.unflatten("dp", {{"a", 2}, {"a", 2}}); }, {"two axes are named \"a\""});
    expect_error([&] { mesh.unflatten("dp", {{"a", -2}, {"b", -2}}); }, {"\"a\" has size -2"});
    const DeviceMesh two(world, Axes{{"dp", 2}, {"tp", 2}});
    expect_error([&] { two.unflatten("dp", {{"tp", 2}}); }, {"two axes are named \"tp\""});
    const DeviceMesh flat = two.flatten();
    expect_error([&] { two.unflatten("dp", {{"dp_tp", 2}}); }, {"\"dp_tp\" names flattened axes already"});
    expect_error([&] { flat.unflatten("dp_tp", {{"a", 2}, {"b", 2}}); },
                 {"flattened from mesh(dp=2,tp=2)", "not into mesh(a=2,b=2)"});
    EXPECT_EQ(flat.unflatten("dp_tp", {{"dp", 2}, {"tp", 2}}), two);
    world->host().barrier();
  });
}

TEST(DeviceMesh, F207_ConcatenateJoinsSlicesOfOneMesh) {
  run_ranks(8, [](const Group& world) {
    const DeviceMesh mesh(world, Axes{{"pp", 2}, {"dp", 2}, {"tp", 2}});
    const CommCounts before = world->host().counts();
    const DeviceMesh both = DeviceMesh::concatenate({mesh["pp"], mesh["tp"]});
    EXPECT_EQ(both, mesh.slice({"pp", "tp"}));
    EXPECT_EQ(&both.group("tp"), &mesh.group("tp"));
    EXPECT_EQ(DeviceMesh::concatenate({mesh["pp"], mesh.slice({"dp", "tp"})}), mesh);
    EXPECT_EQ(DeviceMesh::concatenate({mesh["dp"]}), mesh["dp"]);
    EXPECT_EQ(world->host().counts().all_gather.calls, before.all_gather.calls) << "it is local";
    const DeviceMesh flat = mesh.flatten({"dp", "tp"}, "inner");
    EXPECT_EQ(DeviceMesh::concatenate({mesh["pp"], flat}).describe(), "mesh(pp=2,inner=4)");
    expect_error([] { DeviceMesh::concatenate({}); }, {"at least one mesh"});
    expect_error([&] { DeviceMesh::concatenate({mesh["tp"], mesh["pp"]}); }, {"order", "\"pp\" comes too late"});
    expect_error([&] { DeviceMesh::concatenate({flat, mesh["tp"]}); }, {"each once", "\"tp\" comes too late"});
    const DeviceMesh other(world, Axes{{"pp", 2}, {"rest", 4}});
    expect_error([&] { DeviceMesh::concatenate({mesh["pp"], other["rest"]}); },
                 {"mesh(pp=2)", "mesh(rest=4)", "not of one root mesh"});
  });
}

TEST(DeviceMesh, JointGroupsOfAllAxesAndOfOne) {
  run_ranks(4, [](const Group& world) {
    const DeviceMesh mesh(world, Axes{{"dp", 2}, {"tp", 2}});
    const int all[] = {0, 1}, reversed[] = {1, 0}, tp[] = {1}, only[] = {0};
    EXPECT_EQ(mesh.joint_group(all), world.get());
    EXPECT_EQ(mesh.joint_group(reversed), nullptr);
    EXPECT_EQ(mesh.joint_group(tp), &mesh.group("tp"));
    EXPECT_EQ(mesh["tp"].joint_group(only), &mesh.group("tp"));
  });
}

TEST(DeviceMesh, F109_WhatNeedsOneAxisAsksWhichOfSeveral) {
  run_ranks(4, [](const Group& world) {
    const DeviceMesh mesh(world, Axes{{"dp", 2}, {"tp", 2}});
    expect_error([&] { (void)mesh.group(); }, {"mesh(dp=2,tp=2)", "which axis"});
    expect_error([&] { (void)mesh.size(); }, {"which axis"});
    expect_error([&] { (void)mesh.coordinate(); }, {"which axis"});
    expect_error([&] { (void)mesh.group("cp"); }, {"no axis \"cp\""});
    expect_error([&] { (void)mesh.group(2); }, {"axis 2", "mesh(dp=2,tp=2)"});
  });
}

TEST(DeviceMesh, F110_AMeshFromAGroupHasItsRanks) {
  run_ranks(4, [](const Group& world) {
    const Ranks order = world->rank() == 0 ? Ranks{0} : Ranks{3, 1, 2};
    const Group three = world->subgroup(order);
    const DeviceMesh mesh(three, "dp");
    EXPECT_EQ(&mesh.group(), three.get());
    EXPECT_EQ(ranks_in(mesh.group(), world), order);
    expect_error([&] { DeviceMesh(three, Axes{{"dp", 2}, {"tp", 2}}); }, {"4 places"});
    EXPECT_EQ(DeviceMesh(world, Axes{{"dp", 2}, {"tp", 2}}), DeviceMesh(world, Axes{{"dp", 2}, {"tp", 2}}));
    EXPECT_FALSE(DeviceMesh(world, Axes{{"dp", 4}}) == DeviceMesh(world, Axes{{"dp", 2}, {"tp", 2}}));
  });
}

TEST(DeviceMesh, F111_EqualityIsOfRanksShapeAndNames) {
  run_ranks(4, [](const Group& world) {
    const Group same_ranks = world->subgroup(Ranks{0, 1, 2, 3}), mirrored = world->subgroup(Ranks{3, 2, 1, 0});
    const DeviceMesh mesh(world, Axes{{"dp", 2}, {"tp", 2}});
    EXPECT_EQ(mesh, DeviceMesh(world, Axes{{"dp", 2}, {"tp", 2}}));
    EXPECT_EQ(mesh["dp"], DeviceMesh(world, Axes{{"dp", 2}, {"tp", 2}})["dp"]);
    for (const DeviceMesh& other :
         {DeviceMesh(world, Axes{{"tp", 2}, {"dp", 2}}), DeviceMesh(world, Axes{{"dp", 1}, {"tp", 4}}),
          DeviceMesh(world, Axes{{"dp", 2}, {"cp", 2}}), DeviceMesh(mirrored, Axes{{"dp", 2}, {"tp", 2}}),
          DeviceMesh(same_ranks, Axes{{"dp", 2}, {"tp", 2}}),  // other communicators
          mesh["dp"], mesh["tp"]})
      EXPECT_FALSE(mesh == other) << other.describe();
    EXPECT_FALSE(mesh["dp"] == mesh["tp"]);
  });
}

TEST(DeviceMesh, ARankThatDiesAlongOneAxisIsNamedAlongTheOther) {
  std::vector<std::string> errors(4);
  EXPECT_THROW(run_ranks(4,
                         [&](const Group& world) {
                           const DeviceMesh mesh(world, Axes{{"dp", 2}, {"tp", 2}});
                           if (world->rank() == 3) fail("no memory");
                           try {
                             mesh.group(world->rank() == 1 ? "dp" : "tp").host().barrier();
                             mesh.group("dp").host().barrier();
                             world->host().barrier();
                           } catch (const CommError& error) {
                             errors[static_cast<std::size_t>(world->rank())] = error.what();
                             throw;
                           }
                         }),
               Error);
  for (const int r : {0, 1, 2})
    EXPECT_NE(errors[static_cast<std::size_t>(r)].find("rank 3 aborted the group: no memory"), std::string::npos)
        << errors[static_cast<std::size_t>(r)];
}

// Plans are given mesh["tp"]: their tensors keep a layout of it, and nothing keeps the slice.
TEST(DeviceMesh, SlicesLiveAsLongAsTheirRoot) {
  run_ranks(4, [](const Group& world) {
    std::optional<DeviceMesh> mesh(std::in_place, world, Axes{{"dp", 2}, {"tp", 2}});
    const std::uint64_t id = (*mesh)["tp"].id();
    EXPECT_EQ((*mesh)["tp"].id(), id);
    const Spec* spec = Spec::of((*mesh)["tp"], Shard(0));
    EXPECT_EQ(spec->mesh(), (*mesh)["tp"]);
    std::optional<DeviceMesh> slice = spec->mesh();
    mesh.reset();
    EXPECT_EQ(slice->root().describe(), "mesh(dp=2,tp=2)");
    slice.reset();
    expect_error([&] { spec->mesh(); }, {"{0: tp}", "is gone"});
  });
}

// Collectives that a mesh has started may be waited for when the mesh is gone: its groups end with it, after the work.
TEST(DeviceMesh, WorkInFlightOutlivesTheMesh) {
  run_ranks(4, [](const Group& group) {
    const Tensor values = random_normal({64, 1024}, 5);
    for (int i = 0; i < 20; ++i) {
      std::vector<Tensor> whole;
      {
        const DeviceMesh mesh(group, Axes{{"dp", 2}, {"tp", 2}});
        for (int d : {0, 1}) whole.push_back(full_tensor(distribute(values, mesh["tp"], Shard(d), kOwnData)));
      }
      for (const Tensor& t : whole) EXPECT_TRUE(same_bits(t, values));
    }
  });
}

// A group whose only handle is a mesh of one axis ends with the mesh: rank 0 drops its mesh before its peer comes to
// the gather that rank 0 has started.
TEST(DeviceMesh, WorkInFlightOutlivesAMeshOfOneAxis) {
  std::atomic<bool> is_started = false, has_company = false;
  run_ranks(4, [&](const Group& world) {
    const Tensor values = random_normal({64, 1024}, 5);
    const Ranks mine = world->rank() % 2 == 0 ? Ranks{0, 2} : Ranks{1, 3};
    Tensor whole;
    {
      const DeviceMesh mesh(world->subgroup(mine), "tp");
      const Tensor part = distribute(values, mesh, Shard(0), kOwnData);
      if (world->rank() == 2) {
        is_started.wait(false);
        has_company = true;
      }
      whole = full_tensor(part);
      if (world->rank() == 0) {
        is_started = true;
        is_started.notify_all();
      }
    }
    if (world->rank() == 0) { EXPECT_TRUE(has_company); }
    EXPECT_TRUE(same_bits(whole, values));
  });
}

}  // namespace
}  // namespace sherd::testing
