// Versions, uses, order, loans and numbers of programs that can be read at a glance.
#include "compile/ir/analysis/order.h"

#include <gtest/gtest.h>

#include "compile/ir/analysis/loans.h"
#include "compile/ir/analysis/uses.h"
#include "compile/ir/verify.h"
#include "compile/passes/place_waits.h"
#include "compile/passes/ssa.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/op/rows/collective_attrs.h"
#include "runtime/op/rows/optimizer_attrs.h"
#include "runtime/op/rows/wait_attrs.h"
#include "runtime/op/unit/unit.h"
#include "tests/compile/hand_made.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

std::vector<int> list(std::span<const int> nodes) { return {nodes.begin(), nodes.end()}; }

// 0: %2 = add($0, $1)  1: %3 = relu(%2)  2: %2 = relu(%2)  3: %4 = add(%2, %3)
Program reused() {
  Program program = program_of(2, 3);
  add(program, op::add, {whole(0), whole(1)}, {whole(2)});
  add(program, op::relu, {whole(2)}, {whole(3)});
  add(program, op::relu, {whole(2)}, {whole(2)});
  add(program, op::add, {whole(2), whole(3)}, {whole(4)});
  finish(program, {whole(4)});
  return program;
}

TEST(Versions, AWriteMakesOneAndTheNextReadsIt) {
  const Program program = reused();
  const Versions versions(program);
  ASSERT_EQ(versions.all().size(), 5u + 4u) << "one of each value before the step, one of each write";
  const auto uses = versions.uses_of(3);
  ASSERT_EQ(uses.size(), 3u);
  EXPECT_EQ(versions[versions.parts_of(uses[0])[0].version].node, 2);
  EXPECT_EQ(versions[versions.parts_of(uses[1])[0].version].node, 1);
  const Uses readers(versions);
  const VersionId first = versions.uses_of(0)[2].makes;
  ASSERT_EQ(readers.readers_of(first).size(), 2u);
  EXPECT_EQ(readers.readers_of(first)[0].node, 1);
  EXPECT_EQ(readers.readers_of(first)[1].node, 2);
}

TEST(Order, WritesAfterReadsAndAfterWrites) {
  const Order order(reused());
  EXPECT_EQ(list(order.before(1)), (std::vector<int>{0}));
  EXPECT_EQ(list(order.before(2)), (std::vector<int>{0, 1}));
  EXPECT_EQ(list(order.before(3)), (std::vector<int>{1, 2}));
  EXPECT_FALSE(order.may_move(2, 1));
  Program apart = reused();
  ssa(apart);
  EXPECT_TRUE(Order(apart).may_move(2, 1)) << "the write after the read was donation's";
  move_node(apart, 2, 1);
  verify(apart);
}

TEST(Order, PartsOfOneBufferAreIndependent) {
  Program program = program_of(1, 2);
  add(program, op::relu, {row_of(0, 0)}, {row_of(1, 0)});
  add(program, op::relu, {row_of(0, 1)}, {row_of(1, 1)});
  add(program, op::relu, {row_of(1, 0)}, {row_of(2, 0)});
  add(program, op::relu, {row_of(1, 1)}, {row_of(2, 1)});
  finish(program, {whole(2)});
  const Order order(program);
  EXPECT_EQ(list(order.before(3)), (std::vector<int>{1}));
  EXPECT_TRUE(order.may_move(0, 0) && order.may_move(1, 0) && order.may_move(2, 1) && order.may_move(3, 2));
  EXPECT_FALSE(order.may_move(3, 1));
  EXPECT_FALSE(order.may_move(2, 0));
  move_node(program, 3, 2);
  verify(program);
}

