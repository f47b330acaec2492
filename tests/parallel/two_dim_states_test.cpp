// fully_shard over tensor parallelism beyond one good step: models of the library, values that were there before,
// memory, steps that are left by an exception.
#include <gtest/gtest.h>

#include <functional>

#include "nn/layers/dropout.h"
#include "nn/models/gpt_plan.h"
#include "nn/models/llama_plan.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "tests/parallel/replay.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// Token ids of a global batch, and those that follow.
std::pair<Tensor, Tensor> tokens_of(std::int64_t vocabulary, std::int64_t step) {
  std::vector<std::int64_t> ids, next;
  for (std::int64_t i = 0; i < 8 * 6; ++i) {
    ids.push_back((i * 7 + step) % vocabulary);
    next.push_back((i * 5 + 3 * step) % vocabulary);
  }
  return {Tensor::from<std::int64_t>(ids, {8, 6}), Tensor::from<std::int64_t>(next, {8, 6})};
}

// Three steps with clipping against one rank; 11 ids and 10 hidden features are uneven.
template <class Model, class Config>
void expect_model_parity(const Group& group, const Grid3& grid, const Config& config, const nn::Plan& plan) {
  const DeviceMesh root = grid.mesh(group);
  Model model(config), reference(config);
  nn::parallelize(model, root["tp"], plan);
  shard(model, grid.data(root));
  model.materialize(nn::Seed{1});
  reference.materialize(nn::Seed{1});
  const auto loss = [&](Model& m, std::uint64_t step, const auto& rows) {
    const auto [tokens, targets] = tokens_of(config.vocabulary, static_cast<std::int64_t>(step));
    nn::set_step(static_cast<std::int64_t>(step));
    return m(rows(tokens), rows(targets));
  };
  const Side spread{
      model,
      [&](std::uint64_t step) { return loss(model, step, [&](const Tensor& ids) { return rows_of(ids, root); }); },
      group.get()};
  const Side of_all{reference, [&](std::uint64_t step) { return loss(reference, step, std::identity()); }};
  expect_trains_alike(spread, of_all, {.steps = 3, .max_norm = 0.5, .norm_limit = 1e-4, .value_limit = 1e-4});
}

constexpr nn::Llama::Config kLlama{
    .vocabulary = 11, .tokens = 6, .layers = 2, .heads = 4, .kv_heads = 2, .width = 8, .hidden = 10};
constexpr nn::TensorParallelOptions kStyles[] = {{.sequence_parallel = false, .loss_parallel = true},
                                                 {.sequence_parallel = true, .loss_parallel = true},
                                                 {.sequence_parallel = true, .loss_parallel = false}};

TEST(FullyShard, F156_LlamaOnTwoAndThreeAxes) {
  for (const Grid3& grid : {Grid3{1, 2, 2}, Grid3{2, 2, 2}})
    for (const bool tied : {false, true})
      for (const nn::TensorParallelOptions& style : kStyles) {
        nn::Llama::Config config = kLlama;
        config.tied_head = tied;
        run_ranks(grid.ranks(), [&](const Group& group) {
          expect_model_parity<nn::Llama>(group, grid, config, nn::llama_plan(config, style));
        });
      }
}

// With dropout: what is drawn for an element does not depend on who holds it.
TEST(FullyShard, F156_GptOnTwoAxes) {
  const nn::Gpt::Config config{.vocabulary = 11, .tokens = 6, .layers = 2, .heads = 2, .width = 8, .dropout = 0.25};
  for (const nn::TensorParallelOptions& style : kStyles)
    run_ranks(4, [&](const Group& group) {
      expect_model_parity<nn::Gpt>(group, {1, 2, 2}, config, nn::gpt_plan(config, style));
    });
}

struct LlamaTraining {
  nn::Llama net;
  std::unique_ptr<nn::AdamW> optimizer;
  LlamaTraining(const nn::Llama::Config& config, const nn::TensorParallelOptions& style, const DeviceMesh& mesh)
      : net(config) {
    nn::parallelize(net, mesh["tp"], nn::llama_plan(config, style));
    shard(net, mesh["dp"]);
    net.materialize(nn::Seed{1});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 1e-2});
  }
  Tensor step(const Tensor& tokens, const Tensor& targets) {
    const Tensor loss = net(tokens, targets);
    backward(loss);
    const Tensor norm = nn::clip_grad_norm(*optimizer, 0.5);
    optimizer->step_and_clear();
    return full_tensor(loss) + norm;
  }
};

