// A sharded step as data: recorded on thread ranks, written as text, read back, bound by name to the rank's slots,
// units, groups and settings, and run: the bits of the eager step.
#include <gtest/gtest.h>

#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "runtime/autograd/autograd.h"
#include "tests/compile/training_step.h"
#include "tests/parallel/nets.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct ShardedTraining {
  Net net{{6, 10, 7, 5}};
  std::unique_ptr<nn::AdamW> optimizer;
  Group group;

  ShardedTraining(Group g, const DeviceMesh& mesh, const nn::FullyShardOptions& options) : group(std::move(g)) {
    shard(net, mesh, options, options);
    net.materialize(nn::Seed{5});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamWOptions{.lr = 0.05, .weight_decay = 0.1});
  }
  std::vector<Tensor> batch(int index) const {
    const auto step = static_cast<std::uint64_t>(index);
    return {slice_of(batch_of(12, 6, step, "x"), *group), slice_of(batch_of(12, 5, step, "y"), *group)};
  }
  std::vector<Tensor> step(std::span<const Tensor> in) {
    const Tensor loss = mean_square(net(in[0]), in[1]);
    backward(loss);
    const Tensor norm = nn::clip_grad_norm(*optimizer, 0.5);
    optimizer->step_and_clear();
    return {loss.detach(), norm};
  }
  std::vector<nn::Parameter*> parameters() { return net.parameters(); }
};

TEST(ShardedProgram, FullyShardFromItsTextIsBitwiseTheEagerStep) {
  for (const std::optional<DType> dtype : {std::optional<DType>(), std::optional<DType>(DType::bf16)})
    run_ranks(2, [&](const Group& group) {
      const DeviceMesh mesh(group);
      const nn::FullyShardOptions options{.mp_policy = {.param_dtype = dtype}};
      expect_bound_step_is_eager([&] { return std::make_unique<ShardedTraining>(group, mesh, options); });
    });
}

TEST(ShardedProgram, HsdpFromItsTextIsBitwiseTheEagerStep) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"replicate", 2}, {"dp", 2}});
    expect_bound_step_is_eager([&] { return std::make_unique<ShardedTraining>(group, mesh, nn::FullyShardOptions{}); });
  });
}

}  // namespace
}  // namespace sherd::testing
