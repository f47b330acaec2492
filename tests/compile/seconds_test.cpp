// What a program is predicted to take. Oracles: clocks played by hand.
#include "compile/ir/analysis/seconds.h"

#include <gtest/gtest.h>

#include "compile/passes/place_waits.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/group/group_names.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/op/rows/collective_attrs.h"
#include "runtime/op/rows/random_attrs.h"
#include "tests/compile/hand_made.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

// Programs of collectives, on a ghost of two ranks: each sums an argument, which computing may hide.
struct SumsOfTwo {
  RankScope scope{"rank 0 of 2", {.ghost = true}};
  std::shared_ptr<ProcessGroup> group = make_ghost_group(0, 2);
  Attrs attrs = CollectiveAttrs{.group = name_group(group)};

  // 0: %2 = all_reduce($0)   1: %3 = relu($1)   2: %4 = add(%2, %3)
  Program hidden() const {
    Program program = program_of(2, 3);
    add(program, op::all_reduce, {whole(0)}, {whole(2)}, attrs);
    add(program, op::relu, {whole(1)}, {whole(3)});
    add(program, op::add, {whole(2), whole(3)}, {whole(4)});
    finish(program, {whole(4)});
    return program;
  }
};

void expect_seconds(const StepSeconds& step, double seconds, double compute, double exposed) {
  EXPECT_DOUBLE_EQ(step.seconds, seconds);
  EXPECT_DOUBLE_EQ(step.compute, compute);
  EXPECT_DOUBLE_EQ(step.exposed, exposed);
}

TEST(StepSeconds, WithoutQueuesItIsTheSum) {
  Program program = program_of(1, 2);
  add(program, op::relu, {whole(0)}, {whole(1)});
  add(program, op::relu, {whole(1)}, {whole(2)});
  finish(program, {whole(2)});
  const NodeSeconds nodes[] = {{1}, {2.5}};
  const StepSeconds step = step_seconds(program, nodes);
  expect_seconds(step, 3.5, 3.5, 0);
  EXPECT_TRUE(step.busy.empty());
  expect_error([&] { step_seconds(program, std::span(nodes).first(1)); }, {"1 nodes", "program of 2"});
}

// The sum is asked for at 1 and through at 1 + q; relu ends at 5.
TEST(StepSeconds, WhatComputeDoesNotHideIsExposedWithAndWithoutWaitNodes) {
  const SumsOfTwo world;
  const Program recorded = world.hidden();
  Program placed = recorded;
  place_waits(placed);
  ASSERT_EQ(placed.nodes.size(), 4u) << "a wait before the addition";
  for (const auto& [queued, exposed] : {std::pair(3.0, 0.0), {4.0, 0.0}, {7.0, 3.0}}) {
    const NodeSeconds at_touch[] = {{1, queued}, {4}, {2}}, at_wait[] = {{1, queued}, {4}, {}, {2}};
    for (const StepSeconds& step : {step_seconds(recorded, at_touch), step_seconds(placed, at_wait)}) {
      expect_seconds(step, 7 + exposed, 7, exposed);
      ASSERT_EQ(step.busy.size(), 1u);
      EXPECT_DOUBLE_EQ(step.busy.at(std::string(kCollectiveQueue)), queued);
    }
  }
}

// Two sums on one queue, of which the second begins when the first is through: 1 + 5, then + 5; touched at 2 + 1.
TEST(StepSeconds, ItemsOfAQueueFollowEachOther) {
  const SumsOfTwo world;
  Program program = program_of(2, 3);
  add(program, op::all_reduce, {whole(0)}, {whole(2)}, world.attrs);
  add(program, op::all_reduce, {whole(1)}, {whole(3)}, world.attrs);
  add(program, op::add, {whole(2), whole(3)}, {whole(4)});
  finish(program, {whole(4)});
  const NodeSeconds nodes[] = {{1, 5}, {1, 5}, {1}};
  expect_seconds(step_seconds(program, nodes), 12, 3, 9);
  place_waits(program);
  ASSERT_EQ(program.nodes.size(), 4u) << "one wait covers both";
  const NodeSeconds with_wait[] = {{1, 5}, {1, 5}, {}, {1}};
  expect_seconds(step_seconds(program, with_wait), 12, 3, 9);
}

// A call that finds its queue full waits for the oldest item: the ninth for the first, and so on.
TEST(StepSeconds, AFullQueueHoldsTheCallerUp) {
  constexpr int kItems = static_cast<int>(kMaxCollectivesInFlight) + 2;
  const SumsOfTwo world;
  Program program = program_of(1, kItems);
  for (int i = 0; i < kItems; ++i) add(program, op::all_reduce, {whole(0)}, {whole(1 + i)}, world.attrs);
  finish(program, {whole(kItems)});
  const std::vector<NodeSeconds> nodes(static_cast<std::size_t>(kItems), NodeSeconds{1, 100});
  const StepSeconds step = step_seconds(program, nodes);
  // The first item runs from 1 to 101, the second to 201: the ninth call goes on at 101, the tenth at 201.
  expect_seconds(step, 1 + 100 * kItems, kItems, (101 - 8) + (201 - 102));
}

