// A step fits the bytes it is given: bits as recorded, bytes as predicted, seconds near the least.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "compile/compile.h"
#include "compile/ir/analysis/meaning.h"
#include "compile/ir/analysis/seconds.h"
#include "compile/ir/rewrite.h"
#include "compile/ir/verify.h"
#include "compile/passes/budget/choose.h"
#include "compile/passes/ssa.h"
#include "compile/run/budget_curve.h"
#include "compile/run/fit.h"
#include "compile/run/footprint.h"
#include "runtime/exec/left_steps.h"
#include "runtime/op/rows/ops.h"
#include "tests/compile/corruptions.h"
#include "tests/compile/hand_made.h"
#include "tests/compile/recorded_step.h"
#include "tests/compile/training_step.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

std::int64_t sum(const CategoryBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

CategoryBytes beside(const RecordedStep& step) {
  CategoryBytes held = RankContext::current().allocator().accounting().current();
  const CategoryBytes before = footprint_of(step.complete()).before;
  for (std::size_t c = 0; c < held.size(); ++c) held[c] -= before[c];
  return held;
}

// The least budget that a refusal names, or none.
std::string refusal(const RecordedStep& step, const FitOptions& options, Fitted& fitted) {
  try {
    fitted = fit_program(step.recorded(), options);
  } catch (const Error& error) { return error.what(); }
  return "";
}

TEST(Budget, HoldsWhatItIsGivenToThePredictedByteAndLeavesTheSameBits) {
  const std::vector<Pass> passes = standard_passes();
  int fitted_below = 0;
  for_each_step([&](const StepCase& c, const RecordedStep& step) {
    const CategoryBytes others = beside(step);
    const std::int64_t recorded = footprint_of(step.complete()).peak + sum(others);
    const Outcome expected = step.run(step.recorded());
    for (const int percent : {95, 90, 75, 60}) {
      Fitted fitted;
      const std::string refused = refusal(
          step,
          {.budget = fmt::format("{}%", percent), .passes = passes, .beside = sum(others), .group = &step.group()},
          fitted);
      if (!refused.empty()) {
        EXPECT_NE(refused.find("below the least that the step can hold"), std::string::npos) << refused;
        continue;
      }
      SCOPED_TRACE(fmt::format("{}%: {}", percent, fmt::join(fitted.notes, "; ")));
      const Outcome outcome = step.run(fitted.program);
      EXPECT_TRUE(outcome.same_bits_as(expected));
      EXPECT_LE(outcome.peak, recorded * percent / 100);
      CategoryBytes predicted = fitted.footprint.most;
      for (std::size_t i = 0; i < predicted.size(); ++i) predicted[i] += others[i];
      EXPECT_EQ(describe(predicted), describe(outcome.peaks));
      EXPECT_EQ(predicted, outcome.peaks);
      EXPECT_EQ(fitted.footprint.peak + sum(others), outcome.peak);
      if (c.ranks == 1) ++fitted_below;
    }
  });
  EXPECT_GE(fitted_below, 3) << "budgets that three steps of one rank reach";
}

std::int64_t gathers_of(const Program& program) {
  return std::ranges::count_if(program.nodes, [](const GraphNode& node) { return node.op->name == "gather_start"; });
}

TEST(Budget, OfAllThatAStepHoldsLeavesOutGathersForNoByte) {
  const std::vector<Pass> passes = standard_passes();
  for_each_step([&](const StepCase& c, const RecordedStep& step) {
    const Fitted fitted = fit_program(step.recorded(), {.budget = "100%", .passes = passes, .group = &step.group()});
    EXPECT_LE(fitted.footprint.peak, fitted.recorded_peak);
    EXPECT_TRUE(step.run(fitted.program).same_bits_as(step.run(step.recorded())));
    EXPECT_NO_THROW(check_round_trip(fitted.program));
    if (c.ranks > 1) { EXPECT_LT(gathers_of(fitted.program), gathers_of(step.recorded())); }
  });
}

// Ranks whose budgets differ add the same gathers: else they would wait for each other for ever.
TEST(Budget, BelowWhatUnitsHoldGathersThemOnceMore) {
  const std::vector<Pass> passes = standard_passes();
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    const std::unique_ptr<RecordedStep> step = record_kept_units(group);
    const CategoryBytes others = beside(*step);
    const std::int64_t recorded = footprint_of(step->complete()).peak + sum(others);
    const Outcome expected = step->run(step->recorded());
    for (const auto& percent : {std::pair(86, 86), {86, 100}, {100, 86}}) {
      const int own = group->rank() == 0 ? percent.first : percent.second;
      SCOPED_TRACE(fmt::format("{}% of {}", own, recorded));
      const Fitted fitted = fit_program(step->recorded(), {.budget = std::to_string(recorded * own / 100),
                                                           .passes = passes,
                                                           .beside = sum(others),
                                                           .group = group.get()});
      EXPECT_GT(gathers_of(fitted.program), gathers_of(step->recorded()));
      EXPECT_NO_THROW(check_round_trip(fitted.program));
      const Outcome outcome = step->run(fitted.program);
      EXPECT_TRUE(outcome.same_bits_as(expected));
      EXPECT_LE(outcome.peak, recorded * own / 100);
      EXPECT_EQ(fitted.footprint.peak + sum(others), outcome.peak);
      EXPECT_LT(fitted.footprint.most[static_cast<std::size_t>(MemoryCategory::unsharded)],
                footprint_of(step->complete()).most[static_cast<std::size_t>(MemoryCategory::unsharded)]);
    }
  });
}

