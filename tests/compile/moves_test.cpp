// Independent nodes may trade places: none of 300 drawn moves is refused, and each leaves meaning and bits. Oracle for
// independence: a comparison of all pairs of refs, byte by byte, that knows nothing of versions.
#include <gtest/gtest.h>

#include <atomic>

#include "compile/ir/analysis/meaning.h"
#include "compile/ir/analysis/order.h"
#include "compile/ir/verify.h"
#include "compile/passes/place_eager.h"
#include "compile/passes/ssa.h"
#include "tests/compile/plan_corruptions.h"
#include "tests/compile/recorded_step.h"

namespace sherd::testing {
namespace {

constexpr std::uint64_t kSeed = 20261123;
constexpr int kMoves = 60;  // of each of five programs

struct Move {
  std::size_t node, to;
};

// A random node, as far as a random step takes it past independent neighbours.
std::optional<Move> draw_independent(const Program& program, Dice& dice) {
  const std::size_t node = dice.below(program.nodes.size());
  const std::size_t most = 1 + dice.below(40);
  const bool up = dice.below(2) != 0;
  std::size_t to = node;
  while (to != (up ? 0 : program.nodes.size() - 1) && (up ? node - to : to - node) < most &&
         are_independent(program.nodes[node], program.nodes[up ? to - 1 : to + 1]))
    to += up ? static_cast<std::size_t>(-1) : 1;
  return to == node ? std::nullopt : std::optional(Move{node, to});
}

// Anywhere that the order allows; waits and collectives too. All ranks move alike or not at all.
std::optional<Move> draw_allowed(const Order& order, std::size_t nodes, Dice& dice) {
  const std::size_t node = dice.below(nodes);
  const std::size_t first = order.earliest(node), last = order.latest(node);
  const std::size_t to = first + dice.below(last - first + 1);
  return to == node ? std::nullopt : std::optional(Move{node, to});
}

int move_about(const RecordedStep& step, Dice& dice) {
  const Program& sound = step.complete();
  const Outcome expected = step.run(sound);
  Program program = sound;
  int moves = 0;
  for (int attempt = 0; moves < kMoves && attempt < 100 * kMoves; ++attempt) {
    const Order order(program);
    const bool is_independent = attempt % 2 == 0;
    const std::optional<Move> move =
        is_independent ? draw_independent(program, dice) : draw_allowed(order, program.nodes.size(), dice);
    if (!move) continue;
    EXPECT_TRUE(order.may_move(move->node, move->to)) << "node " << move->node << " to " << move->to;
    move_node(program, move->node, move->to);
    EXPECT_NO_THROW(verify(program)) << "node " << move->node << " to " << move->to;
    EXPECT_NO_THROW(check_same_meaning(sound, program));
    if (++moves % 10 == 0) { EXPECT_TRUE(step.run(program).same_bits_as(expected)) << "after move " << moves; }
  }
  return moves;
}

TEST(Program, IndependentNodesMoveFreely) {
  std::atomic<int> moves = 0;
  for_each_step([&](const StepCase& c, const RecordedStep& step) {
    Dice dice(kSeed);
    const int here = move_about(step, dice);
    if (step.group().rank() != 0) return;
    fmt::print("{}, seed {}: {} moves\n", c.name, kSeed, here);
    moves += here;
  });
  EXPECT_EQ(moves, 300);
}

// Values that moves have made to overlap in time, or that a queue still uses, keep storages of their own.
TEST(Program, MovedNodesGetTheirStoragesBack) {
  for_each_step([](const StepCase& c, const RecordedStep& step) {
    const Program& sound = step.complete();
    const Outcome expected = step.run(sound);
    Program program = sound;
    ssa(program);
    const std::size_t apart = program.values.size();
    Dice dice(kSeed);
    for (int moves = 0, attempt = 0; moves < kMoves && attempt < 100 * kMoves; ++attempt) {
      const std::optional<Move> move = draw_allowed(Order(program), program.nodes.size(), dice);
      if (!move) continue;
      move_node(program, move->node, move->to);
      ++moves;
    }
    EXPECT_NO_THROW(verify(program));
    place_eager(program);
    EXPECT_LT(program.values.size(), apart);
    EXPECT_NO_THROW(verify(program)) << c.name;
    EXPECT_NO_THROW(check_same_meaning(sound, program));
    EXPECT_TRUE(step.run(program).same_bits_as(expected));
  });
}

// Orders that are bounded by nothing but a write after a read, or by a loan.
TEST(Program, EveryBoundOfTheOrderIsOne) {
  for_each_step([&](const StepCase& c, const RecordedStep& step) {
    if (c.ranks > 1 && step.group().rank() != 0) return;
    const Program& sound = step.complete();
    const Order order(sound);
    int bounds = 0, held = 0;
    for (std::size_t node = 0; node < sound.nodes.size(); ++node) {
      if (order.earliest(node) == 0) continue;
      ++bounds;
      Program program = sound;
      move_node(program, node, order.earliest(node) - 1);
      try {
        verify(program);
      } catch (const Error&) { ++held; }
    }
    EXPECT_GE(held, bounds * 9 / 10) << "of " << bounds << " too many are legal moves that the order forbids";
  });
}

}  // namespace
}  // namespace sherd::testing
