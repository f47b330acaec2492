// fully_shard over groups of the emulated NCCL. Oracles: the same training over a group that stages through the host,
// whose bits ordered sums have, and on the host, whose kernels round differently.
#include <gtest/gtest.h>

#include <atomic>

#include "compile/compile.h"
#include "nn/checkpoint/full/state_hash.h"
#include "nn/models/model_config.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/plan/apply.h"
#include "nn/random_rows.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/staged_group.h"
#include "runtime/op/core/grad_mode.h"
#include "runtime/op/rows/ops.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/nccl/fake_ranks.h"
#include "tests/cuda/nccl/nccl_engine.h"
#include "tests/parallel/nets.h"
#include "tests/support/emulated_gpu/control.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::cuda::nccl {
namespace {

using namespace sherd::testing;  // NOLINT
using Group = std::shared_ptr<ProcessGroup>;
using FakeUnits = FakeNccl;
using nn::TrainingPlan;

constexpr std::int64_t kRows = 4, kTokens = 4, kIds = 11;
const nn::Llama::Config kModel{
    .vocabulary = kIds, .tokens = kTokens, .layers = 1, .heads = 4, .kv_heads = 4, .width = 8, .hidden = 12};

/// Tokens and targets of this rank's rows.
std::vector<Tensor> batch_at(std::int64_t step, int rank, int ranks, Device device) {
  const std::int64_t rows = kRows / ranks;
  std::vector<std::int32_t> tokens, targets;
  for (std::int64_t i = rank * rows; i < (rank + 1) * rows; ++i)
    for (std::int64_t t = 0; t < kTokens; ++t) {
      tokens.push_back(static_cast<std::int32_t>((7 * t + i * i + 3 * step) % kIds));
      targets.push_back(static_cast<std::int32_t>((5 * t + 2 * i + step * step) % kIds));
    }
  return {to(Tensor::from<std::int32_t>(tokens, {rows, kTokens}), device),
          to(Tensor::from<std::int32_t>(targets, {rows, kTokens}), device)};
}

struct Trained {
  std::string state;  ///< hash of parameters and optimizer state, whole
  std::vector<float> losses;
};

/// Three steps. The mean loss of all ranks, and the state after them.
Trained train(TrainingPlan plan, const Group& group, Device device) {
  plan.device = device;
  const nn::JobMesh mesh(plan.mesh, group);
  const auto model = nn::make_language_model(kModel);
  apply(plan, {.ranks = group->size(), .batch = kRows}, *model, mesh, nn::make_plan(kModel, plan.tensor_parallel));
  model->materialize(nn::Seed{3}, device);
  nn::AdamW optimizer(model->parameters(), nn::AdamW::Options{.lr = 3e-3});
  const auto update = [&](std::span<const Tensor> in) {
    Tensor loss =
        forward_backward(plan, *model, in, [&](std::span<const Tensor> part) { return (*model)(part[0], part[1]); });
    if (plan.numerics.layout_free()) nn::clip_grad_norm(optimizer, 0.5, nn::layout_free_grad_norm(model->parameters()));
    else nn::clip_grad_norm(optimizer, 0.5);
    optimizer.step_and_clear();
    const GradMode off(false);
    return std::vector{all_reduce(std::move(loss), mesh.data_group(), ReduceKind::avg)};
  };
  std::optional<CompiledStep> compiled;
  if (plan.compiled) compiled.emplace(update, CompileOptions{.group = group, .compare = false});
  Trained trained;
  for (std::int64_t step = 0; step < 3; ++step) {
    nn::set_step(step);
    const std::vector<Tensor> in = batch_at(step, mesh.data_rank(), mesh.num_data_ranks(), device);
    trained.losses.push_back((compiled ? (*compiled)(in) : update(in))[0].item<float>());
  }
  EXPECT_TRUE(!compiled || compiled->mode() == CompiledStep::Mode::replay) << compiled->why();
  trained.state = ckpt::hash_state(nn::training_state(*model, &optimizer), *group);
  return trained;
}

void expect_near(const Trained& got, const Trained& expected, double limit) {
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(got.losses[i], expected.losses[i], limit) << "step " << i;
}

/// Ordered sums have the bits of a group that stages, and fast ones are near.
void expect_as_staged(int ranks, const TrainingPlan& plan) {
  SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, print(plan)));
  run_ranks(ranks, [&](const Group& host) {
    const Device there = device_of_rank(host->rank());
    const Trained on_host = train(plan, host, Device::cpu());
    const Trained staged = train(plan, make_staged_group(host), there);
    const bool is_narrow = plan.param_dtype != DType::f32;
    const Trained ordered = train(plan, group_over(host), there);
    EXPECT_EQ(ordered.state, staged.state);
    EXPECT_EQ(ordered.losses, staged.losses);
    expect_near(ordered, on_host, is_narrow ? 1e-2 : 1e-5);
    if (is_narrow || plan.compiled) return;
    NcclGroupOptions options = quick_options();
    options.sums = SumsBy::fast;
    expect_near(train(plan, group_over(host, options), there), ordered, 1e-6);
  });
}

struct Way {
  int ranks;
  TrainingPlan plan;
};
std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.ranks << " ranks " << print(way.plan); }