// Then one unit less is held: those that come early stand beside the one that is used.
TEST(Budget, MayGatherUnitsWhereTheyBeginToBeUsed) {
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Program program = record_kept_units(group)->recorded();
    ssa(program);
    const StepModel model(program, std::vector<double>(program.nodes.size(), 1));
    Choice early = model.recorded(), late = early;
    int units = 0;
    for (std::size_t g = 0; g < early.size(); ++g)
      if (const StepModel::Gap& gap = model.gaps()[g]; gap.is_unit && gap.gather >= 0) {
        EXPECT_LT(gap.last, gap.late);
        early[g] = Over::gone;
        late[g] = Over::brief;
        ++units;
      }
    EXPECT_GE(units, 3);
    EXPECT_LT(model.weigh(late).peak, model.weigh(early).peak);
    EXPECT_LT(model.weigh(early).peak, model.weigh(model.recorded()).peak);
    EXPECT_DOUBLE_EQ(model.weigh(late).seconds, model.weigh(early).seconds);
    for (const Choice* choice : {&early, &late}) {
      Program chosen = model.apply(*choice);
      settle(chosen);
      EXPECT_NO_THROW(verify(chosen));
      EXPECT_NO_THROW(check_same_meaning(program, chosen));
      EXPECT_EQ(gathers_of(chosen), gathers_of(program) + units);
    }
  });
}

TEST(Budget, OfAStepOfAProgramIsKeptFromItsFirstReplayAndAfterItWasLeft) {
  const RankScope rank;  // it counts the steps that were left, by which later tests would go
  Accounting& account = RankContext::current().allocator().accounting();
  GptTraining eager, within;
  bool fails = false;
  CompiledStep step(
      [&](std::span<const Tensor> in) {
        if (fails) throw std::runtime_error("left");
        return within.step(in);
      },
      {.memory_budget = "97%"});
  for (int i = 0; i < 10; ++i) {
    if (i == 6) {
      fails = true;
      count_left_step();  // as reset_after_error() does, so that the next call runs the function
      EXPECT_THROW(step(within.batch(i)), std::runtime_error);
      fails = false;
      count_left_step();
    }
    nn::set_step(i);
    const std::vector<Tensor> expected = eager.step(eager.batch(i));
    nn::set_step(i);
    const std::vector<Tensor> in = within.batch(i);
    account.reset_peaks();
    const std::vector<Tensor> results = step(in);
    for (std::size_t r = 0; r < results.size(); ++r) EXPECT_TRUE(same_bits(results[r], expected[r])) << i << ", " << r;
    if (i < 3 || (i > 5 && i != 9)) continue;  // replays; before the first one calls are measured
    EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << i;
    EXPECT_NE(step.why().find("budget: "), std::string::npos) << step.why();
    ASSERT_TRUE(step.predicted());
    EXPECT_LE(account.total_peak(), step.predicted()->peak) << i;
  }
}

