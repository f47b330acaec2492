// Loss scaling over meshes: one rank's overflow is everybody's. Oracles: scales by PyTorch's rule; the same training
// without a scaler and without the bad batches, whose bits a power of two does not change.
#include "nn/optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/optim/sgd.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/replay.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_trap.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr Grid3 kScalerGrids[] = {{1, 1, 1}, {1, 2, 1}, {1, 3, 1}, {2, 2, 1},
                                  {1, 1, 2}, {1, 2, 2}, {2, 1, 2}, {2, 2, 2}};
constexpr nn::LossScaler::Options kOptions{.init_scale = 1024, .growth_interval = 2};
const std::string kScript = "..x.xx...x..";

/// The scale that each step of the script uses, and that after the last.
std::vector<double> scales() { return {1024, 1024, 2048, 1024, 1024, 512, 256, 256, 512, 512, 256, 256, 512}; }

/// Cut by tensor parallelism and fully_shard. The batch of step i is bad on the data rank i % ranks where the script
/// says so.
struct ScaledTraining {
  Grid3 grid;
  DeviceMesh root;
  ResidualNet net{6, 8};
  std::unique_ptr<nn::AdamW> optimizer;
  std::unique_ptr<nn::LossScaler> scaler;
  double max_norm = kInf;

  ScaledTraining(const Group& group, const Grid3& g, bool scaled, const nn::UnitPolicy& options = {})
      : grid(g), root(g.mesh(group)) {
    shard_2d(net, root, grid, false, options);
    net.materialize(nn::Seed{3});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.01});
    if (scaled) scaler = std::make_unique<nn::LossScaler>(kOptions);
  }
  bool is_bad_here(std::uint64_t step) const {
    const int ranks = grid.replicas * grid.dp, rank = root.coordinate(0) * grid.dp + root.coordinate(1);
    return kScript[step] == 'x' && static_cast<int>(step) % ranks == rank;
  }
  std::pair<Tensor, Tensor> batch(std::uint64_t step) const {
    Tensor x = rows_of(batch3(12, 3, step, "x"), root);
    if (is_bad_here(step)) x = mul(x, step % 2 == 0 ? 1e30 : kInf);
    return {x, rows_of(batch3(12, 2, step, "y"), root)};
  }
  /// Returns the loss, the unscaled norm and the scale it was made with.
  Tensor step(const Tensor& x, const Tensor& y) {
    const Tensor loss = mean_square(cast(net(x), DType::f32), y);
    backward(scaler ? scaler->scale(loss) : loss);
    Tensor scale = scaler ? add(scaler->current_scale(), 0) : ones({});
    Tensor norm = scaler ? scaler->unscale(*optimizer, max_norm) : nn::clip_grad_norm(*optimizer, max_norm);
    optimizer->step_and_clear();
    if (scaler) scaler->update();
    return stack({loss.detach(), norm, scale}, 0);
  }
  /// Copies of what a step may change on this rank.
  std::vector<Tensor> everything() {
    std::vector<Tensor> all{optimizer->step_slot().value()};
    for (const nn::Parameter* p : net.parameters()) all.push_back(p->value().local().detach());
    for (const nn::OptimizerState& s : optimizer->state()) all.push_back(s.slot->value().local());
    for (const nn::OptimizerState& s : optimizer->counts()) all.push_back(s.slot->value());
    for (Tensor& t : all) t = add(t, 0);
    return all;
  }
};

void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << what << ", tensor " << i;
}

