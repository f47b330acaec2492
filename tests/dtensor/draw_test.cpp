// The text of drawings, letter by letter.
#include <gtest/gtest.h>

#include "dtensor/api.h"
#include "dtensor/draw.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// On every rank the drawing is the same.
void expect_drawing(std::vector<DeviceMesh::Axis> axes, const std::vector<Placement>& placements,
                    const std::vector<int>& order, const Shape& shape, const std::string& expected) {
  int ranks = 1;
  for (const DeviceMesh::Axis& axis : axes) ranks *= axis.size;
  run_ranks(ranks, [&](const Group& group) {
    const DeviceMesh mesh(group, axes);
    EXPECT_EQ("\n" + draw(*Spec::of(mesh, placements, order), shape), expected);
  });
}

TEST(Draw, RowsOfOneAxis) {
  expect_drawing({{"dp", 3}}, {Shard(0)}, {}, {5, 4}, R"(
f32[5,4]{0: dp} on mesh(dp=3), 16 B to 32 B per rank

dim 0
      +--------+
  0:2 | rank 0 |
      +--------+
  2:4 | rank 1 |
      +--------+
  4:5 | rank 2 |
      +--------+
)");
}

TEST(Draw, RowsAndColumnsOfTwoAxes) {
  expect_drawing({{"dp", 2}, {"tp", 2}}, {Shard(0), Shard(1)}, {}, {4, 6}, R"(
f32[4,6]{0: dp; 1: tp} on mesh(dp=2,tp=2), 24 B per rank

dim 0 \ 1   0:3      3:6
          +--------+--------+
      0:2 | rank 0 | rank 1 |
          +--------+--------+
      2:4 | rank 2 | rank 3 |
          +--------+--------+
)");
}

TEST(Draw, TheOrderOfSplittingShows) {
  expect_drawing({{"dp", 2}, {"tp", 2}}, {Shard(0), Shard(0)}, {1, 0}, {8}, R"(
f32[8]{0: tp,dp} on mesh(dp=2,tp=2), 8 B per rank

dim 0
      +--------+
  0:2 | rank 0 |
      +--------+
  2:4 | rank 2 |
      +--------+
  4:6 | rank 1 |
      +--------+
  6:8 | rank 3 |
      +--------+
)");
}

TEST(Draw, CopiesAndTermsOfAValue) {
  expect_drawing({{"dp", 2}, {"tp", 2}}, {Replicate(), Replicate()}, {}, {3}, R"(
f32[3]{} on mesh(dp=2,tp=2), 12 B per rank

    +--------------+
all | rank 0 1 2 3 |
    +--------------+
)");
  expect_drawing({{"dp", 2}, {"tp", 2}}, {Replicate(), Partial()}, {}, {3}, R"(
f32[3]{+tp} on mesh(dp=2,tp=2), 12 B per rank

    +-----------------+
all | rank 0+1 or 2+3 |
    +-----------------+
)");
  expect_drawing({{"dp", 2}, {"tp", 2}}, {Partial(ReduceKind::max), Partial()}, {}, {}, R"(
f32[]{max dp; +tp} on mesh(dp=2,tp=2), 4 B per rank

    +-------------------+
all | rank max(0+1,2+3) |
    +-------------------+
)");
  expect_drawing({{"dp", 2}, {"tp", 2}}, {Shard(1), Partial()}, {}, {2, 4}, R"(
f32[2,4]{1: dp; +tp} on mesh(dp=2,tp=2), 16 B per rank

dim 1   0:2        2:4
      +----------+----------+
  all | rank 0+1 | rank 2+3 |
      +----------+----------+
)");
}

TEST(Draw, RanksWithoutElements) {
  expect_drawing({{"dp", 4}}, {Shard(0)}, {}, {5}, R"(
f32[5]{0: dp} on mesh(dp=4), 0 B to 8 B per rank

dim 0
      +--------+
  0:2 | rank 0 |
      +--------+
  2:4 | rank 1 |
      +--------+
  4:5 | rank 2 |
      +--------+
nothing: rank 3
)");
  expect_drawing({{"dp", 2}}, {Shard(0)}, {}, {0, 3}, R"(
f32[0,3]{0: dp} on mesh(dp=2), 0 B per rank

no elements
)");
}

TEST(Draw, ManyRanksAreAbbreviated) {
  expect_drawing({{"dp", 16}}, {Shard(0)}, {}, {32, 2}, R"(
f32[32,2]{0: dp} on mesh(dp=16), 16 B per rank

dim 0
      +---------+
  0:2 | rank 0  |
      +---------+
  2:4 | rank 1  |
      +---------+
  ... | ...     |
      +---------+
28:30 | rank 14 |
      +---------+
30:32 | rank 15 |
      +---------+
)");
  expect_drawing({{"dp", 12}}, {Replicate()}, {}, {2}, R"(
f32[2]{} on mesh(dp=12), 8 B per rank

    +--------------------+
all | rank 0 1 ... 10 11 |
    +--------------------+
)");
}

TEST(Draw, ThreeCutDimsAreAList) {
  expect_drawing({{"a", 2}, {"b", 2}, {"c", 2}}, {Shard(0), Shard(1), Shard(2)}, {}, {2, 4, 6}, R"(
f32[2,4,6]{0: a; 1: b; 2: c} on mesh(a=2,b=2,c=2), 24 B per rank

rank 0    [0:1, 0:2, 0:3]
rank 1    [0:1, 0:2, 3:6]
rank 2    [0:1, 2:4, 0:3]
rank 3    [0:1, 2:4, 3:6]
rank 4    [1:2, 0:2, 0:3]
rank 5    [1:2, 0:2, 3:6]
rank 6    [1:2, 2:4, 0:3]
rank 7    [1:2, 2:4, 3:6]
)");
}

TEST(Draw, TensorsAndWhatTheirPartsTake) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor plain = Tensor::empty({5, 4}, DType::f32), rows = distribute(plain, mesh, Shard(0));
    EXPECT_EQ(describe_parts(plain), "f32[5,4], 80 B");
    EXPECT_EQ(draw(plain), "f32[5,4]\n");
    EXPECT_EQ(describe_parts(rows), "f32[5,4]{0: dp} on mesh(dp=3), 16 B to 32 B per rank");
    EXPECT_EQ(describe_parts(distribute(plain, mesh, Replicate())), "f32[5,4]{} on mesh(dp=3), 80 B per rank");
    EXPECT_EQ(draw(rows), draw(Spec::from(rows), {5, 4}));
    expect_error([&] { draw(Spec::from(rows), {}); }, {"{0: dp}", "dim 0", "[]"});
  });
}

}  // namespace
}  // namespace sherd::testing
