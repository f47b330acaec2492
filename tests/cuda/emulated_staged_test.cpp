// How often a rank's thread waits for its device in a step of fully_shard over a staged group. The first step also
// makes what later ones use: optimizer state, lanes, pinned memory.
#include <gtest/gtest.h>

#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/staged_group.h"
#include "tests/cuda/cuda_test.h"
#include "tests/parallel/nets.h"
#include "tests/support/emulated_gpu/control.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using EmulatedStaged = cuda::CudaTest;

TEST_F(EmulatedStaged, F179_AStepWaitsOnceForItsLoss) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& host) {
    const Device there = cuda::device_of_rank(host->rank());
    Net net({6, 10, 7, 9, 5});
    shard(net, DeviceMesh(make_staged_group(host), "dp"));
    net.materialize(nn::Seed{3}, there);
    nn::AdamW optimizer(net.parameters(), nn::AdamW::Options{.lr = 0.01});
    for (std::uint64_t step = 0; step < 4; ++step) {
      const std::int64_t before = cuda::emulated::host_syncs_here();
      const Tensor x = to(batch_of(4, 6, step, "x"), there), y = to(batch_of(4, 5, step, "y"), there);
      const Tensor loss = mean_square(net(x), y);
      backward(loss);
      nn::clip_grad_norm(optimizer, 1.0);
      optimizer.step_and_clear();
      const std::int64_t in_step = cuda::emulated::host_syncs_here() - before;
      EXPECT_GT(loss.item<float>(), 0);
      if (step == 0) continue;
      EXPECT_EQ(in_step, 0) << "step " << step;
      EXPECT_EQ(cuda::emulated::host_syncs_here(), before + 1) << "step " << step;
    }
  });
}

}  // namespace
}  // namespace sherd::testing