/// One rank's part of the test, on ranks of any kind.
void expect_script(const Group& group, const Grid3& grid) {
  ScaledTraining scaled(group, grid, true), plain(group, grid, false);
  scaled.everything();  // makes the optimizers' state
  plain.everything();
  for (std::uint64_t i = 0; i < kScript.size(); ++i) {
    const bool is_bad = kScript[i] == 'x';
    const std::vector<Tensor> before = scaled.everything();
    const auto [x, y] = scaled.batch(i);
    const std::vector<double> out = scaled.step(x, y).to_vector<double>();
    EXPECT_EQ(std::isfinite(out[1]), !is_bad) << "step " << i;
    EXPECT_EQ(out[2], scales()[i]) << "step " << i;
    expect_equal_on_all(*group, scaled.scaler->current_scale().item<double>());
    if (is_bad) {
      expect_same(scaled.everything(), before, fmt::format("skipped step {}", i));
      continue;
    }
    plain.step(x, y);
    expect_same(scaled.everything(), plain.everything(), fmt::format("step {}", i));
  }
  EXPECT_EQ(scaled.scaler->current_scale().item<double>(), scales().back());
  EXPECT_EQ(scaled.scaler->skipped_steps().item<double>(), 4);
  EXPECT_EQ(scaled.optimizer->step_slot().value().item<double>(), 8);
}

TEST(FullyShard, F97_AnOverflowOnOneRankSkipsTheStepOnAll) {
  for (const Grid3& grid : kScalerGrids)
    run_ranks(grid.ranks(), [&](const Group& group) { expect_script(group, grid); });
}

TEST(FullyShard, F97_WithProcesses) {
  for (const Grid3 grid : {Grid3{1, 2, 1}, Grid3{1, 2, 2}})
    run_processes(grid.ranks(), [grid](const Group& group) { expect_script(group, grid); });
}

TEST(FullyShard, F97_ACapturedStepSkipsWithoutABranch) {
  for (const Grid3& grid : kScalerGrids)
    run_ranks(grid.ranks(), [&](const Group& group) {
      ScaledTraining eager(group, grid, true), captured(group, grid, true);
      eager.max_norm = captured.max_norm = 0.5;
      expect_replays_bitwise(group, eager, captured, static_cast<int>(kScript.size()),
                             [&](std::uint64_t i) { return eager.batch(i); });
      expect_same(captured.everything(), eager.everything(), "after the last step");
      for (const ScaledTraining* each : {&eager, &captured}) {
        EXPECT_EQ(each->scaler->current_scale().item<double>(), scales().back());
        EXPECT_EQ(each->scaler->skipped_steps().item<double>(), 4);
      }
    });
}

/// The scale and its counts.
std::vector<double> numbers_of(nn::LossScaler& scaler) {
  std::vector<double> numbers;
  for (const auto& [name, slot] : scaler.state()) numbers.push_back(slot->value().item<double>());
  return numbers;
}

// Whichever of the micro-batches it is in, on whichever rank; the next step is that of a model to which it never came.
TEST(FullyShard, F97_AnOverflowInAMicroBatchThatWaitsSkipsTheStepInEveryStrategy) {
  constexpr std::uint64_t kPasses = 3;
  for (const std::string& name : nn::strategy_names())
    for (const bool adds_up_shards : {false, true})
      for (const bool by_replicas : {false, true})
        run_ranks(4, [&](const Group& group) {
          nn::UnitPolicy policy = nn::strategy(name);
          if (adds_up_shards && policy.optimizer == nn::ShardedOver::none) return;
          if (adds_up_shards) policy.gradients = nn::ShardedOver::shards;
          SCOPED_TRACE(fmt::format("{}, shards {}, replicas {}", name, adds_up_shards, by_replicas));
          const Grid3 grid{2, 2, 1};
          const DeviceMesh root = grid.mesh(group);
          root.flatten({"replicate", "dp"});  // for what is whole on all data ranks
          ScaledTraining scaled(group, grid, true, policy), plain(group, grid, false, policy);
          scaled.everything();
          plain.everything();
          double scale = 1024;
          for (std::uint64_t bad = 0; bad < 2 * kPasses; ++bad) {
            const auto train = [&](ScaledTraining& training, bool is_bad) {
              for (std::uint64_t pass = 0; pass < kPasses; ++pass) {
                const bool waits = pass + 1 < kPasses;
                if (by_replicas) nn::units(training.net).set_requires_all_reduce(!waits);
                else nn::units(training.net).set_requires_gradient_sync(!waits);
                Tensor x = rows_of(batch3(12, 3, 10 * bad + pass, "x"), training.root);
                if (is_bad && pass == bad % kPasses && group->rank() == static_cast<int>(bad % 4)) x = mul(x, kInf);
                const Tensor loss = mean_square(training.net(x), rows_of(batch3(12, 2, pass, "y"), training.root));
                backward(training.scaler ? training.scaler->scale(loss) : loss);
              }
              if (training.scaler) training.scaler->unscale(*training.optimizer);
              training.optimizer->step_and_clear();
              if (training.scaler) training.scaler->update();
            };
            const std::vector<Tensor> before = scaled.everything();
            train(scaled, true);
            expect_same(scaled.everything(), before, fmt::format("skipped step {}", bad));
            scale /= 2;
            EXPECT_EQ(scaled.scaler->current_scale().item<double>(), scale);
            EXPECT_EQ(held(MemoryCategory::gradients), 0);
            train(scaled, false);
            train(plain, false);
            expect_same(scaled.everything(), plain.everything(), fmt::format("step {}", bad));
          }
        });
}