std::vector<Way> ways() {
  const Way meshes[] = {{2, {}},
                        {2, {.mesh = "dp=1,tp=2"}},
                        {2, {.mesh = "replicate=2,dp=1", .strategy = "hybrid_shard"}},
                        {4, {}},
                        {4, {.mesh = "replicate=2,dp=2", .strategy = "hybrid_shard"}},
                        {4, {.mesh = "dp=1,tp=4"}},
                        {4, {.mesh = "dp=2,tp=2", .tensor_parallel = {.sequence_parallel = true}}}};
  std::vector<Way> all;
  for (Way way : meshes)
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool is_captured : {false, true}) {
        way.plan.param_dtype = dtype;
        way.plan.compiled = is_captured;
        all.push_back(way);
      }
  return all;
}

class FakeWays : public FakeNccl, public ::testing::WithParamInterface<Way> {};
INSTANTIATE_TEST_SUITE_P(Units, FakeWays, ::testing::ValuesIn(ways()));

TEST_P(FakeWays, TrainAsOverStagedGroups) { expect_as_staged(GetParam().ranks, GetParam().plan); }

TEST_F(FakeUnits, LayoutFreeStepsHaveOneStateOnAllNumbersOfDevices) {
  std::vector<std::string> states;
  for (const int ranks : {1, 2, 4})
    run_ranks(ranks, [&](const Group& host) {
      const Trained trained =
          train({.numerics = "layout_free", .leaves = 4}, group_over(host), device_of_rank(host->rank()));
      if (host->rank() == 0) states.push_back(trained.state + fmt::format(" {}", trained.losses.back()));
    });
  EXPECT_EQ(states, std::vector<std::string>(3, states[0]));
}

TEST_F(FakeUnits, AStepWaitsOnceForItsLossAndAGatherIsOneList) {
  run_ranks(2, [](const Group& host) {
    const Device there = device_of_rank(host->rank());
    std::map<std::string, std::int64_t, std::less<>> lists;
    NcclGroupOptions options = quick_options();
    options.on_launch = [&](std::string_view name, std::uint64_t) { ++lists[std::string(name)]; };
    const Group group = group_over(host, options);
    Net net(kThreeBlocks);
    shard(net, DeviceMesh(group, "dp"));
    net.materialize(nn::Seed{3}, there);
    nn::AdamW optimizer(net.parameters(), nn::AdamW::Options{.lr = 0.01});
    for (std::uint64_t step = 0; step < 4; ++step) {
      const CommCounts counts = settled_counts(*host);
      const std::int64_t before = emulated::host_syncs_here();
      lists.clear();
      const Tensor x = to(batch_of(4, 6, step, "x"), there), y = to(batch_of(4, 5, step, "y"), there);
      const Tensor loss = mean_square(net(x), y);
      backward(loss);
      optimizer.step_and_clear();
      const std::int64_t in_step = emulated::host_syncs_here() - before;
      EXPECT_GT(loss.item<float>(), 0);
      const CommCounts of_step = counts_since(counts, *host);
      EXPECT_EQ(lists["world gather"], of_step.all_gather.calls);
      EXPECT_EQ(lists["world reduce"], of_step.reduce_scatter.calls);
      EXPECT_GE(of_step.all_gather.calls, 4);
      if (step > 0) { EXPECT_EQ(in_step, 0) << "step " << step; }
    }
  });
}

// The step that fails is left by all ranks; from the next one on it is as if there had been none.
TEST_F(FakeUnits, AStepAfterAnErrorIsAsIfThereHadBeenNone) {
  run_ranks(2, [](const Group& host) {
    const Group group = group_over(host);
    const Device there = device_of_rank(host->rank());
    const auto values_after = [&](bool has_error) {
      Net net(kThreeBlocks);
      shard(net, DeviceMesh(group, "dp"));
      net.materialize(nn::Seed{3}, there);
      nn::AdamW optimizer(net.parameters(), nn::AdamW::Options{.lr = 0.01});
      const auto loss_of = [&](std::uint64_t step) {
        const Tensor x = to(batch_of(4, 6, step, "x"), there), y = to(batch_of(4, 5, step, "y"), there);
        const Tensor loss = mean_square(net(x), y);
        backward(loss);
        return loss;
      };
      for (std::uint64_t step = 0; step < 4; ++step) {
        if (has_error && step > 0) {
          RankContext::current().drain_queues();
          host->host().barrier();  // what is in flight is of this step
          if (group->rank() == static_cast<int>(step % 2)) group->abort("enough");
          try {
            (void)loss_of(step).item<float>();
            for (nn::Parameter* p : net.parameters()) (void)p->grad().local().to_vector<float>();
            ADD_FAILURE() << "step " << step << " ended well";
          } catch (const CommError& error) {
            EXPECT_NE(std::string(error.what()).find("aborted the group: enough"), std::string::npos) << error.what();
          }
          optimizer.clear_gradients();
          nn::reset_after_error(net);
        }
        EXPECT_GT(loss_of(step).item<float>(), 0);
        nn::clip_grad_norm(optimizer, 1.0);
        optimizer.step_and_clear();
      }
      std::vector<Tensor> values;
      for (nn::Parameter* p : net.parameters()) values.push_back(to(full_tensor(p->sharded_value()), Device::cpu()));
      return values;
    };
    const std::vector<Tensor> expected = values_after(false), got = values_after(true);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i], expected[i])) << "parameter " << i;
  });
}

}  // namespace
}  // namespace sherd::cuda::nccl
