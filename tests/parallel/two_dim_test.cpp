// fully_shard over tensor parallelism, also with replicas: against one rank on the whole batch.
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "compile/compile.h"
#include "dtensor/scopes.h"
#include "dtensor/transition/redistribute.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/hazards.h"
#include "tests/parallel/replay.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
constexpr Grid3 kTwoDimGrids[] = {{1, 1, 2}, {1, 2, 1}, {1, 2, 2}, {1, 2, 3}, {1, 3, 2}, {2, 1, 2}, {2, 2, 2}};
constexpr std::int64_t kBatch = 12;

struct TwoDimCase {
  std::int64_t width = 5, hidden = 8;
  bool sequence = false;
  int steps = 4;
  nn::UnitPolicy options{};
};

void expect_two_dim_parity(const Group& group, const Grid3& grid, const TwoDimCase& c) {
  const DeviceMesh root = grid.mesh(group);
  ResidualNet net(c.width, c.hidden), reference(c.width, c.hidden);
  shard_2d(net, root, grid, c.sequence, c.options);
  net.materialize(nn::Seed{11});
  reference.materialize(nn::Seed{11});
  expect_same_bits(net, reference);
  expect_trains_alike(on_rows(net, root, *group), on_all_rows(reference),
                      {.steps = c.steps, .max_norm = 0.1, .gradient_limit = 2e-5, .value_limit = 2e-5});
}

TEST(FullyShard, F156_TensorParallelThenShardedTrainsLikeOneRank) {
  for (const Grid3& grid : kTwoDimGrids)
    for (const bool sequence : {false, true})
      run_ranks(grid.ranks(), [&](const Group& group) { expect_two_dim_parity(group, grid, {.sequence = sequence}); });
}

TEST(FullyShard, F156_HiddenSizesThatNothingDivides) {
  for (const Grid3& grid : {Grid3{1, 2, 2}, Grid3{2, 2, 2}})
    for (const std::int64_t width : {3, 5, 16, 17})
      for (const bool sequence : {false, true})
        run_ranks(grid.ranks(), [&](const Group& group) {
          expect_two_dim_parity(group, grid, {.width = width, .hidden = width, .sequence = sequence, .steps = 2});
        });
}

TEST(FullyShard, F156_WithProcesses) {
  run_processes(4, [](const Group& group) { expect_two_dim_parity(group, {1, 2, 2}, {.sequence = true}); });
}

TEST(FullyShard, F156_WithAndWithoutReshardAfterForward) {
  for (const bool reshard : {true, false})
    run_ranks(4, [&](const Group& group) {
      expect_two_dim_parity(group, {1, 2, 2},
                            {.sequence = true, .options = {.reshard_after_forward = nn::ReshardAfterForward(reshard)}});
    });
}

TEST(FullyShard, F124_ParametersPrintTheirOrderOfSplitting) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh root(group, {{"dp", 2}, {"tp", 2}});
    ResidualNet net(5, 8);
    shard_2d(net, root, {1, 2, 2}, true);
    net.materialize();
    ResidualBlock& block = *net.blocks.items()[0];
    EXPECT_EQ(describe(block.up.weight.value()), "f32[8,5]{0: tp,dp}");
    EXPECT_EQ(describe(block.down.weight.value()), "f32[5,8]{0: dp; 1: tp}");
    EXPECT_EQ(describe(block.gain.weight.value()), "f32[5]{0: dp}");
    // Between the two: 8 rows are cut by tp, then by dp.
    EXPECT_EQ(Spec::from(block.up.weight.value()).local_range(0, 8).begin,
              4 * root.coordinate(1) + 2 * root.coordinate(0));
    const std::string text = nn::to_string(net);
    EXPECT_NE(text.find("weight f32[8,5]{0: tp,dp}  160 B, 40 B here"), std::string::npos) << text;
    EXPECT_NE(text.find("weight f32[5,8]{0: dp; 1: tp}"), std::string::npos) << text;
    // In its own forward a module sees what tensor parallelism left of it.
    nn::unit_of(block).unshard();
    EXPECT_EQ(describe(block.up.weight.value()), "f32[8,5]{0: tp}");
    EXPECT_EQ(describe(block.gain.weight.value()), "f32[5]{}");
    nn::unit_of(block).reshard();
  });
}

