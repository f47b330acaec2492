// What other threads see of a rank's thread.
#include "runtime/exec/running_op.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"

namespace sherd {
namespace {

TEST(RunningOp, AnotherThreadSeesTheKernelThatRuns) {
  const std::shared_ptr<RunningOp> running = running_op();
  std::atomic<bool> seen = false, stops = false;
  std::thread watcher([&] {
    while (!seen && !stops)
      if (const std::string_view* kernel = running->kernel; kernel && *kernel == "matmul") seen = true;
  });
  const Tensor a = ones({64, 64}), b = ones({64, 64});
  for (int i = 0; i < 1'000'000 && !seen; ++i) matmul(a, b);
  stops = true;
  watcher.join();
  EXPECT_TRUE(seen);
  EXPECT_EQ(running->kernel, nullptr) << "no kernel runs now";
}

TEST(RunningOp, CountsKernelsAndNoViews) {
  const std::shared_ptr<RunningOp> running = running_op();
  const Tensor a = ones({8});
  const std::uint64_t before = running->begun;
  const Tensor sum = a + a;
  EXPECT_EQ(running->begun, before + 1);
  view(sum, {2, 4});
  EXPECT_EQ(running->begun, before + 1);
}

TEST(RunningOp, AnErrorInAKernelIsTheEndOfIt) {
  const std::shared_ptr<RunningOp> running = running_op();
  static constexpr std::string_view kName = "fails";
  try {
    const KernelMark mark(*running, kName);
    fail("in a kernel");
  } catch (const Error&) {}
  EXPECT_EQ(running->kernel, nullptr);
}

TEST(RunningOp, StagesAreNested) {
  const std::shared_ptr<RunningOp> running = running_op();
  const StageMark outer("a save");
  {
    const StageMark inner("an evaluation");
    EXPECT_STREQ(running->stage, "an evaluation");
  }
  EXPECT_STREQ(running->stage, "a save");
}

TEST(RunningOp, OutlivesItsRank) {
  std::shared_ptr<RunningOp> kept;
  std::thread rank([&] {
    const RankScope scope;
    kept = running_op();
  });
  rank.join();
  EXPECT_EQ(kept->kernel, nullptr);
}

}  // namespace
}  // namespace sherd
