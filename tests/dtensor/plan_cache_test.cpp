// The plan cache of a rank's thread: it stays bounded, and plans are dropped when they are no longer the cheapest.
#include <gtest/gtest.h>

#include "dtensor/api.h"
#include "dtensor/propagate.h"
#include "dtensor/transition/redistribute.h"
#include "runtime/op/rows/ops.h"
#include "tests/dtensor/layouts.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// A program whose shapes change at every step.
TEST(PlanCache, StaysBoundedOverManyShapes) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Spec *whole = Spec::replicate(mesh), *cut = Spec::of(mesh, Shard(0));
    const std::int64_t made = plan_counts().made;
    constexpr std::int64_t kShapes = 10'000;
    for (std::int64_t i = 0; i < kShapes; ++i) {
      const Shape shape{i / 100 + 1, i % 100 + 1};
      // A sharded and a replicated operand: the replicated one is sharded on the way.
      const Tensor x = Tensor::distributed(shape, whole, full(shape, 2));
      const Tensor y = mul(redistribute(x, cut), x);
      ASSERT_EQ(y.layout(), cut);
      ASSERT_EQ(y.local().shape(), cut->local_shape(shape));
      ASSERT_LE(plan_counts().kept, kMaxPlans);
      ASSERT_LE(num_transitions(), kMaxTransitions);
      if (i % 500 == 0) { EXPECT_TRUE(same_bits(full_tensor(y), full(shape, 4))) << i; }
    }
    EXPECT_EQ(plan_counts().made - made, kShapes);
    EXPECT_GT(plan_counts().kept, 0u);
  });
}

TEST(PlanCache, PlansThatAreAskedForStay) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const auto ask = [&](std::int64_t columns) {
      const Tensor x = Tensor::distributed({2, columns}, Spec::of(mesh, Shard(0)), ones({1, columns}));
      add(x, x);
      return plan_counts().made;
    };
    ask(1);
    for (std::int64_t columns = 2; columns < 3 * static_cast<std::int64_t>(kMaxPlans); ++columns) {
      const std::int64_t made = ask(columns);
      ASSERT_EQ(ask(1), made) << "after " << columns;
    }
  });
}

TEST(PlanCache, PlansOfAnOldPriceAreForgotten) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"near", 2}, {"far", 2}});
    // Either the small operand moves along `far` or the large one along `near`.
    const Spec *by_near = Spec::of(mesh, {Shard(0), Replicate()}), *by_far = Spec::of(mesh, {Replicate(), Shard(0)});
    const Tensor whole = counting({64, 4});
    const Tensor a = laid_out(whole, by_near), b = laid_out(whole, by_far);
    const auto product = [&] { return linear(a, b); };
    const std::string first = product().layout()->describe();
    const std::int64_t made = plan_counts().made;
    EXPECT_EQ(product().layout()->describe(), first);
    EXPECT_EQ(plan_counts().made, made);
    set_axis_price("near", {.call_seconds = 1});
    EXPECT_EQ(plan_counts().kept, 0u);
    EXPECT_EQ(num_transitions(), 0u);
    product();
    EXPECT_EQ(plan_counts().made, made + 1);
  });
}

// A group that joins two axes is used once it exists, on all ranks.
TEST(PlanCache, PlansWithoutANewGroupAreForgotten) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}, {"pp", 1}});
    const Tensor whole = counting({8});
    const Spec *cut = Spec::of(mesh, {Shard(0), Shard(0), Replicate()}), *all = Spec::replicate(mesh);
    EXPECT_EQ(plan_transition(cut, all, {8}, DType::f32).steps.size(), 2u);
    mesh.flatten({"dp", "tp"});
    const Transition& joined = plan_transition(cut, all, {8}, DType::f32);
    EXPECT_EQ(joined.steps.size(), 1u);
    EXPECT_TRUE(same_bits(run_transition(laid_out(whole, cut).local(), {8}, joined), whole));
  });
}

}  // namespace
}  // namespace sherd::testing
