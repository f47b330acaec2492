// fully_shard over tensor parallelism beyond one good step: models of the library, values that were there before,
// memory, steps that are left by an exception.
#include <gtest/gtest.h>

#include <chrono>

#include "compile/compile.h"
#include "nn/layers/dropout.h"
#include "nn/models/gpt_plan.h"
#include "nn/models/llama_plan.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard_group.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Clock = std::chrono::steady_clock;

std::int64_t held(MemoryCategory category) { return RankContext::current().allocator().accounting().current(category); }

void expect_same_values(nn::Module& actual, nn::Module& expected, double limit) {
  const auto a = actual.parameters(), e = expected.parameters();
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(near(a[i]->value().local(), part_of(e[i]->value().detach(), a[i]->value()), limit)) << a[i]->name();
}

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
  for (nn::Module* block : model.blocks()) nn::fully_shard(*block, grid.data(root));
  nn::fully_shard(model, grid.data(root));
  model.materialize(nn::Seed{1});
  reference.materialize(nn::Seed{1});
  nn::AdamW optimizer(model.parameters(), {.lr = 1e-2}), expected(reference.parameters(), {.lr = 1e-2});
  for (std::int64_t step = 0; step < 3; ++step) {
    const auto [tokens, targets] = tokens_of(config.vocabulary, step);
    nn::set_step(step);
    RankContext::current().data_coordinate = root.coordinate(0) * grid.dp + root.coordinate(1);
    const Tensor loss = model(rows_of(tokens, root), rows_of(targets, root));
    RankContext::current().data_coordinate = 0;
    const Tensor whole_loss = reference(tokens, targets);
    double mean = loss.item<double>() / group->size();
    const FlatPart part{&mean, DType::f64, 1};
    group->all_reduce({&part, 1}, {})->wait();
    EXPECT_NEAR(mean, whole_loss.item<double>(), 1e-5) << "step " << step;
    backward(loss);
    backward(whole_loss);
    const double norm = nn::clip_grad_norm(optimizer, 0.5).item<double>();
    EXPECT_NEAR(nn::clip_grad_norm(expected, 0.5).item<double>(), norm, 1e-4 * norm);
    optimizer.step_and_clear();
    expected.step_and_clear();
  }
  expect_same_values(model, reference, 1e-4);
}

constexpr nn::TensorParallelOptions kStyles[] = {{.sequence_parallel = false, .loss_parallel = true},
                                                 {.sequence_parallel = true, .loss_parallel = true},
                                                 {.sequence_parallel = true, .loss_parallel = false}};

TEST(FullyShard, F156_LlamaOnTwoAndThreeAxes) {
  nn::LlamaConfig config{
      .vocabulary = 11, .tokens = 6, .layers = 2, .heads = 4, .kv_heads = 2, .width = 8, .hidden = 10};
  for (const Grid3& grid : {Grid3{1, 2, 2}, Grid3{2, 2, 2}})
    for (const bool tied : {false, true})
      for (const nn::TensorParallelOptions& style : kStyles) {
        config.tied_head = tied;
        run_ranks(grid.ranks(), [&](const Group& group) {
          expect_model_parity<nn::Llama>(group, grid, config, nn::llama_plan(config, style));
        });
      }
}

// With dropout: what is drawn for an element does not depend on who holds it.
TEST(FullyShard, F156_GptOnTwoAxes) {
  nn::GptConfig config;
  config.dropout = 0.25;
  config.vocabulary = 11;
  config.tokens = 6;
  config.layers = 2;
  config.heads = 2;
  config.width = 8;
  for (const nn::TensorParallelOptions& style : kStyles)
    run_ranks(4, [&](const Group& group) {
      expect_model_parity<nn::Gpt>(group, {1, 2, 2}, config, nn::gpt_plan(config, style));
    });
}

