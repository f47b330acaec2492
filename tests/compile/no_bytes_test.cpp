// Every row with an empty or a released input inside of a captured step: the Error of the eager call, in every call of
// the step, eager, recorded or left.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/bad_inputs.h"

namespace sherd::testing {
namespace {

TEST(NoBytes, EveryRowRefusesThemInACapturedStep) {
  AwayOwner owner;
  const std::vector<Tensor> argument{zeros({1})};
  each_bad_input([&](const BadInput& bad) {
    if (bad.may_succeed()) return;
    CompiledStep step(
        [&](std::span<const Tensor> in) {
          std::vector<Tensor> inputs = bad.inputs(owner);
          call_op(bad.op, inputs, bad.test_case.attrs);
          return std::vector<Tensor>{in[0] * 2.0};
        },
        CompileOptions{});
    for (int call = 0; call < 3; ++call) expect_refused(bad, [&] { step(argument); });
  });
}

// The bytes go between the recording and a replay: what the program reads of a unit, it gathers.
TEST(NoBytes, AReplayRefusesWhatNoNodeOfItBringsBack) {
  AwayOwner owner;
  const Tensor weight = owned_copy(ones({3}), owner);
  CompiledStep step([&](std::span<const Tensor> in) { return std::vector<Tensor>{in[0] * weight}; }, CompileOptions{});
  const std::vector<Tensor> argument{ones({3})};
  for (int call = 0; call < 3; ++call) EXPECT_EQ(step(argument)[0].to_vector<float>(), std::vector<float>(3, 1));
  weight.storage()->release_data();
  EXPECT_THROW(step(argument), Error);
}

}  // namespace
}  // namespace sherd::testing