TEST(Budget, BelowTheLeastNamesItWhatHoldsItAndWhere) {
  const std::vector<Pass> passes = standard_passes();
  for_each_step([&](const StepCase&, const RecordedStep& step) {
    expect_error([&] { fit_program(step.recorded(), {.budget = "1%", .passes = passes, .group = &step.group()}); },
                 {"a budget of ", "below the least that the step can hold", "held", "at"});
  });
}

std::int64_t least_named(const std::string& refused) {
  const auto end = refused.find(" bytes)"), from = refused.rfind('(', end) + 1;
  return end == std::string::npos ? -1 : std::stoll(refused.substr(from, end - from));
}

// Also where another rank is given more, or has found something that does not go together with the others' gathers.
TEST(Budget, BelowTheLeastNamesTheSameWhateverWasAsked) {
  const std::vector<Pass> passes = standard_passes();
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    for (const auto record : {record_kept_units, record_large_units}) {
      const std::unique_ptr<RecordedStep> step = record(group);
      const std::int64_t recorded = footprint_of(step->complete()).peak;
      std::set<std::int64_t> named;
      Fitted fitted;
      const auto ask = [&](std::int64_t bytes) {
        const FitOptions options{.budget = std::to_string(bytes), .passes = passes, .group = group.get()};
        return refusal(*step, options, fitted);
      };
      for (int percent = 98; percent >= 40; percent -= percent > 80 ? 2 : 10)
        for (const int of_second : {percent, 100})
          if (const std::string text = ask(recorded * (group->rank() == 0 ? percent : of_second) / 100);
              least_named(text) >= 0)
            named.insert(least_named(text));
      EXPECT_EQ(named.size(), 1u) << fmt::format("rank {}: {}", group->rank(), fmt::join(named, ", "));
      for (const std::int64_t least : named) {
        EXPECT_EQ(ask(least), "");
        EXPECT_LE(fitted.footprint.peak, least);
        const Outcome outcome = step->run(fitted.program);
        EXPECT_TRUE(outcome.same_bits_as(step->run(step->recorded())));
      }
    }
  });
}

