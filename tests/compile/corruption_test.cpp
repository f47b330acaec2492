// No wrong program runs: 300 drawn corruptions are refused when the program is built, by verify() alone, or against the
// meaning of the sound program. Oracle for what none of the three sees: it runs to equal bits, and does not count.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>

#include "compile/ir/analysis/meaning.h"
#include "compile/ir/verify.h"
#include "tests/compile/corruptions.h"
#include "tests/compile/recorded_step.h"

namespace sherd::testing {
namespace {

constexpr std::uint64_t kSeed = 20261123;
constexpr int kRefusals = 60;  // of each of five programs

enum class Verdict { not_applied, refused_by_node, refused_by_verify, refused_by_meaning, accepted };

Verdict judge(const Program& sound, const Corruption& corruption, Dice& dice, Program& wrong) {
  wrong = sound;
  try {
    if (!corruption.apply(wrong, dice)) return Verdict::not_applied;
  } catch (const Error&) { return Verdict::refused_by_node; }
  try {
    verify(wrong);
  } catch (const Error&) { return Verdict::refused_by_verify; }
  try {
    check_same_meaning(sound, wrong);
  } catch (const Error&) { return Verdict::refused_by_meaning; }
  return Verdict::accepted;
}

struct Tally {
  int by_node = 0, by_verify = 0, by_meaning = 0, equal_bits = 0;
  int refused() const { return by_node + by_verify + by_meaning; }
  void add(Verdict verdict) {
    by_node += verdict == Verdict::refused_by_node;
    by_verify += verdict == Verdict::refused_by_verify;
    by_meaning += verdict == Verdict::refused_by_meaning;
  }
};

// Ranks draw alike, but their local shapes may differ, and with them what a draw hits: only what all refuse counts, and
// only what all accept runs.
Tally corrupt(const RecordedStep& step, const Program& sound, int refusals, std::uint64_t seed) {
  verify(sound);
  const Outcome expected = step.run(sound);
  Dice dice(seed);
  Tally tally;
  std::map<std::string, Tally> kinds;
  for (int attempt = 0; tally.refused() < refusals && attempt < 100 * refusals; ++attempt) {
    const Corruption& corruption = corruptions()[dice.below(corruptions().size())];
    Dice own(seed + 1 + static_cast<std::uint64_t>(attempt));
    Program wrong;
    const Verdict verdict = judge(sound, corruption, own, wrong);
    const bool refused = verdict != Verdict::not_applied && verdict != Verdict::accepted;
    if (step.on_all(refused)) {
      tally.add(verdict);
      kinds[corruption.name].add(verdict);
      if (corruption.is_of_order) {
        EXPECT_NE(verdict, Verdict::refused_by_meaning)
            << corruption.name << " is not seen by verify(), attempt " << attempt;
      }
    } else if (step.on_all(verdict == Verdict::accepted)) {
      EXPECT_TRUE(step.run(wrong).same_bits_as(expected)) << corruption.name << " is accepted, attempt " << attempt;
      ++tally.equal_bits;
      ++kinds[corruption.name].equal_bits;
    }
  }
  if (step.group().rank() == 0)
    for (const auto& [name, of] : kinds)
      fmt::print("  {:44} {:3} by node {:3} by verify {:3} by meaning {:3} run to equal bits\n", name, of.by_node,
                 of.by_verify, of.by_meaning, of.equal_bits);
  return tally;
}

TEST(Program, CorruptedOnesAreRefused) {
  std::atomic<int> refused = 0;
  for_each_step([&](const StepCase& c, const RecordedStep& step) {
    const Tally tally = corrupt(step, step.complete(), kRefusals, kSeed);
    if (step.group().rank() != 0) return;
    fmt::print("{}, seed {}: {} nodes; refused {} by node, {} by verify, {} by meaning; {} ran to equal bits\n", c.name,
               kSeed, step.complete().nodes.size(), tally.by_node, tally.by_verify, tally.by_meaning, tally.equal_bits);
    refused += tally.refused();
  });
  EXPECT_EQ(refused, 300);
}

TEST(Program, CorruptedOnesThatFitABudgetAreRefused) {
  constexpr int kRefusalsOfPlans = 20;  // of each program; soak_plans makes more, of other kinds
  std::atomic<int> refused = 0, equal = 0;
  for_each_step([&](const StepCase&, const RecordedStep& step) {
    const Tally tally = corrupt(step, planned(step, 60), kRefusalsOfPlans, kSeed + 1);
    if (step.group().rank() != 0) return;
    refused += tally.refused();
    equal += tally.equal_bits;
  });
  fmt::print("{} corruptions refused, {} ran to equal bits\n", refused.load(), equal.load());
  EXPECT_EQ(refused, 5 * kRefusalsOfPlans);
  EXPECT_LT(equal * 20, refused + equal) << "refused but for less than 5 %";
}

}  // namespace
}  // namespace sherd::testing