TEST(FullyShard, F77_LlamaOnTwoAxesReplaysBitwise) {
  for (const nn::TensorParallelOptions& style : kStyles)
    run_ranks(4, [&](const Group& group) {
      const DeviceMesh root(group, {{"dp", 2}, {"tp", 2}});
      LlamaTraining eager(kLlama, style, root), captured(kLlama, style, root);
      expect_replays_bitwise(group, eager, captured, 6, [&](std::uint64_t i) {
        const auto [tokens, targets] = tokens_of(11, static_cast<std::int64_t>(i));
        const std::int64_t row = 4 * root.coordinate(0);
        return std::pair(contiguous(narrow(tokens, 0, row, 4)), contiguous(narrow(targets, 0, row, 4)));
      });
    });
}

// Only the blocks are tensor parallel; the root's own parameters are plain, and lie over the data axis alone.
TEST(FullyShard, F156_BlocksAloneAreTensorParallel) {
  run_ranks(4, [](const Group& group) {
    const Grid3 grid{1, 2, 2};
    const DeviceMesh root = grid.mesh(group);
    ResidualNet net(5, 7), reference(5, 7);
    const nn::Plan plan{{"", nn::prepare_input({.from = Replicate(), .to = Replicate()})},
                        {"up", nn::colwise()},
                        {"down", nn::rowwise()},
                        {"", nn::prepare_output({.to = Replicate(), .local = true})}};
    for (ResidualBlock* block : net.blocks.items()) {
      nn::parallelize(*block, root["tp"], plan);
      nn::fully_shard(*block, root["dp"]);
    }
    nn::fully_shard(net, root["dp"]);
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    EXPECT_EQ(Spec::from(net.head.weight.value()).mesh(), root["dp"]);
    expect_trains_alike(on_rows(net, root, *group), on_all_rows(reference),
                        {.steps = 3, .max_norm = 0.1, .value_limit = 2e-5});
  });
}

TEST(FullyShard, F22_ValuesThatWereThereStay) {
  run_ranks(4, [](const Group& group) {
    const Grid3 grid{1, 2, 2};
    const DeviceMesh root = grid.mesh(group);
    ResidualNet net(5, 7), reference(5, 7);
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    shard_2d(net, root, grid, true);
    net.materialize(nn::Seed{4});
    expect_same_bits(net, reference);
  });
}

// Context parallel ranks are data ranks too: shards over both axes, cut one after the other, are gathered as one.
TEST(FullyShard, F124_ShardsOverAFlattenedAxis) {
  run_ranks(8, [](const Group& group) {
    const DeviceMesh root(group, {{"dp", 2}, {"cp", 2}, {"tp", 2}});
    const DeviceMesh data = root.flatten({"dp", "cp"});
    ResidualNet net(5, 9), reference(5, 9);
    nn::parallelize(net, root["tp"], plan_of(true));
    shard(net, data);
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    EXPECT_EQ(describe(net.blocks.items()[0]->up.weight.value()), "f32[9,5]{0: tp,dp,cp}");
    expect_trains_alike(on_rows(net, root, *group), on_all_rows(reference),
                        {.steps = 2, .max_norm = 0.1, .value_limit = 2e-5});
  });
}