// Two slices of one batch overlap in memory: what is written into one is read from the other.
TEST(Order, ArgumentsMayShareBytes) {
  Program program = program_of(2, 1);
  program.arguments[1].shares = 0;
  program.arguments[1].shift = 8;
  add(program, op::relu, {row_of(1, 0)}, {row_of(2, 0)});
  add(program, op::relu, {row_of(0, 0)}, {row_of(0, 1)});
  finish(program, {row_of(2, 0)});
  EXPECT_FALSE(Order(program).may_move(1, 0));
  move_node(program, 1, 0);
  expect_error([&] { verify(program); }, {"1 writes of its bytes, it was recorded after 0"});
}

// adamw before the node that writes its clip scale.
TEST(Verify, ANodeReadsTheVersionItWasRecordedToRead) {
  Program program = program_of(7, 0);
  const Shape scalar{};
  const TensorRef scale{6, DType::f32, scalar, {}, 0}, number{5, DType::f32, scalar, {}, 0};
  add(program, op::mul, {number, number}, {scale});
  GraphNode& adamw = add(program, op::adamw, {whole(0), whole(1), whole(2), whole(3), number, number, scale}, {},
                         AdamWAttrs{.count = 1});
  adamw.num_mutated = 3;
  finish(program, {});
  verify(program);
  EXPECT_FALSE(Order(program).may_move(1, 0));
  move_node(program, 1, 0);
  expect_error([&] { verify(program); },
               {"input 6 comes after 0 writes of its bytes, it was recorded after 1", "adamw"});
}

// A count of writes does not tell which: here as many come before the node in the middle, of other bytes.
TEST(Verify, PartsAreWrittenByTheNodesThatWroteThem) {
  Program program = program_of(2, 2);
  add(program, op::relu, {whole(0)}, {whole(2)});
  add(program, op::exp, {row_of(1, 0)}, {row_of(2, 0)});
  add(program, op::neg, {whole(2)}, {whole(3)});
  add(program, op::exp, {row_of(1, 1)}, {row_of(2, 1)});
  finish(program, {whole(2), whole(3)});
  verify(program);
  EXPECT_GE(program.nodes[2].numbers[0], kMixed);
  std::swap(program.nodes[1], program.nodes[3]);
  expect_error([&] { verify(program); }, {"input 0 comes after other writes of its bytes", "neg"});
}

TEST(Verify, NumbersDoNotChangeUnderLegalMoves) {
  Program program = program_of(1, 2);
  add(program, op::relu, {row_of(0, 0)}, {row_of(1, 0)});
  add(program, op::relu, {row_of(0, 1)}, {row_of(1, 1)});
  add(program, op::neg, {whole(1)}, {whole(2)});
  finish(program, {whole(2)});
  std::swap(program.nodes[0], program.nodes[1]);
  verify(program);
}

TEST(Verify, ScratchIsATemporaryOfEnoughBytes) {
  Program program = program_of(1, 2);
  const TensorRef sum{1, DType::f64, {}, {}, 0};
  add(program, op::power_sum, {whole(0)}, {sum}, PowerSumAttrs{2}).scratch = 2;
  finish(program, {sum});
  verify(program);
  Program small = program;
  small.value(2).bytes = 4;
  expect_error([&] { verify(small); }, {"scratch has 4 bytes, the row asks for 8"});
  program.nodes[0].scratch = 1;
  expect_error([&] { verify(program); }, {"value 1 is none"});
}

TEST(Verify, RowsSayWhatTheyWriteAndCarry) {
  Program program = reused();
  program.nodes[1].num_mutated = 1;
  expect_error([&] { verify(program); }, {"a node writes 1 of its inputs, its row 0"});
  program = reused();
  program.nodes[1].attrs = PowerSumAttrs{2};
  expect_error([&] { verify(program); }, {"attributes are not those of relu"});
  program = reused();
  program.nodes[1].numbers.pop_back();
  expect_error([&] { verify(program); }, {"has 1 numbers", "it needs 2"});
}

// ---- queues ----

