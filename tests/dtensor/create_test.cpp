// Tensors made in a layout equal those that one rank makes.
#include "dtensor/create.h"

#include <gtest/gtest.h>

#include "dtensor/api.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/op/rows/ops.h"
#include "tests/dtensor/one_rank.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

TEST(Create, F144_ValuesAreThoseOfOneRankInEveryLayout) {
  on_meshes([](const DeviceMesh& mesh) {
    const Shape shape{5, 3, 7};
    const Tensor step = Tensor::scalar(3, DType::i64);
    for (const Spec* spec : all_layouts(mesh, {Replicate(), Shard(0), Shard(1), Shard(2)})) {
      const CommCounter counter;
      const Tensor normal = random_normal(shape, 17, 1, 2, spec, 5, DType::f32, step);
      const Tensor uniform = random_uniform(shape, 17, -1, 1, spec, 0, DType::bf16);
      const Tensor sevens = full(shape, 7, spec);
      EXPECT_EQ(counter.describe(), "no communication");
      EXPECT_EQ(normal.layout(), spec);
      EXPECT_TRUE(same_bits(full_tensor(normal), random_normal(shape, 17, 1, 2, 5, DType::f32, step)));
      EXPECT_TRUE(same_bits(full_tensor(uniform), random_uniform(shape, 17, -1, 1, 0, DType::bf16)));
      EXPECT_TRUE(same_bits(full_tensor(sevens), full(shape, 7)));
    }
  });
}

TEST(Create, LayoutsThatNothingCanBeMadeInAreRefused) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    expect_error([&] { zeros({5, 3}, Spec::of(mesh, {Partial(), Replicate()})); }, {"{+dp}", "by ops only"});
    expect_error([&] { ones({4}, Spec::of(mesh, {Replicate(), Shard(1)})); }, {"{1: tp}", "dim 1", "[4]"});
  });
}

// Whether attributes can describe a shard does not depend on the rank that holds it.
TEST(Create, PartsThatCannotBeDrawnAreRefusedOnAllRanks) {
  run_ranks(8, [](const Group& group) {
    const DeviceMesh mesh(group, {{"a", 2}, {"b", 2}, {"c", 2}});
    const Spec* spec = Spec::of(mesh, {Shard(1), Shard(2), Shard(3)});
    expect_error([&] { random_normal({4, 3, 4, 4}, 17, 0, 1, spec); }, {"at most two dims", "{1: a; 2: b; 3: c}"});
    expect_error([&] { dropout(zeros({4, 3, 4, 4}, spec), 0.5, 3); }, {"dropout", "at most two dims"});
  });
}

}  // namespace
}  // namespace sherd::testing
