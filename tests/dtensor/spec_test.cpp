// Spec: the chunk rule, interning, local shapes, the printed form.
#include "dtensor/spec.h"

#include <gtest/gtest.h>

#include "runtime/comm/world.h"
#include "runtime/tensor/tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// torch.chunk's rule in the words of its documentation: ceil(n/k) rows per part, until the rows are used up.
TEST(ChunkRange, GivesEveryRankCeilRowsUntilTheyAreUsedUp) {
  for (int k = 1; k <= 7; ++k)
    for (std::int64_t n = 0; n <= 30; ++n) {
      std::int64_t size = 0;
      while (size * k < n) ++size;
      std::int64_t used = 0;
      for (int r = 0; r < k; ++r) {
        const Spec::Range range = chunk_range(n, k, r);
        EXPECT_EQ(range.begin, used) << n << " rows, part " << r << " of " << k;
        EXPECT_EQ(range.size(), std::min(size, n - used)) << n << " rows, part " << r << " of " << k;
        used = range.end;
      }
      EXPECT_EQ(used, n);
    }
}

TEST(Spec, EqualLayoutsOnOneMeshAreOneObject) {
  const DeviceMesh mesh(make_single_group()), other(make_single_group());
  EXPECT_EQ(Spec::of(mesh, Shard(0)), Spec::of(mesh, Shard(0)));
  EXPECT_EQ(Spec::of(mesh, Replicate()), Spec::of(mesh, Replicate()));
  EXPECT_NE(Spec::of(mesh, Shard(0)), Spec::of(mesh, Shard(1)));
  EXPECT_NE(Spec::of(mesh, Shard(0)), Spec::of(mesh, Replicate()));
  EXPECT_NE(Spec::of(mesh, Partial()), Spec::of(mesh, Partial(ReduceKind::max)));
  EXPECT_NE(Spec::of(mesh, Shard(0)), Spec::of(other, Shard(0)));
}

TEST(Spec, LocalShapeAndRangesFollowTheChunkRule) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Spec* rows = Spec::of(mesh, Shard(0));
    const int r = group->rank();
    const std::int64_t expected[] = {2, 2, 1, 0};
    EXPECT_EQ(rows->local_shape({5, 3}), (Shape{expected[r], 3}));
    EXPECT_EQ(rows->local_range(0, 5).begin, std::min(2 * r, 5));
    EXPECT_EQ(rows->local_range(1, 3).size(), 3);  // not split
    for (int other = 0; other < 4; ++other)
      EXPECT_EQ(rows->range_at(0, 5, std::span(&other, 1)).size(), expected[other]);
    EXPECT_EQ(Spec::of(mesh, Shard(1))->local_shape({3, 8}), (Shape{3, 2}));
    EXPECT_EQ(Spec::of(mesh, Replicate())->local_shape({5, 3}), (Shape{5, 3}));
    EXPECT_EQ(Spec::of(mesh, Partial())->local_shape({5, 3}), (Shape{5, 3}));
    ASSERT_EQ(rows->axes_of(0).size(), 1u);
    EXPECT_EQ(rows->axes_of(0)[0], 0);
    EXPECT_TRUE(rows->axes_of(1).empty());
  });
}

TEST(Spec, PrintsAsTheContractSays) {
  const DeviceMesh mesh(make_single_group(), "dp");
  const auto text = [&](Placement placement, const Shape& shape) {
    const Spec* spec = Spec::of(mesh, placement);
    return describe(Tensor::distributed(shape, spec, Tensor::empty(spec->local_shape(shape), DType::f32)));
  };
  EXPECT_EQ(text(Shard(0), {14336, 4096}), "f32[14336,4096]{0: dp}");
  EXPECT_EQ(text(Shard(1), {4, 8}), "f32[4,8]{1: dp}");
  EXPECT_EQ(text(Partial(), {4, 8}), "f32[4,8]{+dp}");
  EXPECT_EQ(text(Replicate(), {4, 8}), "f32[4,8]{}");
  EXPECT_EQ(Spec::of(mesh, Partial(ReduceKind::max))->describe(), "{max dp}");
}

TEST(Spec, RefusalsNameWhatIsWrong) {
  const DeviceMesh mesh(make_single_group());
  const Placement two[] = {Shard(0), Shard(1)};
  expect_error([&] { Spec::of(mesh, two); }, {"2 placements", "mesh(dp=1)"});
  expect_error([&] { Spec::of(mesh, Shard(-1)); }, {"Shard(-1)", "no such dim"});
  expect_error([&] { Spec::of(mesh, Shard(kMaxDims)); }, {"no such dim"});
  expect_error([&] { Spec::of(mesh, Shard(2))->local_shape({4, 4}); }, {"{2: dp}", "dim 2", "[4,4]"});
  expect_error([&] { Spec::from(Tensor::empty({2}, DType::f32)); }, {"f32[2]", "plain tensor"});
}

TEST(Spec, ALayoutDoesNotKeepItsMeshAlive) {
  const Spec* spec = nullptr;
  std::weak_ptr<ProcessGroup> group;
  {
    const Group owner = make_single_group();
    group = owner;
    spec = Spec::of(DeviceMesh(owner), Shard(0));
  }
  EXPECT_TRUE(group.expired());
  EXPECT_EQ(spec->local_shape({4}), (Shape{4}));  // metadata needs no mesh
  expect_error([&] { spec->mesh(); }, {"{0: dp}", "keep the DeviceMesh alive"});
}

}  // namespace
}  // namespace sherd::testing