Metas infer_same(const InferCall& call) { return {{.shape = call.in[0].shape, .dtype = call.in[0].dtype}}; }
constinit const Op kSend{.name = "send",
                         .infer = infer_same,
                         .traits = {.collective = true, .issues = true},
                         .no_gradient = "test",
                         .queue = [](AttrsView) { return QueueUse{"link", 2}; }};

std::vector<std::string> rows_of_program(const Program& program) {
  std::vector<std::string> rows;
  for (const GraphNode& node : program.nodes) {
    rows.emplace_back(node.op->name);
    for (const TensorRef& ref : node.in)
      if (node.op->traits.waits) rows.back() += fmt::format(" {}", ref.value);
    for (const ValueId v : node.frees) rows.back() += fmt::format(" frees {}", v);
  }
  return rows;
}

// 0: %1 = relu($0)  1: %2 = send(%1)  2: %3 = relu($0)  3: %4 = add(%2, %3)
Program sending() {
  Program program = program_of(1, 4);
  add(program, op::relu, {whole(0)}, {whole(1)});
  add(program, kSend, {whole(1)}, {whole(2)});
  add(program, op::relu, {whole(0)}, {whole(3)});
  add(program, op::add, {whole(2), whole(3)}, {whole(4)});
  finish(program, {whole(4)});
  return program;
}

TEST(Waits, StandBeforeTheFirstTouchAndKeepBytesAlive) {
  Program program = sending();
  EXPECT_EQ(program.nodes[1].frees, std::vector<ValueId>{1}) << "at its last mention";
  place_waits(program);
  EXPECT_EQ(rows_of_program(program),
            (std::vector<std::string>{"relu", "send", "relu", "wait 2 frees 1", "add frees 2 frees 3"}));
  verify(program);
  const Order order(program);
  EXPECT_TRUE(order.may_move(3, 2)) << "waiting early is slow and sound";
  EXPECT_FALSE(order.may_move(3, 1));
  EXPECT_FALSE(order.may_move(3, 4));
  EXPECT_TRUE(order.may_move(2, 0));
}

TEST(Waits, BytesOfAQueueLiveUntilItsWait) {
  Program program = sending();
  place_waits(program);
  Program early = program;
  early.nodes[3].frees.clear();
  early.nodes[1].frees = {1};
  expect_error([&] { verify(early); }, {"a queue still uses value 1, which the node frees", "send"});
  Program late = program;
  move_node(late, 3, 4);
  expect_error([&] { verify(late); }, {"a queue still uses bytes that the node touches", "add", "lent by", "1: "});
  program.nodes.erase(program.nodes.begin() + 3);
  compute_lifetimes(program);
  expect_error([&] { verify(program); }, {"a queue still uses bytes that the node touches"});
}

TEST(Waits, AWriterWaitsForReadersAndAFullQueueForItsOldest) {
  Program program = program_of(1, 5);
  add(program, op::relu, {whole(0)}, {whole(1)});
  add(program, kSend, {whole(1)}, {whole(2)});
  add(program, op::relu, {whole(0)}, {whole(1)});  // over what is being sent
  add(program, kSend, {whole(1)}, {whole(3)});
  add(program, kSend, {whole(0)}, {whole(4)});
  add(program, kSend, {whole(0)}, {whole(5)});  // the third at a time
  finish(program, {whole(2), whole(3), whole(4)});
  place_waits(program);
  EXPECT_EQ(rows_of_program(program), (std::vector<std::string>{"relu", "send", "wait 2", "relu", "send", "send",
                                                                "wait 3 frees 1", "send", "wait 5 frees 5"}));
  verify(program);
}

