// Captured steps over distributed tensors: when a graph holds for another call, on all ranks alike.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "dtensor/api.h"
#include "runtime/op/ops.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Mode = CompiledStep::Mode;

Tensor rows(const DeviceMesh& mesh, std::int64_t count) {
  return distribute(ones({count, 4}), mesh, Shard(0), {.source = -1});
}

// 5 and 6 rows have the same first part of two: 3. The mean divides by the size of the whole.
TEST(DistributedReplay, EqualPartsOfAnotherWholeAreAnotherGraphOnEveryRank) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "dp");
    auto step = compile([](const Tensor& x) { return full_tensor(mean(x)); });
    for (const std::int64_t count : {5, 5, 5}) EXPECT_EQ(step(rows(mesh, count)).item<float>(), 1);
    EXPECT_EQ(step.mode(), Mode::replay);
    EXPECT_EQ(step(rows(mesh, 6)).item<float>(), 1);
    EXPECT_EQ(step.mode(), Mode::record);
    EXPECT_NE(step.why().find("argument 0 is f32[3,4] (local part of f32[6,4]{0: dp}), the graph has "),
              std::string::npos)
        << step.why();
    EXPECT_NE(step.why().find("(local part of f32[5,4]{0: dp})"), std::string::npos) << step.why();
    for (const std::int64_t count : {5, 6, 6, 5}) {
      EXPECT_EQ(step(rows(mesh, count)).item<float>(), 1);
      EXPECT_EQ(step.mode(), Mode::replay) << step.why();
    }
  });
}

}  // namespace
}  // namespace sherd::testing