// Ranks with different scales would mix their gradients.
TEST(FullyShard, F97_F191_AStepThatIsLeftLeavesOneScaleOnAllRanks) {
  for (const int victim : {0, 1})
    run_ranks(2, [=](const Group& group) {
      ScaledTraining training(group, {1, 2, 1}, true);
      for (std::uint64_t i = 0; i < 2; ++i) {
        const auto [x, y] = training.batch(i);
        training.step(x, y);
      }
      EXPECT_EQ(numbers_of(*training.scaler), (std::vector<double>{2048, 0, 0}));
      const auto [x, y] = training.batch(2);  // bad
      backward(training.scaler->scale(mean_square(cast(training.net(x), DType::f32), y)));
      training.scaler->unscale(*training.optimizer);
      training.optimizer->step_and_clear();
      if (group->rank() == victim) {
        const OpTrap trap(0);
        expect_error([&] { training.scaler->update(); }, {"the trap"});
      } else {
        training.scaler->update();
      }
      nn::reset_after_error(training.net);
      EXPECT_EQ(training.optimizer->torn(), "");
      const double scale = victim == 0 ? 2048 : 1024;  // rank 0's
      EXPECT_EQ(numbers_of(*training.scaler), (std::vector<double>{scale, 0, victim == 0 ? 0.0 : 1.0}));
      const auto [good_x, good_y] = training.batch(1);  // what the bad batch was seen to be does not count now
      training.step(good_x, good_y);
      EXPECT_EQ(numbers_of(*training.scaler), (std::vector<double>{scale, 1, victim == 0 ? 0.0 : 1.0}));
    });
}

// The decision travels with the norm.
TEST(FullyShard, F97_AgreeingIsOneAllReduceOfOneNumber) {
  run_ranks(4, [](const Group& group) {
    ScaledTraining training(group, {1, 2, 2}, true);
    const auto [x, y] = training.batch(0);
    backward(training.scaler->scale(mean_square(training.net(x), y)));
    const auto counts_so_far = [&] {
      const int all[] = {0, 1, 2};
      CommCounts counts = settled_counts(*training.root.joint_group(all));
      for (const char* axis : {"dp", "tp"}) counts += training.root.group(axis).host().counts();
      return counts;
    };
    const CommCounts before = counts_so_far();
    training.scaler->unscale(*training.optimizer, 1);
    training.optimizer->step_and_clear();
    training.scaler->update();
    CommCounts counts = counts_so_far();
    counts -= before;
    EXPECT_EQ(counts.all_reduce.calls, 1);
    EXPECT_EQ(counts.all_reduce.bytes, 8);
    EXPECT_EQ(counts.all_gather.calls + counts.reduce_scatter.calls, 0);
  });
}

