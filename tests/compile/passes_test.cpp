// Passes leave meaning and bits; ssa and place_eager together leave the program, and its memory to the byte.
#include <gtest/gtest.h>

#include "compile/ir/analysis/meaning.h"
#include "compile/ir/text/print.h"
#include "compile/ir/verify.h"
#include "compile/passes/place_eager.h"
#include "compile/passes/place_waits.h"
#include "compile/passes/ssa.h"
#include "compile/passes/temporaries.h"
#include "tests/compile/recorded_step.h"

namespace sherd::testing {
namespace {

int count_if(const Program& program, bool (*is)(const GraphNode&)) {
  return static_cast<int>(std::count_if(program.nodes.begin(), program.nodes.end(), is));
}

TEST(Passes, WaitsScratchAndSumsAreNodesAndMemoryIsTheRecordedOne) {
  for_each_step([](const StepCase& c, const RecordedStep& step) {
    verify(step.recorded());
    verify(step.complete());
    check_same_meaning(step.recorded(), step.complete());
    const Outcome recorded = step.run(step.recorded()), complete = step.run(step.complete());
    EXPECT_TRUE(complete.same_bits_as(recorded));
    EXPECT_EQ(complete.peaks, recorded.peaks) << describe(complete.peaks) << " against " << describe(recorded.peaks);
    EXPECT_EQ(complete.peak, recorded.peak);
    const Program& program = step.complete();
    EXPECT_EQ(count_if(program, [](const GraphNode& n) { return n.accumulate && !n.op->traits.accumulates; }), 0);
    EXPECT_GT(count_if(program, [](const GraphNode& n) { return n.scratch != kNoValue; }), 0);
    if (c.ranks > 1) {
      EXPECT_GT(count_if(program, [](const GraphNode& n) { return n.op->traits.waits; }), 0);
    }
    Program again = program;
    place_waits(again);
    EXPECT_EQ(to_string(again), to_string(program)) << "waits are not placed twice";
  });
}

TEST(Passes, SsaUndoesDonationAndPlaceEagerPutsItBack) {
  for_each_step([](const StepCase&, const RecordedStep& step) {
    const Program& sound = step.complete();
    const Outcome expected = step.run(sound);
    Program program = sound;
    ssa(program);
    EXPECT_GT(program.values.size(), sound.values.size()) << "no donation was recorded";
    EXPECT_NO_THROW(verify(program));
    EXPECT_NO_THROW(check_same_meaning(sound, program));
    EXPECT_TRUE(step.run(program).same_bits_as(expected));
    place_eager(program);
    EXPECT_NO_THROW(verify(program));
    EXPECT_NO_THROW(check_same_meaning(sound, program));
    EXPECT_EQ(to_string(program), to_string(sound));
    const Outcome actual = step.run(program);
    EXPECT_TRUE(actual.same_bits_as(expected));
    EXPECT_EQ(actual.peaks, expected.peaks);
    EXPECT_EQ(actual.peak, expected.peak);
    Program recorded = step.recorded();
    ssa(recorded);
    place_eager(recorded);
    EXPECT_TRUE(recorded == step.recorded()) << "run_passes() would prove it once more";
  });
}

}  // namespace
}  // namespace sherd::testing
