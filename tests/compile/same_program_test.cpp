// Ranks compare what they are about to replay.
#include "compile/run/same_program.h"

#include <gtest/gtest.h>

#include "compile/compile.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// Three calls of a step, so that the third compares.
void run_step(const Group& group, std::int64_t rows, const std::function<Tensor(const Tensor&)>& function) {
  CompileOptions options;
  options.group = group;
  auto step = compile_once([&](const Tensor& x) { return function(x); }, options);
  for (int i = 0; i < 4; ++i) step(ones({rows, 2}));
}

TEST(SameProgram, SizesOfLocalPartsMayDiffer) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      const std::int64_t rows = 2 + group->rank();
      run_step(group, rows,
               [&](const Tensor& x) { return all_reduce(sum(dropout(x, 0.5, 1, {}, group->rank() * 4)), *group); });
      EXPECT_EQ(group->host().counts().all_gather.calls, 0) << "a comparison is no communication of the step";
    });
}

TEST(SameProgram, ADifferentProgramIsRefusedOnEveryRankByName) {
  run_ranks(4, [](const Group& group) {
    expect_error(
        [&] {
          run_step(group, 2, [&](const Tensor& x) {
            const Tensor y = x + x;
            return group->rank() == 2 ? exp(y) : relu(y);
          });
        },
        {"not the same program", "line 3 of the graph is", "relu(%0)", "on ranks 0, 1, 3; ", "exp(%0)",
         "on rank 2; all ranks"});
  });
}

TEST(SameProgram, AProgramThatEndsEarlierDiffersInTheFirstMissingLine) {
  run_ranks(2, [](const Group& group) {
    expect_error([&] { run_step(group, 2, [&](const Tensor& x) { return group->rank() == 1 ? x + x : (x + x) + x; }); },
                 {"line 3 of the graph is", "on rank 0; ", "on rank 1"});
  });
}

// Which ranks record and which replay differs from call to call.
TEST(SameProgram, BatchesThatDifferBetweenRanksDoNotHang) {
  run_ranks(3, [](const Group& group) {
    group->set_deadline(std::chrono::seconds(20));
    CompileOptions options;
    options.group = group;
    auto step = compile_once([&](const Tensor& x) { return all_reduce(sum(x), *group); }, options);
    const std::int64_t rows[3][7] = {{4, 4, 4, 4, 4, 5, 4}, {4, 4, 3, 4, 3, 3, 4}, {4, 2, 4, 2, 4, 4, 1}};
    for (int i = 0; i < 7; ++i) {
      const float total = 2.0f * static_cast<float>(rows[0][i] + rows[1][i] + rows[2][i]);
      EXPECT_EQ(step(ones({rows[group->rank()][i], 2})).item<float>(), total) << i << " " << step.why();
    }
  });
}

// Nor do ranks ask each other again.
TEST(SameProgram, IsComparedOnce) {
  run_ranks(2, [](const Group& group) {
    group->set_deadline(std::chrono::seconds(20));
    CompileOptions options;
    options.group = group;
    auto step = compile_once([](const Tensor& x) { return relu(x); }, options);
    for (int i = 0; i < 3; ++i) step(ones({2, 2}));
    if (group->rank() == 0) step(ones({2, 2}));
    group->host().barrier();
  });
}

// A rank whose first call or recording failed by itself has nothing to compare: it records first.
TEST(SameProgram, IsComparedOnceAllRanksHaveAGraph) {
  for (const int failing : {0, 1})
    run_ranks(2, [&](const Group& group) {
      group->set_deadline(std::chrono::seconds(20));
      CompileOptions options;
      options.group = group;
      bool fails = false;
      auto step = compile_once(
          [&](const Tensor& x) {
            check(!fails, "this call fails");
            return group->rank() == 0 ? relu(x) : exp(x);
          },
          options);
      const Tensor x = Tensor::scalar(1);
      for (int i = 0; i < 3; ++i) {
        fails = group->rank() == 1 && i == failing;
        if (fails) expect_error([&] { step(x); }, {"this call fails"});
        else step(x);
      }
      EXPECT_EQ(step.mode(), group->rank() == 0 ? CompiledStep::Mode::eager : CompiledStep::Mode::record) << step.why();
      expect_error([&] { step(x); }, {"not the same program", "relu(", "on rank 0; ", "exp("});
    });
}

}  // namespace
}  // namespace sherd::testing