/// A parameter whose gradient is this rank's number, in a layout that says it is the same where it is replicated.
std::unique_ptr<nn::Parameter> given(const DeviceMesh& mesh, std::initializer_list<Placement> placements, double g) {
  const Shape shape{4};
  const Spec* spec = Spec::of(mesh, placements, {});
  auto p = std::make_unique<nn::Parameter>("p", shape, nn::Init::zeros(), DType::f32);
  p->set(Tensor::distributed(shape, spec, zeros(spec->local_shape(shape))));
  p->set_grad(Tensor::distributed(shape, spec, full(spec->local_shape(shape), g)));
  return p;
}

// What ranks hold several times should be the same bits; where one of them is not finite, all ranks skip.
TEST(FullyShard, F97_AReplicaThatIsNotFiniteIsSeenByAll) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh root(group, {{"dp", 2}, {"tp", 2}});
    for (int bad = -1; bad < 4; ++bad)
      for (const double p : {1.0, 2.0, kInf})
        for (const double value : {std::nan(""), kInf}) {
          const double g = group->rank() == bad ? value : 2;
          const auto both = given(root, {Replicate(), Replicate()}, g), tp = given(root, {Shard(0), Replicate()}, g),
                     dp = given(root["tp"], {Replicate()}, g), data = given(root["dp"], {Shard(0)}, 2);
          nn::Parameter plain("plain", {4}, nn::Init::zeros(), DType::f32);
          plain.set(zeros({4}));
          plain.set_grad(full({4}, g));
          const std::vector<std::vector<nn::Parameter*>> lists = {
              {both.get()}, {tp.get()}, {dp.get()}, {both.get(), tp.get(), dp.get(), data.get()}, {data.get(), &plain}};
          for (const auto& list : lists) {
            nn::Sgd optimizer(list, {.lr = 1});
            nn::LossScaler scaler(nn::LossScaler::Options::fixed(1));
            const double norm = scaler.unscale(optimizer, kInf, p).item<double>();
            EXPECT_EQ(std::isfinite(norm), bad < 0) << "rank " << bad << ", p = " << p;
            const double elements = 4 * static_cast<double>(list.size());
            if (bad < 0) { EXPECT_NEAR(norm, std::isinf(p) ? 2 : 2 * std::pow(elements, 1 / p), 1e-6 * norm); }
          }
        }
  });
}

// Nothing is made to overflow: the first scales are too large for f16, as PyTorch's is for many models.
TEST(FullyShard, F97_F16FindsItsScaleAndLearns) {
  for (const Grid3 grid : {Grid3{1, 1, 1}, Grid3{1, 2, 1}, Grid3{2, 2, 1}, Grid3{1, 2, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const nn::UnitPolicy options{.mp_policy = {.param_dtype = DType::f16, .reduce_dtype = DType::f32}};
      ScaledTraining eager(group, grid, true, options), captured(group, grid, true, options);
      for (ScaledTraining* each : {&eager, &captured})
        each->scaler = std::make_unique<nn::LossScaler>(nn::LossScaler::Options{.init_scale = 0x1p24});
      const auto batch = [&](std::uint64_t) {
        return std::pair(rows_of(batch3(12, 3, 0, "x"), eager.root), rows_of(batch3(12, 2, 0, "y"), eager.root));
      };
      const auto [x, y] = batch(0);
      const GradMode off(false);
      const double first = mean_over(*group, mean_square(cast(eager.net(x), DType::f32), y).item<double>());
      {
        const GradMode on(true);
        expect_replays_bitwise(group, eager, captured, 60, batch);
      }
      const double last = mean_over(*group, mean_square(cast(eager.net(x), DType::f32), y).item<double>());
      EXPECT_LT(last, 0.9 * first);
      const double skipped = eager.scaler->skipped_steps().item<double>();
      EXPECT_GT(skipped, 0);
      EXPECT_LT(skipped, 24);
      EXPECT_EQ(eager.scaler->current_scale().item<double>(), std::ldexp(1, 24 - static_cast<int>(skipped)));
      EXPECT_EQ(eager.optimizer->step_slot().value().item<double>(), 60 - skipped);
    });
}

}  // namespace
}  // namespace sherd::testing
