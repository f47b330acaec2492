// What a log of memory sees. Oracles: blocks of known sizes, and the rank's accounts.
#include "runtime/exec/memory_log.h"

#include <gtest/gtest.h>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

class MemoryLogTest : public ::testing::Test {
 protected:
  Allocator& allocator() { return RankContext::current().allocator(); }
  Tensor of(std::int64_t bytes, MemoryCategory category = MemoryCategory::activations) {
    return Tensor::empty({bytes}, DType::u8, Device::cpu(), category);
  }
  const RankScope scope_{"rank 0"};
};

TEST_F(MemoryLogTest, ThePeakIsItsFirstMomentWithWhatWasLive) {
  const Tensor before = of(1000, MemoryCategory::parameters);
  const MemoryLog log(allocator());
  {
    const Tensor a = of(500), b = of(3000, MemoryCategory::gradients);
    const Tensor gone = of(100);
  }
  const Tensor less = of(2000);
  const MemoryLog::Picture peak = log.peak();
  EXPECT_EQ(peak.total, 4600);
  EXPECT_EQ(describe(peak.bytes), "gradients 3 KB, parameters 1 KB, activations 600 B");
  ASSERT_EQ(peak.blocks.size(), 3u);
  EXPECT_EQ(peak.blocks[0].bytes, 3000);
  EXPECT_EQ(peak.blocks[0].category, MemoryCategory::gradients);
  EXPECT_EQ(peak.blocks[2].bytes, 100);
}

TEST_F(MemoryLogTest, SaysOpModuleAndPhase) {
  RankContext& context = RankContext::current();
  const Tensor x = Tensor::from<float>({1, 2, 3, 4}, {2, 2});
  const MemoryLog log(allocator());
  context.module_path = context.intern("blocks.3.mlp");
  context.step = 6;
  const Tensor y = matmul(x, x);
  context.module_path = nullptr;
  const MemoryLog::Picture peak = log.peak();
  EXPECT_EQ(describe(peak.moment), "op matmul, module blocks.3.mlp, forward, step 7");
  ASSERT_EQ(peak.blocks.size(), 1u);
  EXPECT_EQ(peak.blocks[0].bytes, 16);
  EXPECT_EQ(peak.blocks[0].made.op, "matmul");
  EXPECT_EQ(peak.blocks[0].storage, y.storage()->id());
}

TEST_F(MemoryLogTest, FollowsBytesFromOneAccountToAnother) {
  const MemoryLog log(allocator());
  const Tensor a = of(300);
  a.storage()->retag(MemoryCategory::communication);
  const Tensor b = of(200);
  EXPECT_EQ(describe(log.peak().bytes), "communication 300 B, activations 200 B");
  EXPECT_EQ(log.peak().blocks[0].category, MemoryCategory::communication);
  allocator().charge(MemoryCategory::communication, 50);
  EXPECT_EQ(log.peak().total, 550);
  allocator().charge(MemoryCategory::communication, -50);
}

// More changes than the log keeps: the peak lies in those that it has dropped.
TEST_F(MemoryLogTest, ForgetsWhatItNeedNotKeep) {
  const MemoryLog log(allocator());
  const Tensor kept = of(700, MemoryCategory::optimizer);
  { const Tensor most = of(5000); }
  for (int i = 0; i < 100'000; ++i) of(64);
  EXPECT_EQ(log.peak().total, 5700);
  ASSERT_EQ(log.peak().blocks.size(), 2u);
  EXPECT_EQ(log.peak().blocks[1].category, MemoryCategory::optimizer);
  const Tensor more = of(6000);
  EXPECT_EQ(log.peak().total, 6700);
  EXPECT_EQ(log.peak().blocks.size(), 2u);
}

TEST_F(MemoryLogTest, SeesWhatForwardLeavesToBackward) {
  Slot w("w", true);
  w.set(Tensor::from<float>({1, 2, 3, 4}, {2, 2}));
  const MemoryLog log(allocator());
  EXPECT_TRUE(log.before_backward().blocks.empty());
  const Tensor loss = sum(exp(exp(w.value())));  // both results are kept, and the loss
  const std::int64_t left = allocator().accounting().total();
  backward(loss);
  EXPECT_EQ(log.before_backward().total, left + 4) << "with the gradient that it begins with";
  EXPECT_EQ(log.before_backward().blocks.size(), 4u);
}

TEST_F(MemoryLogTest, KeepsARefusal) {
  MemoryLog log(allocator(), [](MemoryLog::Picture& picture) { picture.blocks.front().name = "it"; });
  EXPECT_FALSE(log.refusal());
  const Tensor a = of(600);
  allocator().set_limit(1000);
  EXPECT_THROW(of(401, MemoryCategory::gradients), OutOfMemory);
  allocator().set_limit(0);
  ASSERT_TRUE(log.refusal());
  EXPECT_EQ(log.refusal()->bytes, 401);
  EXPECT_EQ(log.refusal()->category, MemoryCategory::gradients);
  EXPECT_EQ(log.refusal()->held.total, 600);
  EXPECT_EQ(log.refusal()->held.blocks.front().name, "it");
}

TEST_F(MemoryLogTest, ThereIsOneAtATime) {
  {
    const MemoryLog log(allocator());
    expect_error([&] { const MemoryLog other(allocator()); }, {"one memory log at a time"});
    EXPECT_NE(allocator().watcher(), nullptr);
  }
  EXPECT_EQ(allocator().watcher(), nullptr);
  EXPECT_EQ(RankContext::current().memory_log, nullptr);
  const MemoryLog log(allocator());
}

}  // namespace
}  // namespace sherd::testing
