// The edges that order fully_shard's queues on the CPU: all there, and each one missed when it is taken away.
#include "runtime/exec/hazards.h"

#include <gtest/gtest.h>

#include "compile/compile.h"
#include "nn/models/gpt.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/hazard_edges.h"
#include "tests/support/compile_once.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

TEST(FullyShardHazards, F177_NoneInTraining) {
  for (int ranks : {2, 3, 4})
    for (bool reshard : {true, false})
      run_ranks(ranks, [&](const Group& group) {
        HazardChecker checker;
        {
          HazardTraining t(group, Device::cpu(),
                           {.blocks = {.reshard_after_forward = nn::ReshardAfterForward(reshard)}});
          train_steps(t);
          GradMode off(false);
          t.net(batch_of(4, 6, 0, "x"));
        }
        EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
        EXPECT_GT(checker.num_checked(), 500);
      });
}

TEST(FullyShardHazards, F177_NoneInATransformerWithATiedHead) {
  run_ranks(2, [](const Group& group) {
    HazardChecker checker;
    nn::Gpt model({.vocabulary = 17, .tokens = 8, .layers = 3, .heads = 2, .width = 16});
    const DeviceMesh mesh(group);
    for (nn::Module* block : model.blocks()) nn::fully_shard(*block, mesh);
    nn::fully_shard(model, mesh);
    model.materialize(nn::Seed{3});
    nn::AdamW optimizer(model.parameters(), {.lr = 0.01});
    const Tensor tokens = Tensor::from<std::int64_t>({1, 2, 3, 4, 5, 6, 7, 8}, {1, 8});
    for (int step = 0; step < 3; ++step) {
      backward(model(tokens, tokens));
      nn::clip_grad_norm(optimizer, 1.0);
      optimizer.step_and_clear();
    }
    EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
  });
}

TEST(FullyShardHazards, F177_NoneInReplays) {
  run_ranks(2, [](const Group& group) {
    HazardChecker checker;
    HazardTraining t(group);
    auto step = compile_once([&](const Tensor& x, const Tensor& y) {
      const Tensor loss = mean_square(t.net(x), y);
      backward(loss);
      const Tensor norm = nn::clip_grad_norm(*t.optimizer, 0.5);
      t.optimizer->step_and_clear();
      return loss + norm;
    });
    for (std::uint64_t i = 0; i < 6; ++i) step(batch_of(4, 6, i, "x"), batch_of(4, 5, i, "y")).item<float>();
    EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
    EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
  });
}

TEST(FullyShardHazards, F177_EveryRemovedEdgeIsFound) {
  expect_every_removed_edge_is_found([](int) { return Device::cpu(); }, [](const Group& host) { return host; });
}

// One of the two ways to keep the input of a reduction is enough.
TEST(FullyShardHazards, F177_FreeingAnInputThatNobodyHoldsWaits) {
  run_ranks(2, [](const Group& group) {
    HazardChecker checker;
    checker.remove({QueueEdge::hold, "reduce"});
    HazardTraining t(group);
    train_steps(t);
    EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
  });
}

}  // namespace
}  // namespace sherd::testing