// Two queues, of which each holds one item: who writes what the other uses comes after it, and a wait for it ends both.
TEST(Waits, AnItemIsOverWithTheOneThatFollowsIt) {
  static constinit const Op send_a{.name = "send_a",
                                   .infer = infer_same,
                                   .traits = {.collective = true, .issues = true},
                                   .no_gradient = "test",
                                   .queue = [](AttrsView) { return QueueUse{"a", 1}; }};
  static constinit const Op send_b{.name = "send_b",
                                   .infer = infer_same,
                                   .traits = {.collective = true, .issues = true},
                                   .no_gradient = "test",
                                   .queue = [](AttrsView) { return QueueUse{"b", 1}; }};
  Program program = program_of(1, 3);
  add(program, op::relu, {whole(0)}, {whole(2)});
  add(program, send_a, {whole(0)}, {whole(1)});
  add(program, send_b, {whole(2)}, {whole(1)});
  add(program, send_b, {whole(2)}, {whole(0)});
  add(program, send_a, {whole(2)}, {whole(3)});
  finish(program, {whole(0), whole(1), whole(3)});
  place_waits(program);
  verify(program);
  EXPECT_EQ(rows_of_program(program),
            (std::vector<std::string>{"relu", "send_a", "send_b", "wait 1", "send_b", "send_a"}));
  // Its own queue is full too, and only who follows it knows the first item.
  Program longer = program_of(1, 3);
  add(longer, op::relu, {whole(0)}, {whole(2)});
  add(longer, send_a, {whole(0)}, {whole(1)});
  static constinit const Op send_c{.name = "send_c",
                                   .infer = infer_same,
                                   .traits = {.collective = true, .issues = true},
                                   .no_gradient = "test",
                                   .queue = [](AttrsView) { return QueueUse{"c", 8}; }};
  add(longer, send_c, {whole(2)}, {whole(1)});
  add(longer, send_c, {whole(2)}, {whole(0)});
  add(longer, send_a, {whole(2)}, {whole(3)});
  finish(longer, {whole(0), whole(1), whole(3)});
  place_waits(longer);
  verify(longer);
  EXPECT_EQ(rows_of_program(longer),
            (std::vector<std::string>{"relu", "send_a", "send_c", "send_c", "wait 0", "send_a"}));
  // What is read of the first item's rests on a wait for the second, so they go on sharing bytes.
  Program shared = program_of(1, 4);
  add(shared, op::relu, {whole(0)}, {whole(1)});
  add(shared, send_a, {whole(1)}, {whole(2)});
  add(shared, send_b, {whole(0)}, {whole(1)});
  add(shared, op::relu, {whole(1)}, {whole(3)});
  add(shared, op::relu, {whole(2)}, {whole(4)});
  finish(shared, {whole(3), whole(4)});
  place_waits(shared);
  EXPECT_EQ(rows_of_program(shared),
            (std::vector<std::string>{"relu", "send_a", "send_b", "wait 1", "relu frees 1", "relu frees 2"}));
  ssa(shared);
  verify(shared);
}

TEST(Waits, ACallMaySubmitSeveralItems) {
  static constinit const Op send_two{.name = "send_two",
                                     .infer = infer_same,
                                     .traits = {.collective = true, .issues = true},
                                     .no_gradient = "test",
                                     .queue = [](AttrsView) { return QueueUse{"link", 3, 2}; }};
  Program program = program_of(1, 3);
  for (const ValueId out : {1, 2, 3}) add(program, send_two, {whole(0)}, {whole(out)});
  finish(program, {whole(1), whole(2), whole(3)});
  place_waits(program);
  EXPECT_EQ(rows_of_program(program),
            (std::vector<std::string>{"send_two", "wait 1", "send_two", "wait 2", "send_two"}));
  verify(program);
}

// What a fetch brings and nobody reads: its bytes are dropped once they are there.
TEST(Waits, WhatIsWrittenInPlaceForNobodyIsWaitedForAtOnce) {
  static constinit const Op bring{.name = "bring",
                                  .infer = [](const InferCall&) { return Metas{}; },
                                  .traits = {.issues = true, .effect = true},
                                  .no_gradient = "test",
                                  .mutated = [](const InferCall&) { return 1; },
                                  .queue = [](AttrsView) { return QueueUse{"link", 2}; }};
  Program program = program_of(1, 2);
  add(program, op::relu, {whole(0)}, {whole(1)});
  add(program, bring, {whole(1)}, {}).num_mutated = 1;
  add(program, op::relu, {whole(0)}, {whole(2)});
  finish(program, {whole(2)});
  place_waits(program);
  EXPECT_EQ(rows_of_program(program), (std::vector<std::string>{"relu", "bring", "wait 1 frees 1", "relu"}));
  verify(program);
}