// What nobody waits for still belongs to the step.
TEST(StepSeconds, AStepEndsWhenItsQueuesDo) {
  const SumsOfTwo world;
  Program program = program_of(1, 1);
  add(program, op::all_reduce, {whole(0)}, {whole(1)}, world.attrs);
  finish(program, {whole(1)});
  const NodeSeconds nodes[] = {{1, 9}};
  expect_seconds(step_seconds(program, nodes), 10, 1, 0);
}

TEST(PriceKey, TellsCallsApartByWhatTheyCost) {
  Program program = program_of(2, 6);
  const auto key = [&](const Op& op, std::initializer_list<TensorRef> in, std::initializer_list<TensorRef> out,
                       const Attrs& attrs = {}, bool accumulate = false) {
    GraphNode& node = add(program, op, in, out, attrs);
    node.accumulate = accumulate;
    return price_key(program, node);
  };
  const TensorRef columns{0, DType::f32, kSquare, {1, 2}, 0}, low{0, DType::bf16, kSquare, {2, 1}, 0};
  const std::string plain = key(op::matmul, {whole(0), whole(1)}, {whole(2)});
  EXPECT_EQ(key(op::matmul, {whole(1), whole(0)}, {whole(3)}), plain) << "which values does not matter";
  std::vector<std::string> keys = {plain,
                                   key(op::add, {whole(0), whole(1)}, {whole(2)}),
                                   key(op::add, {whole(2), whole(1)}, {whole(2)}),  // in place
                                   key(op::matmul, {columns, whole(1)}, {whole(2)}),
                                   key(op::matmul, {low, low}, {whole(2)}),
                                   key(op::matmul, {row_of(0, 0), whole(1)}, {whole(2)}),
                                   key(op::matmul, {whole(0), whole(1)}, {whole(2)}, {}, true)};
  const auto dropout = [&](float p, std::uint64_t random, std::int64_t first) {
    return key(op::dropout, {whole(0)}, {whole(2)}, DropoutAttrs{.p = p, .key = random, .first = first});
  };
  EXPECT_EQ(dropout(0.5f, 1, 0), dropout(0.5f, 2, 8)) << "which numbers are drawn does not matter";
  keys.push_back(dropout(0.5f, 1, 0));
  keys.push_back(dropout(0.25f, 1, 0));
  for (std::size_t i = 0; i < keys.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(keys[i], keys[j]);
}

TEST(NodeSeconds, KeyThenRateOfTheRowThenOfItsKindThenADefault) {
  Program program = program_of(2, 2);
  add(program, op::matmul, {whole(0), whole(1)}, {whole(2)});  // 2 * 2 * 2 * 2 flops
  add(program, op::relu, {whole(2)}, {whole(3)});              // 32 bytes
  finish(program, {whole(3)});
  const auto seconds = [&](std::size_t node, const Prices& prices) {
    return seconds_of(program, node, prices).compute;
  };
  Prices prices;
  EXPECT_GT(seconds(0, prices), 0);
  prices.rows["flop of contraction"] = 3;
  EXPECT_NEAR(seconds(0, prices), 48, 1e-5);
  prices.rows["flop of matmul"] = 2;
  EXPECT_NEAR(seconds(0, prices), 32, 1e-5);
  prices.rows[price_key(program, program.nodes[0])] = 0.75;
  EXPECT_EQ(seconds(0, prices), 0.75);
  prices.rows["byte of pointwise"] = 0.5;
  EXPECT_NEAR(seconds(1, prices), 16, 1e-5);
  const StepSeconds step = step_seconds(program, prices);
  EXPECT_DOUBLE_EQ(step.seconds, seconds(0, prices) + seconds(1, prices));
  program.nodes.push_back(program.nodes[0]);  // a clone
  EXPECT_EQ(node_seconds(program, prices)[2].compute, 0.75);
}

TEST(NodeSeconds, TransfersAreOfTheLinkAndTakeTheirShareOfTheThread) {
  const SumsOfTwo world;
  const Program program = world.hidden();
  const std::string link = link_name(Movement::reduce_all, world.group->name());
  Prices prices;
  prices.links[link] = {.call_seconds = 1, .peer_seconds = 0.5, .bytes_per_second = 8};
  EXPECT_DOUBLE_EQ(seconds_of(program, 0, prices).queued, 1 + 2 * (0.5 + 1)) << "16 bytes, half of them each way";
  EXPECT_LT(seconds_of(program, 0, prices).compute, 1e-5);
  prices.links["work " + link] = {.call_seconds = 0.25, .peer_seconds = 0, .bytes_per_second = 16};
  EXPECT_NEAR(seconds_of(program, 0, prices).compute, 0.25 + 1, 1e-5);
  const auto transfer = transfer_of(program.nodes[0]);
  ASSERT_TRUE(transfer.has_value());
  EXPECT_EQ(transfer->ranks, 2);
  EXPECT_EQ(transfer->bytes, 16);
  EXPECT_FALSE(transfer_of(program.nodes[1]).has_value());
}

}  // namespace
}  // namespace sherd::testing
