// Ghost groups: agreements end at once, names are those of real groups, what needs peers is refused.
#include "runtime/comm/group/ghost_group.h"

#include <gtest/gtest.h>

#include <array>

#include "dtensor/mesh.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/comm/backends.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

constexpr RankOptions kGhost{.ghost = true};

TEST(GhostGroup, AgreesWithItself) {
  const RankScope rank("", kGhost);
  const auto group = make_ghost_group(2, 5);
  EXPECT_EQ(group->rank(), 2);
  EXPECT_EQ(group->size(), 5);
  EXPECT_EQ(group->kind(), "ghost");
  EXPECT_EQ(gather_text(*group, "abc"), std::vector<std::string>(5, "abc"));
  EXPECT_EQ(gather_text(*group, ""), std::vector<std::string>(5, ""));
  together(*group, [] {});
  expect_error([&] { together(*group, [] { throw Error("wrong"); }); }, {"wrong"});
  group->host().barrier();
  EXPECT_EQ(group->host().counts().all_gather.calls, 0);
  EXPECT_EQ(group->host().shared_heap().bytes, 0u);
}

TEST(GhostGroup, GathersFromASourceAndKeepsWhatAllRanksShare) {
  const RankScope rank("", kGhost);
  const auto group = make_ghost_group(1, 3);
  std::array<float, 2> own{7, 8};
  std::array<float, 6> all{};
  const CollectivePart part{.in = {own.data()}, .out = {all.data()}, .counts = {2, 2, 2}};
  group->host().all_gather({part});
  EXPECT_EQ(all, (std::array<float, 6>{7, 8, 7, 8, 7, 8}));
  double value = 3;
  const CollectivePart flat = in_place(&value, DType::f64, 1);
  for (const ReduceKind kind : {ReduceKind::max, ReduceKind::min, ReduceKind::avg})
    group->host().all_reduce({flat}, {.kind = kind});
  group->host().broadcast({flat}, 2);
  EXPECT_EQ(value, 3);
}

TEST(GhostGroup, RefusesWhatNeedsOtherRanksByName) {
  const RankScope rank("", kGhost);
  const auto group = make_ghost_group(0, 2);
  expect_error([&] { group->host().all_reduce({}, {.kind = ReduceKind::sum}); },
               {"all_reduce by sum", "ghost group world"});
  expect_error([&] { group->host().all_reduce({}, {.kind = ReduceKind::product}); }, {"all_reduce by product"});
  expect_error([&] { group->host().reduce_scatter({}, {}); }, {"reduce_scatter"});
  expect_error([&] { group->host().all_to_all({}); }, {"all_to_all"});
  expect_error([&] { group->host().send({}, 1); }, {"send"});
  expect_error([&] { group->host().recv({}, 1); }, {"recv"});
  std::array<float, 3> data{};
  expect_error([&] { group->host().all_gather({in_place(data.data(), DType::f32, {1, 2})}); },
               {"all_gather of unequal parts"});
  expect_error([&] { group->host().lane(HostGroup::kNumLanes); }, {"lane 6"});
  expect_error([] { make_ghost_group(2, 2); }, {"rank 2", "2 ranks"});
}

/// Names, places and sizes of what a rank of four divides.
std::vector<std::string> divided(HostGroup& world) {
  std::vector<std::string> found;
  const auto add = [&](const ProcessGroup& group) {
    found.push_back(fmt::format("{} {} of {}", group.name(), group.rank(), group.size()));
  };
  const int column = world.rank() % 2;
  const std::vector<int> half = {column + 2, column};
  const auto dp = world.subgroup(half, "dp"), again = world.subgroup(half);
  const auto first = again->subgroup(std::vector<int>{again->rank()}, "ep");
  const auto second = again->subgroup(std::vector<int>{1, 0}, "tp");
  add(world), add(*dp), add(*again), add(*first), add(*second), add(dp->host().lane(3));
  return found;
}

TEST(GhostGroup, DividesAsRealGroupsDo) {
  run_ranks(4, [](const std::shared_ptr<ProcessGroup>& group) {
    const std::vector<std::string> real = divided(group->host());
    const RankScope rank("", kGhost);
    EXPECT_EQ(divided(make_ghost_group(group->rank(), 4)->host()), real);
  });
  const RankScope rank("", kGhost);
  const auto ghost = make_ghost_group(1, 4);
  expect_error([&] { ghost->subgroup(std::vector<int>{0, 2}, "dp"); }, {"rank 1", "0,2", "will be in"});
  expect_error([&] { ghost->subgroup(std::vector<int>{1, 4}, "dp"); }, {"rank 1", "1,4", "0..3"});
}

TEST(GhostGroup, FailsWithItsFamilyUntilReset) {
  const RankScope rank("", kGhost);
  const auto ghost = make_ghost_group(1, 4);
  const auto pair = ghost->subgroup(std::vector<int>{1, 3}, "dp");
  pair->abort("no reason");
  EXPECT_EQ(error_of([&] { ghost->host().barrier(); }), "rank 1 aborted the group: no reason");
  EXPECT_EQ(error_of([&] { gather_text(*pair, "x"); }), "rank 1 aborted the group: no reason");
  ghost->reset();
  EXPECT_EQ(gather_text(*pair, "x").size(), 2u);
}

// A ghost that joined real ranks would leave them waiting; a real rank would take a ghost group's word for its peers'.
TEST(GhostGroup, MeetsGhostRanksOnlyAndRealGroupsRealOnes) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const auto ghosts = make_ghost_group(group->rank(), 2);
    const auto expect_refused = [](const std::shared_ptr<ProcessGroup>& other, const std::string& why) {
      const std::string name = fmt::format("group {} of 2", other->name());
      expect_error([&] { set_world_group(other); }, {name, why});
      expect_error([&] { gather_text(*other, "x"); }, {name, why});
      expect_error([&] { together(*other, [] {}); }, {name, why});
      expect_error([&] { lane_of(*other, kGatherQueue); }, {name, why});
      expect_error([&] { DeviceMesh mesh(other, "dp"); }, {name, why});
      expect_error([&] { DeviceMesh mesh(other, {{"dp", 2}, {"tp", 1}}); }, {name, why});
      expect_error([&] { all_reduce(zeros({3}), *other); }, {"all_reduce", name, why});
    };
    expect_refused(ghosts, "this rank is none");
    expect_error([&] { ghosts->host().barrier(); }, {"the group world of 2", "this rank is none"});
    expect_error([&] { ghosts->subgroup(std::vector<int>{0, 1}); }, {"the group world of 2", "this rank is none"});
    {
      const RankScope rank("", kGhost);
      expect_refused(group, "this rank is a ghost");
      set_world_group(ghosts);
      EXPECT_EQ(gather_text(*ghosts, "x").size(), 2u);
      DeviceMesh alone(make_single_group(), "dp");
    }
    EXPECT_EQ(gather_text(*group, "x").size(), 2u) << "nobody has come to a call of it";
    const DeviceMesh alone(make_ghost_group(0, 1), "dp");
    EXPECT_EQ(gather_text(alone.group(), "x").size(), 1u);
  });
}

}  // namespace
}  // namespace sherd::testing