// One gather and one reduction per group over dp, and over tp one reduction of all gains together.
TEST(FullyShard, F44_CollectivesOfTwoDimensions) {
  for (const bool sequence : {false, true})
    run_ranks(4, [&](const Group& group) {
      const Grid3 grid{1, 2, 2};
      const DeviceMesh root = grid.mesh(group);
      ResidualNet net(5, 8);
      shard_2d(net, root, grid, sequence);
      net.materialize();
      const StrictCommunication strict;  // nothing moves but what the plan and fully_shard say
      const auto step = [&] {
        const Tensor x = batch3(4, 3, 0, "x");
        backward(sum(net(rows_of(x, root))));
      };
      step();
      const CommCounts dp = settled_counts(root.group("dp")), tp = settled_counts(root.group("tp"));
      step();
      CommCounts over_dp = settled_counts(root.group("dp")), over_tp = settled_counts(root.group("tp"));
      over_dp -= dp;
      over_tp -= tp;
      EXPECT_EQ(over_dp.all_gather.calls, 2 * 3 - 1);
      EXPECT_EQ(over_dp.reduce_scatter.calls, 3);
      EXPECT_EQ(over_dp.all_reduce.calls, 0);
      if (sequence) {
        EXPECT_EQ(over_tp.all_reduce.calls, 1) << "gains, and biases added to parts of the sequence";
      } else {
        EXPECT_EQ(over_tp.all_reduce.calls, 2 * 2) << "one per block each way";
      }
    });
}

// What is gathered and reduced when, as over one axis; the terms of all groups are summed last, in one launch.
TEST(FullyShard, F48_EventOrderOfTwoDimensions) {
  run_ranks(4, [](const Group& group) {
    const Grid3 grid{1, 2, 2};
    const DeviceMesh root = grid.mesh(group);
    ResidualNet net(5, 8);
    shard_2d(net, root, grid, true);
    net.materialize();
    auto step = compile_once([&](const Tensor& x) {
      const Tensor loss = sum(net(x));
      backward(loss);
      for (nn::Parameter* p : net.parameters()) p->clear_grad();
      return loss;
    });
    for (int i = 0; i < 2; ++i) step(rows_of(batch3(4, 3, 0, "x"), root));
    std::string text;
    for (const ir::GraphNode& node : step.graph()->program.nodes) {
      const std::string_view name = node.op->name;
      if (name != "gather_start" && name != "reduce_start" && name != "all_reduce") continue;
      const std::string attrs = node.attrs.print();
      const std::size_t block = attrs.find("blocks.");
      text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
      if (name != "all_reduce") text += fmt::format(" {}", block == std::string::npos ? 'R' : attrs[block + 7]);
    }
    EXPECT_EQ(text,
              "gather_start R, gather_start 0, gather_start 1, gather_start 1, gather_start 0, reduce_start 1, "
              "reduce_start 0, reduce_start R, all_reduce");
  });
}

TEST(FullyShard, F79_TwoDimensionalMicroBatchesAddUp) {
  for (const Grid3& grid : {Grid3{1, 2, 2}, Grid3{1, 1, 2}, Grid3{2, 2, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const DeviceMesh root = grid.mesh(group);
      ResidualNet net(5, 8), reference(5, 8);
      shard_2d(net, root, grid, true);
      net.materialize(nn::Seed{2});
      reference.materialize(nn::Seed{2});
      for (std::uint64_t micro = 0; micro < 3; ++micro) {
        nn::units(net).set_requires_all_reduce(micro != 1);
        const Tensor x = batch3(kBatch, 3, micro, "x");
        backward(mul(mean(square(net(rows_of(x, root)))), 3));
        backward(mul(mean(square(reference(x))), 3));
      }
      expect_same_gradients(net, reference, 2e-5);
    });
}

// d/dw of sum(x w w), used on parts of the rows last: backward brings terms of a sum first, then a whole gradient.
struct UsedTwice : nn::Layer<UsedTwice> {
  nn::Parameter& weight;
  UsedTwice() : weight(add_parameter("weight", {4}, nn::Init::ones())) {}
  Tensor forward(const Tensor& x) {
    const Tensor y = x * weight;
    return redistribute(y, Spec::of(Spec::from(x).mesh(), Shard(0))) * weight;
  }
};

TEST(FullyShard, F79_TermsThenAWholeGradientAddUp) {
  for (const Grid3& grid : {Grid3{1, 1, 2}, Grid3{1, 2, 2}, Grid3{2, 1, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const DeviceMesh root = grid.mesh(group);
      UsedTwice net;
      net.weight.set(Tensor::distributed({4}, Spec::replicate(root["tp"]), ones({4})));
      nn::fully_shard(net, grid.data(root));
      for (int pass = 1; pass <= 2; ++pass) {
        backward(sum(net(Tensor::distributed({2, 4}, Spec::replicate(root["tp"]), ones({2, 4})))));
        EXPECT_TRUE(same_bits(whole(net.weight.grad()), full({4}, 4.0 * pass))) << "pass " << pass;
      }
    });
}

TEST(FullyShard, F75_HooksSeeTheSumOverBothAxesOnce) {
  run_ranks(4, [](const Group& group) {
    const Grid3 grid{1, 2, 2};
    const DeviceMesh root = grid.mesh(group);
    ResidualNet net(5, 8);
    shard_2d(net, root, grid, true);
    net.materialize();
    std::map<std::string, int> calls;
    for (nn::Parameter* p : net.parameters())
      p->on_grad_accumulated([&](Slot& slot) {
        ++calls[slot.name()];
        EXPECT_EQ(slot.grad().layout(), slot.value().layout());
      });
    backward(sum(net(rows_of(batch3(4, 3, 0, "x"), root))));
    EXPECT_EQ(calls.size(), net.parameters().size());
    for (const auto& [name, count] : calls) EXPECT_EQ(count, 1) << name;
  });
}

TEST(FullyShard, F88_TwoDimensionalInBf16IsCloseToF32) {
  run_ranks(4, [](const Group& group) {
    const Grid3 grid{1, 2, 2};
    const DeviceMesh root = grid.mesh(group);
    ResidualNet net(5, 8), reference(5, 8);
    shard_2d(net, root, grid, true, {.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32}});
    net.materialize(nn::Seed{2});
    reference.materialize(nn::Seed{2});
    const Tensor x = batch3(kBatch, 3, 0, "x");
    backward(mean(square(net(rows_of(x, root)))));
    backward(mean(square(reference(x))));
    expect_same_gradients(net, reference, 0.05);
  });
}

struct TwoDimTraining {
  ResidualNet net{5, 7};
  std::unique_ptr<nn::AdamW> optimizer;
  TwoDimTraining(const DeviceMesh& root, const Grid3& grid) {
    shard_2d(net, root, grid, true);
    net.materialize(nn::Seed{5});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.05});
  }
  Tensor step(const Tensor& x, const Tensor& y) {
    Tensor loss;
    for (int micro = 0; micro < 2; ++micro) {
      loss = mean_square(net(x), y);
      backward(loss);
    }
    const Tensor norm = nn::clip_grad_norm(*optimizer, 0.5);
    optimizer->step_and_clear();
    return loss + norm;
  }
};