// Sums and averages of one call go one after the other.
TEST(Waits, AReductionOfSumsAndAveragesIsTwoItems) {
  UnitReduceAttrs attrs{.unit = UnitLayout::intern({.name = "two", .shard_axis = "world", .shards = 2}),
                        .in_flight = 1};
  for (const auto& [kinds, items] :
       {std::pair(std::vector{ReduceKind::avg, ReduceKind::avg}, 1u), std::pair(std::vector{ReduceKind::sum}, 1u),
        std::pair(std::vector{ReduceKind::sum, ReduceKind::avg, ReduceKind::sum}, 2u)}) {
    attrs.pieces.clear();
    for (const ReduceKind kind : kinds) attrs.pieces.push_back({.kind = kind});
    EXPECT_EQ(op::reduce_start.queue(attrs).items, items);
  }
}

TEST(Waits, WhatIsLentAtTheEndIsLeftToTheQueue) {
  Program program = program_of(1, 2);
  add(program, op::relu, {whole(0)}, {whole(1)});
  add(program, kSend, {whole(1)}, {whole(2)});
  finish(program, {whole(2)});
  place_waits(program);
  EXPECT_EQ(rows_of_program(program), (std::vector<std::string>{"relu", "send"}));
  EXPECT_EQ(lent_at_end(program), (std::vector<ValueId>{1, 2}));
  verify(program);
}

// The second kernel of a queue waits for the first itself; a wait for the second ends both, so their order is seen.
TEST(Order, GroupsShareAQueue) {
  const auto world = make_ghost_group(0, 4), other = make_ghost_group(0, 2);
  Program program = program_of(2, 4);
  add(program, op::all_reduce, {whole(0)}, {whole(2)}, CollectiveAttrs{.group = name_group(world)});
  add(program, op::all_reduce, {whole(1)}, {whole(3)}, CollectiveAttrs{.group = name_group(other)});
  add(program, op::relu, {whole(3)}, {whole(4)});
  add(program, op::relu, {whole(2)}, {whole(5)});
  finish(program, {whole(4), whole(5)});
  place_waits(program);
  EXPECT_EQ(rows_of_program(program),
            (std::vector<std::string>{"all_reduce", "all_reduce", "wait 3", "relu frees 3", "relu frees 2"}));
  verify(program);
  const Order order(program);
  EXPECT_FALSE(order.may_move(1, 0)) << "on another rank they may stay as they are";
  for (std::size_t node = 0; node < program.nodes.size(); ++node)
    for (std::size_t to = 0; to < program.nodes.size(); ++to) {
      Program moved = program;
      move_node(moved, node, to);
      bool is_sound = true;
      try {
        verify(moved);
      } catch (const Error&) { is_sound = false; }
      EXPECT_EQ(order.may_move(node, to), is_sound) << "node " << node << " to " << to;
    }
}

TEST(Order, CallsOfOneLaneKeepTheirOrder) {
  Program program = program_of(2, 3);
  add(program, kSend, {whole(0)}, {whole(2)});
  add(program, op::relu, {whole(0)}, {whole(4)});
  add(program, kSend, {whole(1)}, {whole(3)});
  finish(program, {whole(2), whole(3), whole(4)});
  EXPECT_TRUE(Order(program).may_move(2, 1));
  EXPECT_FALSE(Order(program).may_move(2, 0));
  move_node(program, 2, 0);
  expect_error([&] { verify(program); }, {"0 calls on its lane come before it, it was recorded after 1"});
}

}  // namespace
}  // namespace sherd::testing
