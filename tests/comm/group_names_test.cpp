// Groups by name: what data says instead of holding a group.
#include "runtime/comm/group/group_names.h"

#include <gtest/gtest.h>

#include "dtensor/mesh.h"
#include "runtime/exec/context.h"
#include "runtime/op/attr_text.h"
#include "runtime/op/collective_attrs.h"
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

TEST(GroupNames, AttributesAreReadByThem) {
  const RankScope scope;
  const Group group = make_single_group();
  name_group(group);
  const CollectiveAttrs attrs{.group = group.get(), .kind = 1, .dim = 2};
  EXPECT_TRUE(parse_attrs(attr_kind<CollectiveAttrs>, AttrsView(attrs).print()) == AttrsView(attrs));
}

}  // namespace
}  // namespace sherd::testing
