// Captured collectives along any dim: replays equal the eager calls bit for bit, values and gradients, and communicate
// as much.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "compile/ir/text/print.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/compile_once.h"
#include "tests/support/draw.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// x [2, 4, inner] -> gathered along dim 1, moved to shards along dim 2, reduced along dim 1, joined again. `group` is
// half of the ranks.
Tensor step(const Tensor& x, Slot& weight, ProcessGroup& group) {
  const std::int64_t inner = x.size(2);
  Tensor y = mul(x, weight.value());
  y = all_gather(y, group, 4 * group.size(), 1);
  y = all_to_all(reduce_scatter(y, group, ReduceKind::sum, 1), group, 1, 4 * group.size(), 2);
  y = all_gather(mul(y, y), group, inner, 2);
  const Tensor loss = all_reduce(sum(y), group);
  backward(loss);
  return loss;
}

// Two groups of the same ranks are two groups: a program says which, in words that are the same on all ranks.
TEST(CollectiveReplay, AProgramNamesTheGroupOfACollective) {
  run_ranks(4, [](const Group& world) {
    const std::vector<int> half = world->rank() % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    const Group dp = world->subgroup(half, "dp"), tp = world->subgroup(half, "tp");
    CompileOptions options;
    options.group = world;
    auto step = compile_once([&](const Tensor& x) { return add(all_reduce(x, *dp), all_reduce(x, *tp)); }, options);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(step(ones({2})).to_vector<float>(), (std::vector<float>{4, 4}));
    for (const bool neutral : {false, true}) {
      std::string text;
      for (const std::string& line : lines(step.graph()->program, {.rank_neutral = neutral})) text += line + "\n";
      EXPECT_NE(text.find("{group=dp#1 kind=0"), std::string::npos) << text;
      EXPECT_NE(text.find("{group=tp#2 kind=0"), std::string::npos) << text;
    }
  });
}

TEST(CollectiveReplay, IsBitwiseEagerInASubgroup) {
  run_ranks(4, [](const Group& world) {
    const std::vector<int> half = world->rank() % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    const Group group = world->subgroup(half);
    for (const std::int64_t inner : {5, 700}) {
      const auto at = static_cast<std::uint64_t>(world->rank());
      Slot eager("w", true), captured("w", true);
      for (Slot* slot : {&eager, &captured}) slot->set(draw(normal({inner}), DType::f32, 7));
      CompileOptions options;
      options.group = world;
      auto compiled = compile_once(
          [&](const Tensor& x) {
            captured.clear_grad();
            return step(x, captured, *group);
          },
          options);
      for (int i = 0; i < 5; ++i) {
        const Tensor x = draw(normal({2, 4, inner}), DType::f32, 100 + at * 10 + static_cast<std::uint64_t>(i));
        eager.clear_grad();
        CommCounter both;
        Tensor expected, actual;
        CommCounter::Item eagerly;
        {
          CommCounter counter;
          expected = step(x, eager, *group).detach();
          eagerly = counter.total();
        }
        const CommCounter counter;
        actual = compiled(x);
        EXPECT_TRUE(same_bits(actual, expected)) << compiled.why();
        EXPECT_TRUE(same_bits(captured.grad(), eager.grad()));
        EXPECT_EQ(counter.of(comm::CommOp::all_gather).calls, 3) << "two forward, one backward";
        EXPECT_EQ(counter.of(comm::CommOp::reduce_scatter).calls, 3);
        EXPECT_EQ(counter.of(comm::CommOp::all_to_all).calls, 2);
        EXPECT_EQ(counter.total(), eagerly);
        EXPECT_EQ(both.total().calls, 2 * eagerly.calls);
      }
      EXPECT_EQ(compiled.mode(), CompiledStep::Mode::replay) << compiled.why();
    }
  });
}

}  // namespace
}  // namespace sherd::testing
