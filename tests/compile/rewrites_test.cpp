// What a pass may do to a planned step is not refused: 300 drawn rewrites that keep what it does, of which every tenth
// is run too. Oracle for what may trade places: bytes (plan_corruptions.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "compile/ir/analysis/meaning.h"
#include "compile/ir/rewrite.h"
#include "compile/ir/verify.h"
#include "compile/passes/dead_nodes.h"
#include "tests/compile/plan_corruptions.h"
#include "tests/compile/recorded_step.h"

namespace sherd::testing {
namespace {

constexpr std::uint64_t kRewriteSeed = 20261201;
constexpr int kRewrites = 60;  // of each of five programs

bool swap_independent(Program& program, Dice& dice) {
  const std::size_t first = dice.below(program.nodes.size() - 1);
  GraphNode &a = program.nodes[first], &b = program.nodes[first + 1];
  if (!are_independent(a, b) || a.op->traits.waits || b.op->traits.waits) return false;
  std::swap(a, b);
  settle(program);
  return true;
}

bool has_another_writer(const Program& program, const GraphNode& writer, ValueId value) {
  return std::ranges::any_of(program.nodes, [&](const GraphNode& node) {
    const auto names = [&](const TensorRef& ref) { return ref.value == value; };
    return &node != &writer && (std::ranges::any_of(node.out, names) ||
                                std::any_of(node.in.begin(), node.in.begin() + node.num_mutated, names));
  });
}

// It is pure, and nothing else writes its results, which are temporaries.
bool may_be_repeated(const Program& program, const GraphNode& node) {
  return !node.op->traits.effect && !node.op->traits.collective && !node.op->traits.waits && node.num_mutated == 0 &&
         !node.accumulate && node.scratch == kNoValue && !node.out.empty() &&
         std::ranges::all_of(node.out, [&](const TensorRef& out) {
           return program.value(out.value).kind == ValueKind::temporary &&
                  !has_another_writer(program, node, out.value) &&
                  std::ranges::none_of(node.in, [&](const TensorRef& in) { return in.value == out.value; });
         });
}

// The clone stands right behind the node, where it finds what that has found; nobody reads it.
bool repeat(Program& program, Dice& dice) {
  const std::size_t at = dice.below(program.nodes.size());
  if (!may_be_repeated(program, program.nodes[at])) return false;
  GraphNode clone = clone_node(program, program.nodes[at]);
  program.nodes.insert(program.nodes.begin() + static_cast<std::ptrdiff_t>(at + 1), std::move(clone));
  settle(program);
  return true;
}

// A later node, which hands nothing to a queue, reads what the clone has made.
bool repeat_for_a_reader(Program& program, Dice& dice) {
  const std::size_t at = dice.below(program.nodes.size());
  if (!may_be_repeated(program, program.nodes[at])) return false;
  const TensorRef made = program.nodes[at].out[0];
  const auto names = [&](const TensorRef& ref) { return ref.value == made.value; };
  std::vector<std::size_t> readers;
  for (std::size_t i = at + 1; i < program.nodes.size(); ++i)
    if (const GraphNode& node = program.nodes[i]; std::ranges::any_of(node.in, names)) {
      if (node.op->traits.waits || node.op->traits.collective || node.op->traits.effect) return false;
      readers.push_back(i);
    }
  if (readers.empty()) return false;
  GraphNode clone = clone_node(program, program.nodes[at]);
  for (TensorRef& ref : program.nodes[readers[dice.below(readers.size())]].in)
    if (names(ref)) ref.value = clone.out[0].value;
  program.nodes.insert(program.nodes.begin() + static_cast<std::ptrdiff_t>(at + 1), std::move(clone));
  settle(program);
  return true;
}

// Temporaries trade their numbers.
bool rename(Program& program, Dice& dice) {
  const std::size_t count = program.values.size();
  const auto a = static_cast<ValueId>(dice.below(count)), b = static_cast<ValueId>(dice.below(count));
  if (a == b || program.value(a).kind != ValueKind::temporary || program.value(b).kind != ValueKind::temporary)
    return false;
  const auto traded = [&](ValueId& v) { v = v == a ? b : v == b ? a : v; };
  std::swap(program.value(a), program.value(b));
  for (Value& value : program.values) traded(value.home.value), traded(value.place);
  for (GraphNode& node : program.nodes) {
    for (TensorRef& ref : node.in) traded(ref.value);
    for (TensorRef& ref : node.out) traded(ref.value);
    for (ValueId& v : node.frees) traded(v);
    traded(node.scratch);
  }
  for (GraphResult& result : program.results) traded(result.local.value);
  for (SlotUpdate& update : program.updates) traded(update.result.local.value);
  return true;
}

bool drop_dead(Program& program, Dice&) {
  const std::size_t before = program.nodes.size();
  drop_dead_nodes(program);
  if (program.nodes.size() == before) return false;
  settle(program);
  return true;
}

struct Rewrite {
  const char* name;
  bool (*apply)(Program& program, Dice& dice);
};
constexpr Rewrite kKinds[] = {{"swaps independent nodes", swap_independent},
                              {"repeats a node for nobody", repeat},
                              {"repeats a node for a reader", repeat_for_a_reader},
                              {"renames values", rename},
                              {"drops dead nodes", drop_dead}};

// Ranks draw alike, and go on where all have done something.
int rewrite(const RecordedStep& step) {
  const Program sound = planned(step, 50);
  const Outcome expected = step.run(sound);
  Program program = sound;
  int done = 0;
  for (int attempt = 0; done < kRewrites && attempt < 200 * kRewrites; ++attempt) {
    const Rewrite& kind = kKinds[static_cast<std::size_t>(done) % std::size(kKinds)];
    Dice dice(kRewriteSeed + static_cast<std::uint64_t>(attempt));
    Program next = program;
    if (!step.on_all(kind.apply(next, dice))) continue;
    EXPECT_NO_THROW(verify(next)) << kind.name << ", attempt " << attempt;
    EXPECT_NO_THROW(check_same_meaning(sound, next)) << kind.name << ", attempt " << attempt;
    program = std::move(next);
    if (++done % 10 == 0) { EXPECT_TRUE(step.run(program).same_bits_as(expected)) << "after rewrite " << done; }
  }
  return done;
}

TEST(Program, RewritesThatKeepWhatAPlanDoesAreNotRefused) {
  std::atomic<int> rewrites = 0;
  for_each_step([&](const StepCase& c, const RecordedStep& step) {
    const int here = rewrite(step);
    if (step.group().rank() != 0) return;
    fmt::print("{}, seed {}: {} rewrites\n", c.name, kRewriteSeed, here);
    rewrites += here;
  });
  EXPECT_EQ(rewrites, 300);
}

}  // namespace
}  // namespace sherd::testing
