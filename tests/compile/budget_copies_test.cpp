// A budget moves activations to a file and back: bits as recorded, bytes as predicted, where prices say that it pays.
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "compile/compile.h"
#include "compile/ir/analysis/meaning.h"
#include "compile/ir/analysis/seconds.h"
#include "compile/ir/homes.h"
#include "compile/ir/rewrite.h"
#include "compile/ir/verify.h"
#include "compile/passes/budget/choose.h"
#include "compile/passes/place_waits.h"
#include "compile/run/fit.h"
#include "compile/run/footprint.h"
#include "compile/run/homes.h"
#include "runtime/op/rows/ops.h"
#include "tests/compile/corruptions.h"
#include "tests/compile/hand_made.h"
#include "tests/compile/recorded_step.h"
#include "tests/compile/training_step.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

std::int64_t copies_of(const Program& program) {
  return std::ranges::count_if(program.nodes, [](const GraphNode& node) { return node.op == &op::copy_start; });
}

std::int64_t total(const CategoryBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

TEST(BudgetCopies, LeaveTheSameBitsInThePredictedBytes) {
  const std::vector<Pass> passes = standard_passes();
  const Prices prices = prices_of_cheap_copies();
  int with_copies = 0;
  for_each_step([&](const StepCase& c, const RecordedStep& step) {
    CategoryBytes others = RankContext::current().allocator().accounting().current();
    const Footprint alone = footprint_of(step.complete());
    for (std::size_t i = 0; i < others.size(); ++i) others[i] -= alone.before[i];
    const std::int64_t recorded = alone.peak + total(others);
    const Outcome expected = step.run(step.recorded());
    for (const int percent : {97, 93, 89, 75}) {
      FitOptions options{.budget = fmt::format("{}%", percent),
                         .passes = passes,
                         .beside = total(others),
                         .group = &step.group(),
                         .prices = &prices,
                         .moves_out = true};
      Fitted fitted;
      try {
        fitted = fit_program(step.recorded(), options);
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("below the least that the step can hold"), std::string::npos);
        continue;
      }
      SCOPED_TRACE(fmt::format("{}%: {}", percent, fmt::join(fitted.notes, "; ")));
      EXPECT_NO_THROW(check_round_trip(fitted.program));
      const Outcome outcome = step.run(fitted.program);
      EXPECT_TRUE(outcome.same_bits_as(expected));
      EXPECT_LE(outcome.peak, recorded * percent / 100);
      CategoryBytes predicted = fitted.footprint.most;
      for (std::size_t i = 0; i < predicted.size(); ++i) predicted[i] += others[i];
      EXPECT_EQ(describe(predicted), describe(outcome.peaks));
      EXPECT_EQ(fitted.footprint.peak + total(others), outcome.peak);
      if (copies_of(fitted.program) > 0 && c.ranks == 1) ++with_copies;
    }
  });
  EXPECT_GE(with_copies, 3) << "budgets of steps of one rank that copies keep";
}

TEST(BudgetCopies, AreNotMadeWhereComputingAgainIsCheaper) {
  const std::vector<Pass> passes = standard_passes();
  Prices prices;
  prices.rows[copy_key(CopyKind::evict)] = prices.rows[copy_key(CopyKind::fetch)] = 1;
  for_each_step([&](const StepCase& c, const RecordedStep& step) {
    if (std::string_view(c.name) != "mini") return;  // activations of the others are no part of their peaks
    const FitOptions options{.budget = "93%", .passes = passes, .prices = &prices, .moves_out = true};
    const Program program = fit_program(step.recorded(), options).program;
    EXPECT_EQ(copies_of(program), 0);
    EXPECT_GT(program.nodes.size(), step.complete().nodes.size());
  });
}

// What nothing computes again, as what a collective has made, may leave.
TEST(BudgetCopies, ReachLessThanComputingAgainDoes) {
  const std::vector<Pass> passes = standard_passes();
  for_each_step([&](const StepCase& c, const RecordedStep& step) {
    const auto least = [&](bool moves_out) {
      FitOptions options{.budget = "1%", .passes = passes, .group = &step.group(), .moves_out = moves_out};
      std::string text;
      try {
        fit_program(step.recorded(), options);
      } catch (const Error& error) { text = error.what(); }
      const auto end = text.find(" bytes)"), from = text.rfind('(', end) + 1;
      EXPECT_NE(end, std::string::npos) << text;
      options.budget = text.substr(from, end - from);
      const Fitted fitted = fit_program(step.recorded(), options);
      EXPECT_TRUE(step.run(fitted.program).same_bits_as(step.run(step.recorded())));
      return std::stoll(text.substr(from, end - from));
    };
    if (c.ranks > 1) return;
    const std::int64_t with = least(true), without = least(false);
    EXPECT_LE(with, without);
  });
}