TEST(FullyShard, F77_LlamaOnTwoAxesReplaysBitwise) {
  const nn::LlamaConfig config{
      .vocabulary = 11, .tokens = 6, .layers = 2, .heads = 4, .kv_heads = 2, .width = 8, .hidden = 10};
  for (const nn::TensorParallelOptions& style : kStyles)
    run_ranks(4, [&](const Group& group) {
      const DeviceMesh root(group, {{"dp", 2}, {"tp", 2}});
      struct Training {
        nn::Llama model;
        std::unique_ptr<nn::AdamW> optimizer;
        Training(const nn::LlamaConfig& c, const nn::TensorParallelOptions& s, const DeviceMesh& mesh) : model(c) {
          nn::parallelize(model, mesh["tp"], nn::llama_plan(c, s));
          for (nn::Module* block : model.blocks()) nn::fully_shard(*block, mesh["dp"]);
          nn::fully_shard(model, mesh["dp"]);
          model.materialize(nn::Seed{1});
          optimizer = std::make_unique<nn::AdamW>(model.parameters(), nn::AdamWOptions{.lr = 1e-2});
        }
        Tensor step(const Tensor& tokens, const Tensor& targets) {
          const Tensor loss = model(tokens, targets);
          backward(loss);
          const Tensor norm = nn::clip_grad_norm(*optimizer, 0.5);
          optimizer->step_and_clear();
          return full_tensor(loss) + norm;
        }
      };
      Training eager(config, style, root), captured(config, style, root);
      CompileOptions options;
      options.group = group;
      auto step = compile([&](const Tensor& x, const Tensor& y) { return captured.step(x, y); }, options);
      for (std::int64_t i = 0; i < 6; ++i) {
        const auto [tokens, targets] = tokens_of(11, i);
        const Tensor x = contiguous(narrow(tokens, 0, 4 * root.coordinate(0), 4)),
                     y = contiguous(narrow(targets, 0, 4 * root.coordinate(0), 4));
        const Tensor expected = eager.step(x, y).detach();
        EXPECT_TRUE(same_bits(step(x, y), expected)) << "step " << i << " " << step.why();
      }
      EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
      const auto a = captured.model.parameters(), e = eager.model.parameters();
      for (std::size_t i = 0; i < a.size(); ++i)
        EXPECT_TRUE(same_bits(a[i]->value().local(), e[i]->value().local())) << a[i]->name();
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
    nn::AdamW optimizer(net.parameters(), {.lr = 0.01}), expected(reference.parameters(), {.lr = 0.01});
    for (std::uint64_t step = 0; step < 3; ++step) {
      const Tensor x = batch3(12, 3, step, "x"), y = batch3(12, 2, step, "y");
      backward(mean_square(net(rows_of(x, root)), rows_of(y, root)));
      backward(mean_square(reference(x), y));
      const double norm = nn::clip_grad_norm(optimizer, 0.1).item<double>();
      EXPECT_NEAR(nn::clip_grad_norm(expected, 0.1).item<double>(), norm, 1e-5 * norm);
      optimizer.step_and_clear();
      expected.step_and_clear();
    }
    expect_same_values(net, reference, 2e-5);
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
    const auto a = net.parameters(), e = reference.parameters();
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(same_bits(a[i]->value().local(), part_of(e[i]->value().detach(), a[i]->value()))) << a[i]->name();
  });
}

