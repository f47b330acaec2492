// Spec: the chunk rule, interning, local shapes, the printed form.
#include "dtensor/spec.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "dtensor/api.h"
#include "dtensor/propagate.h"
#include "dtensor/transition/redistribute.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/job/world.h"
#include "runtime/op/core/step_names.h"
#include "runtime/op/rows/ops.h"
#include "tests/dtensor/layouts.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// torch.chunk's rule in the words of its documentation: ceil(n/k) rows per chunk, until the rows are used up.
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

// Layouts of sizes that change from step to step, as ragged rows do: one that nobody holds goes, one that a tensor or
// the tape holds stays one object.
TEST(Spec, ListedSizesGoWithWhoHoldsThem) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "dp");
    const Spec* const even = Spec::of(mesh, Shard(0));
    const auto listed = [&](std::int64_t n) { return even->with_rows(0, std::array{n, n + 5}); };
    const Tensor held = from_local(zeros({group->rank() == 0 ? 1 : 6, 2}), listed(1));
    const std::string name = listed(1)->name(), other = listed(2)->name();
    EXPECT_EQ(find_layouts(other).size(), 1u);
    for (std::int64_t n = 3; n < 4 * static_cast<std::int64_t>(Spec::kYoung); ++n) listed(n);
    EXPECT_TRUE(find_layouts(other).empty());
    ASSERT_EQ(find_layouts(name).size(), 1u);
    EXPECT_EQ(find_layouts(name)[0].get(), held.layout());
    EXPECT_EQ(listed(1), held.layout());
    EXPECT_EQ(Spec::of(mesh, Shard(0)), even);
  });
}

TEST(Spec, LayoutsOfAMeshThatIsGoneGoWithTheirTensors) {
  std::optional<DeviceMesh> mesh(make_single_group());
  const SpecRef spec = Spec::of(*mesh, Shard(0));
  Slot w("w", true);
  w.set(from_local(zeros({2}), spec));
  Tensor y = redistribute(w.value(), Spec::of(*mesh, Replicate())) * 2.0;
  forget_plans();
  forget_plans();  // what was forgotten last is kept
  mesh.reset();
  EXPECT_GT(spec->use_count(), 2u);
  expect_error([&] { (void)spec->mesh(); }, {"the mesh of a tensor with placement {0: dp} is gone"});
  y = {};
  w.set(zeros({1}));
  for (int i = 0; i < 1000; ++i) Spec::of(DeviceMesh(make_single_group()), Shard(0));  // the last ones are kept too
  EXPECT_EQ(spec->use_count(), 1u);
}

TEST(Spec, AreFoundByNameWhileTheirMeshIsThere) {
  std::optional<DeviceMesh> mesh(make_single_group()), other(make_single_group());
  const SpecRef spec = Spec::of(*mesh, Shard(1)), second = Spec::of(*other, Shard(1));
  EXPECT_EQ(find_layouts("{1: dp} on mesh(dp=1)").size(), 2u);
  mesh.reset();
  ASSERT_EQ(find_layouts("{1: dp} on mesh(dp=1)").size(), 1u);
  EXPECT_EQ(find_layouts("{1: dp} on mesh(dp=1)")[0].get(), second.get());
  EXPECT_TRUE(find_layouts("{0: dp} on mesh(dp=2)").empty());
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
    EXPECT_EQ(rows->local_range(1, 3).size(), 3);  // not sharded
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

// The owner of every row, found by handing rows out one by one: axis by axis, a chunk is full before the next begins.
std::vector<int> owner_path(std::int64_t row, std::int64_t n, std::span<const int> axes, const Spec& spec) {
  std::vector<int> path;
  for (int axis : axes) {
    std::int64_t chunk = 0;
    while (chunk * spec.axis_size(axis) < n) ++chunk;
    const std::int64_t c = row / chunk;
    path.push_back(static_cast<int>(c));
    n = std::min(chunk, n - c * chunk);
    row -= c * chunk;
  }
  return path;
}

TEST(Spec, F125_RangesOfEveryRankAndNestedCutAreThoseOfRowsHandedOutOneByOne) {
  run_ranks(6, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 3}});
    for (const Spec* spec : all_layouts(mesh, {Replicate(), Shard(0), Shard(1)}))
      for (std::int64_t n = 0; n <= 13; ++n)
        for (int dim : {0, 1}) {
          const std::span<const int> axes = spec->axes_of(dim);
          std::vector<std::int64_t> count(static_cast<std::size_t>(n), 0);  // of ranks that hold a row
          for (int dp = 0; dp < 2; ++dp)
            for (int tp = 0; tp < 3; ++tp) {
              const int at[] = {dp, tp};
              const Spec::Range range = spec->range_at(dim, n, at);
              for (std::int64_t row = range.begin; row < range.end; ++row) {
                ++count[static_cast<std::size_t>(row)];
                const std::vector<int> path = owner_path(row, n, axes, *spec);
                for (std::size_t i = 0; i < axes.size(); ++i)
                  EXPECT_EQ(path[i], at[axes[i]]) << "row " << row << " of " << n << " in " << spec->describe();
              }
            }
          for (std::int64_t c : count) EXPECT_EQ(c, 6 / spec->num_shards(dim)) << n << " rows in " << spec->describe();
          const Shape shape = dim == 0 ? Shape{n, 4} : Shape{4, n};
          const Spec::Range own = spec->local_range(dim, n);
          EXPECT_EQ(own, spec->range_at(dim, n, mesh.coordinates()));
          EXPECT_EQ(spec->local_shape(shape)[dim], own.size());
          EXPECT_EQ(spec->local_offset(shape)[dim], own.begin);
        }
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
  expect_error([&] { Spec::of(mesh, two); }, {"2 placements", "mesh(dp=1)", "one per axis"});
  expect_error([&] { Spec::of(mesh, Shard(-1)); }, {"Shard(-1)", "no such dim", "0 to 7"});
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