// Prices at which what each row does costs more or less than what others do.
Prices drawn_prices(const Program& program, Dice& dice) {
  Prices prices;
  for (std::size_t i = 0; i < program.nodes.size(); ++i)
    prices.rows.try_emplace(price_key(program, program.nodes[i]), 1e-6 * static_cast<double>(1 + dice.below(10'000)));
  return prices;
}

TEST(Budget, TheLeastIsThatOfTheProgramWhateverPricesSayAndIsEnough) {
  constexpr std::uint64_t kSeed = 34;
  const std::vector<Pass> passes = standard_passes();
  for_each_step([&](const StepCase&, const RecordedStep& step) {
    SCOPED_TRACE(fmt::format("seed {}", kSeed));
    Dice dice(kSeed);
    std::set<std::string> refusals;
    for (int drawn = 0; drawn < 4; ++drawn) {
      const Prices prices = drawn_prices(step.recorded(), dice);
      FitOptions options{.budget = "1%", .passes = passes, .prices = &prices};
      Fitted fitted;
      const std::string refused = refusal(step, options, fitted);
      refusals.insert(refused);
      const auto at = refused.find(" bytes)"), from = refused.rfind('(', at) + 1;
      ASSERT_NE(at, std::string::npos) << refused;
      options.budget = refused.substr(from, at - from);
      EXPECT_EQ(refusal(step, options, fitted), "");
      EXPECT_LE(fitted.footprint.peak, std::stoll(refused.substr(from, at - from)));
    }
    EXPECT_EQ(refusals.size(), 1u) << fmt::format("{}", fmt::join(refusals, "\n"));
  });
}

// What queues hold changes with what is let go, and the model learns of it by what comes out alone.
TEST(Budget, IsUsedWhereQueuesHoldMuch) {
  const std::vector<Pass> passes = standard_passes();
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    for (const auto record : {record_kept_units, record_large_units}) {
      const std::unique_ptr<RecordedStep> step = record(group);
      const std::int64_t recorded = fit_program(step->recorded(), {.passes = passes}).recorded_peak;
      for (int percent = 98; percent > 40; percent -= 2) {
        Fitted fitted;
        const FitOptions options{.budget = fmt::format("{}%", percent), .passes = passes, .group = group.get()};
        if (!refusal(*step, options, fitted).empty()) break;
        EXPECT_GE(fitted.footprint.peak, recorded * (percent - 4) / 100) << percent;
      }
    }
  });
}

// What is let go is no more than a value of some percent too much.
TEST(Budget, IsUsed) {
  const std::vector<Pass> passes = standard_passes();
  for_each_step([&](const StepCase&, const RecordedStep& step) {
    const std::int64_t recorded = fit_program(step.recorded(), {.passes = passes}).recorded_peak;
    for (int percent = 98; percent > 50; percent -= 4) {
      Fitted fitted;
      const FitOptions options{.budget = fmt::format("{}%", percent), .passes = passes};
      if (!refusal(step, options, fitted).empty()) return;
      EXPECT_GE(fitted.footprint.peak, recorded * (percent - 4) / 100) << percent;
    }
  });
}

TEST(Budget, AboveWhatTheStepHoldsIsSaid) {
  const std::vector<Pass> passes = standard_passes();
  for_each_step([&](const StepCase& c, const RecordedStep& step) {
    if (c.ranks > 1) return;
    const Fitted fitted = fit_program(step.recorded(), {.budget = "10GB", .passes = passes});
    ASSERT_EQ(fitted.notes.size(), 1u);
    EXPECT_NE(fitted.notes[0].find("no more than the 10 GB that it is given"), std::string::npos) << fitted.notes[0];
    EXPECT_LE(fitted.footprint.peak, fitted.recorded_peak);
    EXPECT_TRUE(step.run(fitted.program).same_bits_as(step.run(step.recorded())));
  });
}

TEST(Budget, ACurveIsWhatBudgetsComeTo) {
  const std::vector<Pass> passes = standard_passes();
  const Prices prices;
  for_each_step([&](const StepCase& c, const RecordedStep& step) {
    const FitOptions options{.passes = passes, .beside = 1000, .prices = &prices};
    const std::vector<BudgetPoint> curve = budget_curve(step.recorded(), options);
    ASSERT_EQ(curve.size(), 10u);
    const Fitted without = fit_program(step.recorded(), options);
    EXPECT_LE(curve.back().peak, without.recorded_peak + 1000);
    for (std::size_t i = 1; i < curve.size(); ++i) {
      EXPECT_GE(curve[i].peak, curve[i - 1].peak);
      EXPECT_LE(curve[i].seconds, 1.02 * curve[i - 1].seconds);
    }
    if (c.ranks > 1) return;
    FitOptions given = options;
    given.budget = std::to_string(curve[4].peak);
    const Fitted fitted = fit_program(step.recorded(), given);
    EXPECT_LE(fitted.footprint.peak + 1000, curve[4].peak);
    EXPECT_LE(curve[4].seconds, 1.02 * fitted.seconds);
    given.budget = std::to_string(curve[0].peak);
    EXPECT_LE(fit_program(step.recorded(), given).footprint.peak + 1000, curve[0].peak);
    given.budget = std::to_string(curve[0].peak - (curve[9].peak - curve[0].peak) / 5 - 1);
    expect_error([&] { fit_program(step.recorded(), given); }, {"below the least that the step can hold"});
    given.passes = {};
    EXPECT_TRUE(budget_curve(step.recorded(), given).empty());
  });
}

TEST(MemoryBudget, IsBytesOrAPart) {
  EXPECT_EQ(MemoryBudget("1.5GB").bytes(0), 1'500'000'000);
  EXPECT_EQ(MemoryBudget("75%").bytes(1000), 750);
  EXPECT_FALSE(MemoryBudget("none").is_set());
  for (const char* text : {"1.5GB", "75%", "none", "62.5%"})
    EXPECT_EQ(MemoryBudget(MemoryBudget(text).text()), MemoryBudget(text));
  for (const char* text : {"0", "0%", "200%", "nan%", "-5%", "", "%", "many", "inf%", "1.5"})
    expect_error([&] { (void)MemoryBudget(text); }, {"a memory budget of", text});
}

// ---- against the best of all choices ----

ValueId add_value(Program& program, ValueKind kind, const Shape& shape) {
  const auto id = static_cast<ValueId>(program.values.size());
  Value& value = program.values.emplace_back();
  value.kind = kind;
  value.bytes = numel(shape) * 4;
  value.home = whole(id, shape);
  if (kind != ValueKind::argument) return id;
  value.source = static_cast<int>(program.arguments.size());
  program.arguments.emplace_back();
  return id;
}

// A chain of products of drawn widths, some of which read an earlier one too; then each is read once more, backwards.
Program drawn_step(Dice& dice, int length) {
  Program program;
  constexpr std::int64_t kRows = 8;
  std::vector<TensorRef> made{whole(add_value(program, ValueKind::argument, {kRows, 4}), {kRows, 4})};
  std::vector<TensorRef> results;
  std::vector<std::pair<TensorRef, TensorRef>> products;
  for (int i = 0; i < length; ++i) {
    const TensorRef& in = made[made.size() - 1 - dice.below(std::min<std::size_t>(made.size(), 2))];
    const auto width = static_cast<std::int64_t>(1 + dice.below(40));
    const Shape weight{in.shape[1], width};
    const TensorRef w = whole(add_value(program, ValueKind::argument, weight), weight);
    const TensorRef out = whole(add_value(program, ValueKind::temporary, {kRows, width}), {kRows, width});
    add(program, op::matmul, {in, w}, {out});
    made.push_back(out);
  }
  for (std::size_t i = made.size() - 1; i > 0; --i) {
    const Shape weight{made[i].shape[1], 1};
    const TensorRef w = whole(add_value(program, ValueKind::argument, weight), weight);
    const TensorRef out = whole(add_value(program, ValueKind::temporary, {kRows, 1}), {kRows, 1});
    add(program, op::matmul, {made[i], w}, {out});
    results.push_back(out);
  }
  for (const TensorRef& result : results) program.results.push_back({.local = result, .shape = result.shape});
  compute_lifetimes(program);
  write_numbers(program);
  return program;
}

// Tries all sets of gaps, but for those whose own nodes alone take as long as the best so far.
double best_seconds(const StepModel& model, std::span<const double> node_seconds, std::int64_t limit) {
  double best = std::numeric_limits<double>::infinity();
  const std::size_t gaps = model.gaps().size();
  const double recorded = model.weigh(model.recorded()).seconds;
  for (std::size_t set = 0; set < std::size_t{1} << gaps; ++set) {
    Choice choice(gaps, Over::held);
    double least = recorded;
    for (std::size_t g = 0; g < gaps; ++g)
      if (set >> g & 1) {
        choice[g] = Over::gone;
        least += node_seconds[static_cast<std::size_t>(model.gaps()[g].node)];
      }
    if (least >= best) continue;
    const StepModel::Load load = model.weigh(choice);
    if (load.peak <= limit) best = std::min(best, load.seconds);
  }
  return best;
}

TEST(Budget, ComesNearTheBestChoiceOfFiftyDrawnSteps) {
  constexpr std::uint64_t kSeed = 20261130;
  Dice dice(kSeed);
  double worst = 1;
  for (int drawn = 0; drawn < 50; ++drawn) {
    const Program program = drawn_step(dice, 16);
    std::vector<double> seconds;
    for (std::size_t i = 0; i < program.nodes.size(); ++i)
      seconds.push_back(1e-3 * static_cast<double>(1 + dice.below(100)));
    const StepModel model(program, seconds);
    const Start start{model.recorded(), std::vector<bool>(model.gaps().size(), false)};
    const StepModel::Load recorded = model.weigh(model.recorded());
    const Choice lowest = least_choice(model, start);
    const std::int64_t least = model.weigh(lowest).peak;
    const std::int64_t limit =
        least + static_cast<std::int64_t>(dice.below(static_cast<std::size_t>(recorded.peak - least + 1)));
    std::optional<Choice> choice = choose_gaps(model, limit, start);
    if (!choice) choice = choose_gaps(model, limit, start, &lowest);
    ASSERT_TRUE(choice) << "seed " << kSeed << ", step " << drawn;
    const double best = best_seconds(model, seconds, limit);
    const StepModel::Load load = model.weigh(*choice);
    EXPECT_LE(load.peak, limit);
    worst = std::max(worst, load.seconds / best);
    EXPECT_LE(load.seconds, 1.03 * best) << "seed " << kSeed << ", step " << drawn << ", " << model.gaps().size()
                                         << " gaps";
  }
  fmt::print("the worst of 50 takes {:.3f} times the least seconds\n", worst);
}

}  // namespace
}  // namespace sherd::testing
