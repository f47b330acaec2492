// A sharded step as data: recorded on thread ranks, written as text, read back, bound by name to the rank's slots,
// units, groups and settings, and run: the bits of the eager step.
#include <gtest/gtest.h>

#include <array>

#include "nn/models/llama_plan.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "runtime/autograd/autograd.h"
#include "tests/compile/training_step.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct ShardedTraining {
  Net net{{6, 10, 7, 5}};
  std::unique_ptr<nn::AdamW> optimizer;
  Group group;

  ShardedTraining(Group g, const DeviceMesh& mesh, const nn::UnitPolicy& options) : group(std::move(g)) {
    shard(net, mesh, options, options);
    net.materialize(nn::Seed{5});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.05, .weight_decay = 0.1});
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
      const nn::UnitPolicy options{.mp_policy = {.param_dtype = dtype}};
      expect_bound_step_is_eager([&] { return std::make_unique<ShardedTraining>(group, mesh, options); });
    });
}

TEST(ShardedProgram, HsdpFromItsTextIsBitwiseTheEagerStep) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"replicate", 2}, {"dp", 2}});
    expect_bound_step_is_eager([&] { return std::make_unique<ShardedTraining>(group, mesh, nn::UnitPolicy{}); });
  });
}

// Shards are even, so that all sizes fit: only the layouts tell the ranks apart.
TEST(ShardedProgram, ATextIsForARankThatHasItsShards) {
  std::array<std::string, 2> texts;
  run_ranks(2, [&](const Group& group) {
    const DeviceMesh mesh(group);
    Net net(kEven);
    shard(net, mesh);
    net.materialize(nn::Seed{5});
    const Tensor x = batch_of(4, 64, 0, "x");
    const auto step = [&]() -> std::vector<Tensor> {
      const GradMode off(false);
      return {sum(net(x))};
    };
    step();
    const ir::Graph graph = recorded({}, step);
    const auto rank = static_cast<std::size_t>(group->rank());
    texts[rank] = text(lower(graph));
    group->host().barrier();
    const std::vector<Ref<Storage>> constants = graph.live.constants;
    EXPECT_NO_THROW(bind(parse(texts[rank]), {.slots = {}, .constants = constants}));
    expect_error([&] { bind(parse(texts[1 - rank]), {.slots = {}, .constants = constants}); },
                 {"unit \"", fmt::format("is shard {} of 2 over the group \"", 1 - rank),
                  fmt::format("and this rank has shard {} of 2", rank)});
    group->host().barrier();  // texts are read until here
  });
}

struct LlamaOnTwoAxes {
  static constexpr nn::Llama::Config kConfig{
      .vocabulary = 11, .tokens = 6, .layers = 2, .heads = 4, .kv_heads = 2, .width = 8, .hidden = 10};
  nn::Llama net{kConfig};
  std::unique_ptr<nn::AdamW> optimizer;
  DeviceMesh mesh;

  LlamaOnTwoAxes(const DeviceMesh& root, const nn::TensorParallelOptions& style) : mesh(root) {
    nn::parallelize(net, mesh["tp"], nn::llama_plan(kConfig, style));
    shard(net, mesh["dp"]);
    net.materialize(nn::Seed{1});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 1e-2, .weight_decay = 0.1});
  }
  /// i64 [4, 6], twice: this data rank's rows.
  std::vector<Tensor> batch(int index) const {
    std::vector<std::int64_t> ids, next;
    for (std::int64_t i = 0; i < 4 * 6; ++i) {
      const std::int64_t at = 4 * 6 * mesh.coordinate(0) + i;
      ids.push_back((at * 7 + index) % kConfig.vocabulary);
      next.push_back((at * 5 + 3 * index) % kConfig.vocabulary);
    }
    return {Tensor::from<std::int64_t>(ids, {4, 6}), Tensor::from<std::int64_t>(next, {4, 6})};
  }
  std::vector<Tensor> step(std::span<const Tensor> in) {
    const Tensor loss = net(in[0], in[1]);
    backward(loss);
    const Tensor norm = nn::clip_grad_norm(*optimizer, 0.5);
    optimizer->step_and_clear();
    return {full_tensor(loss).detach(), norm};
  }
  std::vector<nn::Parameter*> parameters() { return net.parameters(); }
};

// 11 words and 10 hidden features are uneven; layouts of the mesh and of its slices are found by name.
TEST(ShardedProgram, LlamaOnTwoAxesFromItsTextIsBitwiseTheEagerStep) {
  for (const bool sequence : {false, true})
    run_ranks(4, [&](const Group& group) {
      const DeviceMesh root(group, {{"dp", 2}, {"tp", 2}});
      expect_bound_step_is_eager([&] {
        return std::make_unique<LlamaOnTwoAxes>(root, nn::TensorParallelOptions{.sequence_parallel = sequence});
      });
    });
}

}  // namespace
}  // namespace sherd::testing