TEST(BudgetCopies, HaveMeasuredPrices) {
  const TempDir folder;
  const RankScope rank;
  OffloadHomes homes(Device::cpu(), folder.path());
  Accounting& account = RankContext::current().allocator().accounting();
  const CategoryBytes before = account.current();
  account.reset_peaks();
  Prices prices;
  measure_copies(homes, 1, 1 << 20, prices);
  for (const CopyKind kind : {CopyKind::evict, CopyKind::fetch}) {
    EXPECT_GT(copy_seconds(prices, kind, 1 << 20).queued, 0);
    EXPECT_EQ(copy_seconds(prices, kind, 2 << 20).queued, 2 * copy_seconds(prices, kind, 1 << 20).queued);
  }
  EXPECT_EQ(copy_seconds(prices, CopyKind::refresh, 1).queued, copy_seconds(prices, CopyKind::fetch, 1).queued);
  EXPECT_EQ(account.current(), before);
  EXPECT_LE(account.total_peak() - total(before), 1 << 20);
}

// As a program of a user's does it: recorded by its first calls, then within its bytes.
TEST(BudgetCopies, AreOfACompiledStep) {
  const TempDir folder;
  const RankScope rank;
  Accounting& account = RankContext::current().allocator().accounting();
  GptTraining eager, within;
  CompiledStep step([&](std::span<const Tensor> in) { return within.step(in); },
                    {.memory_budget = "97%", .activations_folder = folder.path()});
  for (int i = 0; i < 6; ++i) {
    nn::set_step(i);
    const std::vector<Tensor> expected = eager.step(eager.batch(i));
    nn::set_step(i);
    const std::vector<Tensor> in = within.batch(i);
    account.reset_peaks();
    const std::vector<Tensor> results = step(in);
    for (std::size_t r = 0; r < results.size(); ++r) EXPECT_TRUE(same_bits(results[r], expected[r])) << i << ", " << r;
    if (i < 3) continue;
    EXPECT_EQ(step.mode(), CompiledStep::Mode::replay);
    EXPECT_LE(account.total_peak(), step.predicted()->peak) << step.why();
  }
  CompiledStep nowhere([&](std::span<const Tensor> in) { return within.step(in); },
                       {.memory_budget = "97%", .activations_folder = folder / "missing"});
  for (int i = 0; i < 3; ++i) nowhere(within.batch(i));
  expect_error([&] { nowhere(within.batch(3)); }, {"is not a folder"});
}

// ---- by hand ----

constexpr std::int64_t kBytes = 8 * 512 * 4;

// a = x w, b = a w, c = b w, d = c v; a v is a result like d. All but d and that are of kBytes.
Program products() {
  Program program;
  const auto value = [&](ValueKind kind, const Shape& shape) {
    const auto id = static_cast<ValueId>(program.values.size());
    Value& v = program.values.emplace_back();
    v.kind = kind;
    v.bytes = numel(shape) * 4;
    v.home = whole(id, shape);
    if (kind == ValueKind::argument) {
      v.source = static_cast<int>(program.arguments.size());
      program.arguments.emplace_back();
    }
    return v.home;
  };
  const TensorRef x = value(ValueKind::argument, {8, 512}), w = value(ValueKind::argument, {512, 512}),
                  v = value(ValueKind::argument, {512, 1});
  std::vector<TensorRef> made{x};
  for (int i = 0; i < 3; ++i) {
    const TensorRef in = made.back();
    made.push_back(value(ValueKind::temporary, {8, 512}));
    add(program, op::matmul, {in, w}, {made.back()});
  }
  const TensorRef d = value(ValueKind::temporary, {8, 1}), e = value(ValueKind::temporary, {8, 1});
  add(program, op::matmul, {made[3], v}, {d});
  add(program, op::matmul, {made[1], v}, {e});
  finish(program, {d, e});
  return program;
}

// The first product leaves after its first use and comes back for the second, or what the second has made does.
Program moved_by_hand(bool is_wrong) {
  Program program = products();
  const std::vector<GraphNode> nodes = std::exchange(program.nodes, {});
  const ValueId a = nodes[0].out[0].value;
  program.nodes = {nodes[0], nodes[1]};
  TensorRef home = add_home(program, kBytes, MemoryCategory::activations);
  append_eviction(program, nodes[1], a, home);
  append_wait(program, nodes[1], a);
  if (is_wrong) {
    home = add_home(program, kBytes, MemoryCategory::activations);
    append_eviction(program, nodes[1], nodes[1].out[0].value, home);
  }
  program.nodes.push_back(nodes[2]);
  program.nodes.push_back(nodes[3]);
  GraphNode last = nodes[4];
  last.in[0].value = append_fetch(program, nodes[4], a, home);
  program.nodes.push_back(last);
  compute_lifetimes(program);
  write_numbers(program);
  return program;
}