// Context parallel ranks are data ranks too: shards over both axes, cut one after the other, are gathered as one.
TEST(FullyShard, F124_ShardsOverAFlattenedAxis) {
  run_ranks(8, [](const Group& group) {
    const DeviceMesh root(group, {{"dp", 2}, {"cp", 2}, {"tp", 2}});
    const DeviceMesh data = root.flatten({"dp", "cp"});
    ResidualNet net(5, 9), reference(5, 9);
    nn::parallelize(net, root["tp"], plan_of(true));
    for (ResidualBlock* block : net.blocks.items()) nn::fully_shard(*block, data);
    nn::fully_shard(net, data);
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    EXPECT_EQ(describe(net.blocks.items()[0]->up.weight.value()), "f32[9,5]{0: tp,dp,cp}");
    nn::AdamW optimizer(net.parameters(), {.lr = 0.01}), expected(reference.parameters(), {.lr = 0.01});
    for (std::uint64_t step = 0; step < 2; ++step) {
      const Tensor x = batch3(12, 3, step, "x"), y = batch3(12, 2, step, "y");
      backward(mean_square(net(rows_of(x, root)), rows_of(y, root)));
      backward(mean_square(reference(x), y));
      const double norm = nn::clip_grad_norm(optimizer, 0.1).item<double>();
      EXPECT_NEAR(nn::clip_grad_norm(expected, 0.1).item<double>(), norm, 1e-5 * norm);
      optimizer.step_and_clear();
      expected.step_and_clear();
    }
    expect_same_values(net, reference, 2e-5);
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
    nn::ShardGroup& unit = *nn::shard_group(*net.blocks.items()[0]);
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

// Raises between two blocks, in forward or in backward.
struct Trap : nn::Layer<Trap> {
  enum Place { nowhere, forward_pass, backward_pass } place = nowhere;
  Tensor forward(const Tensor& x) {
    check(place != forward_pass, "the trap");
    const Tensor y = x * 1.0;
    if (place == backward_pass) register_grad_hook(y, [](const Tensor&) -> Tensor { fail("the trap"); });
    return y;
  }
};
struct TrappedNet : nn::Layer<TrappedNet> {
  ResidualNet &first, &second;
  Trap& trap;
  TrappedNet()
      : first(add<ResidualNet>("first", 5, 8)), second(add<ResidualNet>("second", 5, 8)), trap(add<Trap>("trap")) {}
  Tensor forward(const Tensor& x) { return second(cat({trap(first(x)), narrow(x, 2, 0, 1)}, 2)); }
};

void expect_recovery(const Group& group, const Grid3& grid, Trap::Place place) {
  const DeviceMesh root = grid.mesh(group);
  TrappedNet net, reference;
  if (grid.tp > 1) nn::parallelize(net.first, root["tp"], plan_of(true));
  if (grid.tp > 1) nn::parallelize(net.second, root["tp"], plan_of(true));
  for (ResidualNet* part : {&net.first, &net.second})
    for (ResidualBlock* block : part->blocks.items()) nn::fully_shard(*block, grid.data(root));
  nn::fully_shard(net, grid.data(root));
  net.materialize(nn::Seed{3});
  reference.materialize(nn::Seed{3});
  nn::AdamW optimizer(net.parameters(), {.lr = 0.01}), expected(reference.parameters(), {.lr = 0.01});
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Tensor x = batch3(12, 3, step, "x"), y = batch3(12, 2, step, "y");
    const auto run = [&] { backward(mean_square(net(rows_of(x, root)), rows_of(y, root))); };
    if (step == 1) {
      RankContext::current().drain_streams();
      group->barrier();  // or a rank that is quick fails while others are still in the last step
      if (group->rank() == 1) net.trap.place = place;
      const auto start = Clock::now();
      expect_error(
          [&] {
            run();
            RankContext::current().drain_streams();
            for (nn::Parameter* p : net.parameters()) (void)p->grad().local().raw();
          },
          {"the trap"});
      EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      net.trap.place = Trap::nowhere;
      optimizer.clear_gradients();
      nn::reset_after_error(net);
      EXPECT_EQ(held(MemoryCategory::gradients), 0);
    }
    run();
    backward(mean_square(reference(x), y));
    optimizer.step_and_clear();
    expected.step_and_clear();
  }
  expect_same_values(net, reference, 2e-5);
}

TEST(FullyShard, F43_AStepLeftByOneRankIsLeftByTheWholeMesh) {
  for (const Grid3& grid : {Grid3{1, 2, 2}, Grid3{2, 2, 1}, Grid3{2, 1, 2}})
    for (const Trap::Place place : {Trap::forward_pass, Trap::backward_pass})
      run_ranks(4, [&](const Group& group) { expect_recovery(group, grid, place); });
}

TEST(FullyShard, F43_AStepLeftByOneProcessIsLeftByTheWholeMesh) {
  for (const Trap::Place place : {Trap::forward_pass, Trap::backward_pass})
    run_processes(4, [&](const Group& group) { expect_recovery(group, {1, 2, 2}, place); });
}

}  // namespace
}  // namespace sherd::testing