// A group gathers what tensor parallelism leaves of it, and gradients have that size too.
TEST(FullyShard, F39_GatheredIsThisRanksPart) {
  run_ranks(4, [](const Group& group) {
    const Grid3 grid{1, 2, 2};
    const DeviceMesh root = grid.mesh(group);
    ResidualNet net(16, 64);
    shard_2d(net, root, grid, false);
    net.materialize();
    const ResidualBlock& block = *net.blocks.items()[0];
    const nn::UnitHandle unit = nn::unit_of(*net.blocks.items()[0]);
    // gain, up and its bias, down and its bias: all multiples of a cache line, the last three cut in halves or not.
    EXPECT_EQ(unit.gathered_bytes(), 4 * (16 + 32 * 16 + 32 + 16 * 32 + 16));
    EXPECT_EQ(block.up.weight.value().local().bytes(), 4 * 16 * 16);
    unit.unshard();
    EXPECT_EQ(held(MemoryCategory::unsharded), unit.gathered_bytes());
    unit.reshard();
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
    backward(sum(net(rows_of(batch3(4, 3, 0, "x"), root))));
    std::int64_t gradients = 0;
    for (const nn::Parameter* p : net.parameters()) gradients += p->grad().local().bytes();
    EXPECT_LE(held(MemoryCategory::gradients), gradients + 64 * static_cast<std::int64_t>(net.parameters().size()));
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
}

// torchtitan #191: fully_shard over tensor parallelism took much more memory than either needs: buffers of collectives
// were held until a stream had passed them. Here no byte of any category depends on how fast links are, gathered at a
// time are this rank's parts of the root and two neighbours, and a step leaves nothing behind.
TEST(FullyShard, F39_PeakOfTwoDimensionsIsTheRootAndTwoNeighbours) {
  const std::optional<LinkShape> links[] = {
      {}, LinkShape{.bytes_per_second = 1e9, .seconds = 5e-4}, LinkShape{.bytes_per_second = 2e7, .seconds = 0}};
  std::vector<std::pair<CategoryBytes, CategoryBytes>> peaks;  // of the forward, of the step
  for (const std::optional<LinkShape>& link : links)
    run_ranks(4, [&](const Group& group) {
      if (link) group->host().shape_link(*link);
      const Grid3 grid{1, 2, 2};
      const DeviceMesh root = grid.mesh(group);
      ResidualNet net(16, 64, 4);
      shard_2d(net, root, grid, true);
      net.materialize();
      nn::AdamW optimizer(net.parameters());
      Accounting& memory = RankContext::current().allocator().accounting();
      std::pair<CategoryBytes, CategoryBytes> peak;
      for (int i = 0; i < 3; ++i) {
        const std::int64_t before = memory.total();
        memory.reset_peaks();
        {
          const Tensor loss = sum(net(rows_of(batch3(4, 3, 0, "x"), root)));
          peak.first = memory.peak();
          backward(loss);
        }
        optimizer.step_and_clear();
        peak.second = memory.peak();
        if (i == 2) { EXPECT_EQ(memory.total(), before); }
      }
      // gain, up and its bias, down and its bias: each rank of tp has half of what is cut.
      const std::int64_t block = 4 * (16 + 32 * 16 + 32 + 16 * 32 + 16);
      EXPECT_EQ(nn::unit_of(*net.blocks.items()[0]).gathered_bytes(), block);
      EXPECT_EQ(peak.second[static_cast<std::size_t>(MemoryCategory::unsharded)],
                nn::unit_of(net).gathered_bytes() + 2 * block);
      if (group->rank() == 0) peaks.push_back(peak);
    });
  for (const auto& peak : peaks) EXPECT_EQ(peak, peaks[0]);
}

// Raises between two blocks, in forward or in backward.
struct TrapLayer : nn::Layer<TrapLayer> {
  enum Place { nowhere, forward_pass, backward_pass } place = nowhere;
  Tensor forward(const Tensor& x) {
    check(place != forward_pass, "the trap");
    const Tensor y = x * 1.0;
    if (place == backward_pass) register_grad_hook(y, [](const Tensor&) -> Tensor { fail("the trap"); });
    return y;
  }
};
struct TrappedResidualNet : nn::Layer<TrappedResidualNet> {
  ResidualNet &first, &second;
  TrapLayer& trap;
  TrappedResidualNet()
      : first(add<ResidualNet>("first", 5, 8)),
        second(add<ResidualNet>("second", 5, 8)),
        trap(add<TrapLayer>("trap")) {}
  Tensor forward(const Tensor& x) { return second(cat({trap(first(x)), narrow(x, 2, 0, 1)}, 2)); }
};

void expect_recovery(const Group& group, const Grid3& grid, TrapLayer::Place place) {
  const DeviceMesh root = grid.mesh(group);
  TrappedResidualNet net, reference;
  if (grid.tp > 1) nn::parallelize(net.first, root["tp"], plan_of(true));
  if (grid.tp > 1) nn::parallelize(net.second, root["tp"], plan_of(true));
  for (ResidualNet* part : {&net.first, &net.second})
    for (ResidualBlock* block : part->blocks.items()) nn::fully_shard(*block, grid.data(root));
  nn::fully_shard(net, grid.data(root));
  net.materialize(nn::Seed{3});
  reference.materialize(nn::Seed{3});
  const Side spread = on_rows(net, root, *group);
  const auto leave_one_step = [&](std::uint64_t step, nn::Optimizer& optimizer) {
    if (step != 1) return;
    RankContext::current().drain_queues();
    group->host().barrier();  // or a rank that is quick fails while others are still in the last step
    if (group->rank() == 1) net.trap.place = place;
    expect_left_by_all(net, optimizer, [&] { backward(spread.loss(step)); }, "the trap");
    net.trap.place = TrapLayer::nowhere;
  };
  expect_trains_alike(spread, on_all_rows(reference), {.steps = 3, .value_limit = 2e-5, .before_step = leave_one_step});
}

TEST(FullyShard, F43_AStepLeftByOneRankIsLeftByTheWholeMesh) {
  for (const Grid3& grid : {Grid3{1, 2, 2}, Grid3{2, 2, 1}, Grid3{2, 1, 2}})
    for (const TrapLayer::Place place : {TrapLayer::forward_pass, TrapLayer::backward_pass})
      run_ranks(4, [&](const Group& group) { expect_recovery(group, grid, place); });
}

TEST(FullyShard, F43_AStepLeftByOneProcessIsLeftByTheWholeMesh) {
  for (const TrapLayer::Place place : {TrapLayer::forward_pass, TrapLayer::backward_pass})
    run_processes(4, [&](const Group& group) { expect_recovery(group, {1, 2, 2}, place); });
}

}  // namespace
}  // namespace sherd::testing