TEST(BudgetCopies, MeanWhatTheyBringBack) {
  const Program before = products();
  const Program moved = moved_by_hand(false);
  verify(moved);
  check_same_meaning(before, moved);
  const Program wrong = moved_by_hand(true);
  verify(wrong);
  expect_error([&] { check_same_meaning(before, wrong); }, {"does not mean what it did: result 1 differs"});
  Program unwritten = moved;
  std::erase_if(unwritten.nodes, [](const GraphNode& node) {
    return node.op == &op::copy_start && node.attrs.as<OffloadAttrs>().kind == CopyKind::evict;
  });
  EXPECT_THROW(check_same_meaning(before, unwritten), Error);
  Program placed = moved;
  place_waits(placed);
  verify(placed);
  check_same_meaning(before, placed);
}

StepModel::Gap gap_that_leaves(const StepModel& model, Choice& choice, Over over) {
  choice = model.recorded();
  for (std::size_t g = 0; g < choice.size(); ++g)
    if (model.gaps()[g].can_leave) {
      choice[g] = over;
      return model.gaps()[g];
    }
  ADD_FAILURE() << "no gap over which something may leave";
  return {};
}

// Nodes take 1 s, to the home it is 2 s, and 1 s from there.
TEST(BudgetCopies, AreWeighedByClocksOfTheThreadAndTheQueue) {
  const Program program = products();
  const auto bytes = static_cast<double>(kBytes);
  const StepModel model(program, std::vector<double>(5, 1),
                        Elsewhere{.out = {.queued = 2 / bytes}, .back = {.queued = 1 / bytes}});
  Choice choice;
  const StepModel::Gap gap = gap_that_leaves(model, choice, Over::apart);
  EXPECT_EQ(gap.first, 1);
  EXPECT_EQ(gap.last, 4);
  EXPECT_EQ(gap.out_by, -1) << "two nodes between are too few for both to hide";
  const StepModel::Load held = model.weigh(model.recorded()), apart = model.weigh(choice);
  EXPECT_DOUBLE_EQ(held.seconds, 5);
  EXPECT_EQ(held.peak, 3 * kBytes);
  EXPECT_DOUBLE_EQ(apart.seconds, 5 + 2 + 1);
  EXPECT_EQ(apart.peak, 2 * kBytes);
  EXPECT_DOUBLE_EQ(apart.moved, held.moved + 2 * bytes);
}

TEST(BudgetCopies, HideBehindNodesThatTakeLonger) {
  const Program program = products();
  const auto bytes = static_cast<double>(kBytes);
  const StepModel model(
      program, std::vector<double>(5, 1),
      Elsewhere{.out = {.queued = 0.5 / bytes, .own = 0.125 / bytes}, .back = {.queued = 0.25 / bytes}});
  Choice choice;
  const StepModel::Gap gap = gap_that_leaves(model, choice, Over::away);
  EXPECT_EQ(gap.out_by, 2);
  EXPECT_EQ(gap.back_from, 3);
  const StepModel::Load away = model.weigh(choice);
  EXPECT_DOUBLE_EQ(away.seconds, 5 + 0.125);
  EXPECT_EQ(away.peak, 3 * kBytes) << "the copy is not over where most is held";
}

