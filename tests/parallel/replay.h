#pragma once
// A captured step beside the eager one.
#include <gtest/gtest.h>

#include <memory>

#include "compile/compile.h"
#include "nn/module.h"
#include "runtime/exec/context.h"
#include "tests/support/near.h"

namespace sherd::testing {

/// Steps two equal trainings side by side on `batch(step)`, one captured: the same bits come out and stay behind, no
/// step leaves gathered parameters or gradients, and the last calls are replays. A training has a model `net` and
/// `Tensor step(x, y)`; `begin(step)`, if it has that, runs before each step, outside of the captured one.
template <class Training, class Batch>
void expect_replays_bitwise(const std::shared_ptr<ProcessGroup>& group, Training& eager, Training& captured, int steps,
                            const Batch& batch) {
  CompileOptions options;
  options.group = group;
  auto step = compile([&](const Tensor& x, const Tensor& y) { return captured.step(x, y); }, options);
  const Accounting& memory = RankContext::current().allocator().accounting();
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(steps); ++i) {
    const auto& [x, y] = batch(i);
    if constexpr (requires { eager.begin(i); }) eager.begin(i);
    const Tensor expected = eager.step(x, y).detach();
    if constexpr (requires { captured.begin(i); }) captured.begin(i);
    EXPECT_TRUE(same_bits(step(x, y), expected)) << "step " << i << " " << step.why();
    EXPECT_EQ(memory.current(MemoryCategory::unsharded), 0) << "step " << i;
    EXPECT_EQ(memory.current(MemoryCategory::gradients), 0) << "step " << i;
  }
  EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
  const auto a = captured.net.parameters(), e = eager.net.parameters();
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(same_bits(a[i]->value().local(), e[i]->value().local())) << a[i]->name();
}

}  // namespace sherd::testing
