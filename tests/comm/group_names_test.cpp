// Groups by name: what data says instead of holding a group.
#include "runtime/comm/group/group_names.h"

#include <gtest/gtest.h>

#include "dtensor/mesh.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "runtime/op/attrs/attr_text.h"
#include "runtime/op/core/dispatch.h"
#include "runtime/op/rows/collective_attrs.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

TEST(GroupNames, AMeshNamesTheGroupsOfItsAxes) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    for (const char* axis : {"dp", "tp"}) {
      const std::string name = name_of_group(mesh.group(axis));
      EXPECT_EQ(name, mesh.group(axis).name());
      EXPECT_EQ(&group_named(name), &mesh.group(axis));
    }
    EXPECT_EQ(&group_named(group->name()), group.get());
    const DeviceMesh flat = mesh.flatten({"dp", "tp"}, "all");
    EXPECT_EQ(&group_named(name_of_group(flat.group())), &flat.group());
  });
}

TEST(GroupNames, AreGoneWithTheirGroup) {
  const RankScope scope;
  Group group = make_single_group();
  expect_error([&] { name_of_group(*group); }, {"\"world\"", "is not known by name"});
  EXPECT_EQ(name_group(group), "world");
  EXPECT_EQ(name_group(group), "world");
  const Group other = make_single_group();  // of another world
  EXPECT_EQ(name_group(other), "world~2");
  EXPECT_EQ(&group_named("world"), group.get());
  EXPECT_EQ(&group_named("world~2"), other.get());
  group.reset();
  EXPECT_EQ(find_group("world"), nullptr);
  expect_error([] { group_named("world"); }, {"no process group \"world\"", "world~2"});
  EXPECT_EQ(name_group(make_single_group()), "world");
}

TEST(GroupNames, CollectivesNameTheirGroup) {
  run_ranks(2, [](const Group& world) {
    const Group pair = world->subgroup(std::vector<int>{0, 1}, "pair");
    EXPECT_EQ(find_group("pair#1"), nullptr);
    EXPECT_EQ(all_reduce(ones({2}), *pair).to_vector<float>(), (std::vector<float>{2, 2}));
    EXPECT_EQ(&group_named("pair#1"), pair.get()) << "the call has named it";
    const CollectiveAttrs attrs{.group = "pair#1", .kind = 1, .dim = 2};
    EXPECT_EQ(&group_of(attrs), pair.get());
    EXPECT_TRUE(parse_attrs(attr_kind<CollectiveAttrs>, AttrsView(attrs).print()) == AttrsView(attrs));
    expect_error([&] { name_group(pair->host().lane("gather")); }, {"lane", "\"pair#1\"", "has no name of its own"});
    expect_error([&] { call(op::all_gather, CollectiveAttrs{.group = "dp#7", .rows = 2}, ones({1})); },
                 {"no process group \"dp#7\"", "world, pair#1"});
  });
}

}  // namespace
}  // namespace sherd::testing
