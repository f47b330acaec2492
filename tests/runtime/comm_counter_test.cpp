// Counting what a scope communicates. Oracle: the calls that are written here, and bytes by hand.
#include "runtime/comm/group/comm_counter.h"

#include <gtest/gtest.h>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/count_collective.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using comm::CommOp;
using Group = std::shared_ptr<ProcessGroup>;
using Item = CommCounter::Item;

TEST(CommCounter, CountsRowsByKindOpAndModule) {
  run_ranks(2, [](const Group& group) {
    const Tensor x = ones({4, 3});  // f32: 48 bytes
    RankContext& context = RankContext::current();
    all_reduce(x, *group);  // before the scope
    CommCounter counter;
    context.module_path = context.intern("blocks.1.mlp");
    all_reduce(x, *group);
    all_reduce(x, *group);
    context.module_path = context.intern("blocks.10");
    all_gather(x, *group, 6, 1);
    reduce_scatter(x, *group);
    context.module_path = nullptr;
    all_to_all(x, *group, 1, 6, 0);
    broadcast_from(x, *group, 0);
    EXPECT_EQ(counter.of(CommOp::all_reduce), (Item{2, 96}));
    EXPECT_EQ(counter.of(CommOp::all_gather), (Item{1, 96}));
    EXPECT_EQ(counter.of(CommOp::reduce_scatter), (Item{1, 48}));
    EXPECT_EQ(counter.of(CommOp::all_to_all), (Item{1, 48}));
    EXPECT_EQ(counter.of(CommOp::broadcast), (Item{1, 48}));
    EXPECT_EQ(counter.total(), (Item{6, 336}));
    EXPECT_EQ(counter.of_op("all_reduce"), (Item{2, 96}));
    EXPECT_EQ(counter.of_op("matmul"), Item{});
    EXPECT_EQ(counter.of_module("blocks.1"), (Item{2, 96})) << "blocks.10 is another one";
    EXPECT_EQ(counter.of_module("blocks"), (Item{4, 240}));
    counter.clear();
    EXPECT_EQ(counter.total(), Item{});
    EXPECT_EQ(counter.describe(), "no communication");
  });
}

TEST(CommCounter, InnerAndOuterScopesCount) {
  run_ranks(3, [](const Group& group) {
    CommCounter outer;
    {
      CommCounter inner;
      const CommCause cause("matmul");
      all_reduce(ones({2}), *group);
      EXPECT_EQ(inner.total(), (Item{1, 8}));
      EXPECT_EQ(inner.of_op("matmul"), (Item{1, 8}));
    }
    all_reduce(ones({2}), *group);
    EXPECT_EQ(outer.total(), (Item{2, 16}));
    EXPECT_EQ(outer.of_op("matmul"), (Item{1, 8}));
    EXPECT_EQ(outer.of_op("all_reduce"), (Item{2, 16}));
    EXPECT_EQ(outer.describe(),
              "collective      ranks   calls     bytes  op                     module\n"
              "all_reduce          3       1       8 B  all_reduce for matmul\n"
              "all_reduce          3       1       8 B  all_reduce\n"
              "total                       2      16 B\n");
  });
}

TEST(CommCounter, BackwardCountsForTheModuleOfItsForward) {
  run_ranks(2, [](const Group& group) {
    RankContext& context = RankContext::current();
    Slot slot("w", true);
    slot.set(ones({3}));
    CommCounter counter;
    context.module_path = context.intern("head");
    const Tensor y = all_gather(slot.value(), *group, 6);
    context.module_path = nullptr;
    backward(sum(y));
    EXPECT_EQ(counter.of_module("head"), (Item{2, 48}));
    EXPECT_EQ(counter.of(CommOp::reduce_scatter), (Item{1, 24}));
  });
}

TEST(CommCounter, OneRankCommunicatesNothing) {
  run_ranks(2, [](const Group& world) {
    const std::vector<int> self{world->rank()};
    const Group alone = world->subgroup(self);
    CommCounter counter;
    all_reduce(ones({3}), *alone);
    all_gather(ones({3}), *alone, 3);
    EXPECT_EQ(counter.total(), Item{});
  });
}

}  // namespace
}  // namespace sherd::testing