TEST(FullyShard, F77_TwoDimensionalStepsReplayBitwise) {
  for (const Grid3& grid : {Grid3{1, 2, 2}, Grid3{1, 1, 2}, Grid3{1, 2, 3}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const DeviceMesh root = grid.mesh(group);
      TwoDimTraining eager(root, grid), captured(root, grid);
      expect_replays_bitwise(group, eager, captured, 8, [&](std::uint64_t i) {
        return std::pair(rows_of(batch3(kBatch, 3, i, "x"), root), rows_of(batch3(kBatch, 2, i, "y"), root));
      });
    });
}

TEST(FullyShard, F182_TwoDimensionsHaveNoHazards) {
  run_ranks(4, [](const Group& group) {
    HazardChecker checker;
    {
      const Grid3 grid{1, 2, 2};
      const DeviceMesh root = grid.mesh(group);
      ResidualNet net(5, 8);
      shard_2d(net, root, grid, true);
      net.materialize();
      nn::AdamW optimizer(net.parameters(), {.lr = 1e-2});
      for (std::uint64_t step = 0; step < 3; ++step) {
        backward(sum(net(rows_of(batch3(4, 3, step, "x"), root))));
        nn::clip_grad_norm(optimizer, 1);
        optimizer.step_and_clear();
      }
    }
    EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
  });
}

// pytorch #176225: parameters were known by their address, so new ones where old ones had been were "already managed".
TEST(FullyShard, F12_AModelInThePlaceOfAnotherIsANewOne) {
  run_ranks(4, [](const Group& group) {
    const Grid3 grid{1, 2, 2};
    std::optional<DeviceMesh> root;
    std::optional<ResidualNet> net;
    const ResidualNet* const place = &net.emplace(5, 8);
    std::set<std::uint64_t> meshes;
    for (const std::int64_t width : {5, 5, 3, 7}) {
      net.reset();
      EXPECT_EQ(&net.emplace(width, width + 3), place);
      EXPECT_FALSE(nn::is_parallelized(*net) || nn::is_fully_sharded(*net));
      root.reset();
      root.emplace(grid.mesh(group));
      EXPECT_TRUE(meshes.insert(root->id()).second) << "nor is a mesh known by its address";
      ResidualNet reference(width, width + 3);
      shard_2d(*net, *root, grid, true);
      net->materialize(nn::Seed{2});
      reference.materialize(nn::Seed{2});
      expect_trains_alike(on_rows(*net, *root, *group), on_all_rows(reference),
                          {.steps = 2, .gradient_limit = 2e-5, .value_limit = 2e-5});
    }
    net.reset();
  });
}

TEST(FullyShard, F20_OtherMeshesAndSecondCutsAreNamed) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh root(group, {{"dp", 2}, {"tp", 2}});
    const DeviceMesh other(group, {{"a", 2}, {"b", 2}});
    ResidualNet net(5, 8);
    nn::parallelize(net, root["tp"], plan_of(false));
    expect_error([&] { nn::fully_shard(net, other["a"]); }, {"\"in.weight\"", "mesh(a=2)", "mesh(tp=2)", "same mesh"});
    expect_error([&] { nn::fully_shard(net, root["tp"]); }, {"\"in.weight\"", "sharded already", "mesh(tp=2)"});
    expect_error([&] { nn::fully_shard(net, root); }, {"\"in.weight\"", "sharded already"});
    nn::fully_shard(net, root["dp"]);
  });
}

}  // namespace
}  // namespace sherd::testing