// h_1 = x w, h_2 = h_1 w, .., each used once more, by h_i v, in the other order, as backward does. Between the two uses
// of the last one are two quick nodes, so it has no time for copies; what they work on is most of what is held.
Program blocks(int count) {
  Program program;
  const auto value = [&](ValueKind kind, const Shape& shape) {
    const auto id = static_cast<ValueId>(program.values.size());
    Value& v = program.values.emplace_back();
    v.kind = kind;
    v.bytes = numel(shape) * 4;
    v.home = whole(id, shape);
    if (kind == ValueKind::argument) {
      v.source = static_cast<int>(program.arguments.size());
      TensorGuard& guard = program.arguments.emplace_back().tensor;
      guard.shape = shape;
      guard.strides = contiguous_strides(shape);
    }
    return v.home;
  };
  const auto temporary = [&](const Shape& shape) { return value(ValueKind::temporary, shape); };
  const TensorRef x = value(ValueKind::argument, {8, 512}), w = value(ValueKind::argument, {512, 512}),
                  v = value(ValueKind::argument, {512, 1}), u = value(ValueKind::argument, {512, 1}),
                  wide = value(ValueKind::argument, {1, 4096}), tall = value(ValueKind::argument, {4096, 1});
  std::vector<TensorRef> made{x};
  for (int i = 0; i < count; ++i) {
    const TensorRef in = made.back();
    made.push_back(temporary({8, 512}));
    add(program, op::matmul, {in, w}, {made.back()});
  }
  const TensorRef top = temporary({8, 1}), large = temporary({8, 4096}), low = temporary({8, 1});
  add(program, op::matmul, {made.back(), u}, {top});
  add(program, op::matmul, {top, wide}, {large});
  add(program, op::matmul, {large, tall}, {low});
  std::vector<TensorRef> results{low};
  for (; made.size() > 1; made.pop_back()) {
    results.push_back(temporary({8, 1}));
    add(program, op::matmul, {made.back(), v}, {results.back()});
  }
  for (const TensorRef& ref : results) {
    GraphResult& result = program.results.emplace_back();
    result.local = ref;
    result.shape = ref.shape;
  }
  compute_lifetimes(program);
  write_numbers(program);
  return program;
}

// Oracle: a replay of the program with its waits.
TEST(BudgetCopies, LeaveOnlyWhereTheyHaveTime) {
  constexpr int kBlocks = 10;
  const Program program = blocks(kBlocks);
  const auto bytes = static_cast<double>(kBytes);
  std::vector<double> seconds(program.nodes.size(), 1);
  seconds[kBlocks + 1] = seconds[kBlocks + 2] = 0.4;
  const StepModel model(program, seconds, Elsewhere{.out = {.queued = 0.5 / bytes}, .back = {.queued = 0.01 / bytes}});
  const auto late = std::ranges::count_if(model.gaps(), [&](const StepModel::Gap& gap) {
    return gap.can_leave && gap.kind == model.gaps()[0].kind && gap.out_by < 0;
  });
  ASSERT_EQ(late, 1) << "one of a kind has no time";
  const Start start{model.recorded(), std::vector<bool>(model.gaps().size(), false)};
  const std::int64_t most = model.weigh(model.recorded()).peak, least = model.weigh(least_choice(model, start)).peak;
  for (std::int64_t limit = least + 1024; limit < most; limit += kBytes) {
    const std::optional<Choice> chosen = choose_gaps(model, limit, start);
    ASSERT_TRUE(chosen);
    const Choice& choice = *chosen;
    for (std::size_t g = 0; g < choice.size(); ++g)
      EXPECT_FALSE(choice[g] == Over::away && model.gaps()[g].out_by < 0) << "gap " << g << " goes without a wait";
    Program moved = model.apply(choice);
    settle(moved);
    place_waits(moved);
    verify(moved);
    const Footprint held = footprint_of(moved);
    EXPECT_EQ(held.peak - total(held.before), model.weigh(choice).peak);
  }
}

// All sets of what may become of each gap, beside what the pass chooses of them.
TEST(BudgetCopies, ComeNearTheBestChoiceOfDrawnPrices) {
  constexpr std::uint64_t kSeed = 20261202;
  Dice dice(kSeed);
  const Program program = products();
  for (int drawn = 0; drawn < 50; ++drawn) {
    const auto second = [&] { return 1e-3 * static_cast<double>(1 + dice.below(1000)); };
    const double bytes = static_cast<double>(kBytes);
    const StepModel model(program, {second(), second(), second(), second(), second()},
                          Elsewhere{.out = {.queued = second() / bytes}, .back = {.queued = second() / bytes}});
    const Start start{model.recorded(), std::vector<bool>(model.gaps().size(), false)};
    const std::optional<Choice> chosen = choose_gaps(model, 2 * kBytes + 64, start);
    ASSERT_TRUE(chosen);
    double best = std::numeric_limits<double>::infinity();
    Choice choice = model.recorded();
    for (const Over over : {Over::gone, Over::away, Over::apart})
      for (std::size_t g = 0; g < choice.size(); ++g) {
        choice = model.recorded();
        choice[g] = over;
        if (over == Over::away && model.gaps()[g].out_by < 0) continue;
        const StepModel::Load load = model.weigh(choice);
        if (load.peak <= 2 * kBytes + 64) best = std::min(best, load.seconds);
      }
    EXPECT_LE(model.weigh(*chosen).seconds, best) << "seed " << kSeed << ", " << drawn;
  }
}

}  // namespace
}  // namespace sherd::testing
