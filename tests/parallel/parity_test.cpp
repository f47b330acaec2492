// Training under fully_shard is training of one rank on the whole batch.
#include <gtest/gtest.h>

#include <functional>

#include "dtensor/scopes.h"
#include "nn/models/gpt.h"
#include "nn/optim/adamw.h"
#include "nn/optim/sgd.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

void expect_sizes_parity(const Group& group, const std::vector<std::int64_t>& sizes, const nn::UnitPolicy& options = {},
                         const TrainingOptions& training = {.steps = 10}) {
  Net net(sizes), reference(sizes);
  shard(net, DeviceMesh(group), options);
  net.materialize(nn::Seed{11});
  reference.materialize(nn::Seed{11});
  expect_trains_alike(on_slices(net, *group, sizes.front(), sizes.back()),
                      on_batches(reference, sizes.front(), sizes.back()), training);
}

const std::vector<std::int64_t> kWide{8, 12, 24, 12};

TEST(FullyShard, F58_TenAdamStepsEvenShapes) {
  for (int ranks : {1, 2, 3, 4}) run_ranks(ranks, [](const Group& group) { expect_sizes_parity(group, kWide); });
}

TEST(FullyShard, F58_TenAdamStepsWithProcesses) {
  for (int ranks : {2, 4}) run_processes(ranks, [](const Group& group) { expect_sizes_parity(group, kWide); });
}

TEST(FullyShard, F59_UnevenShapesAndFewerRowsThanRanks) {
  for (int ranks : {1, 2, 3, 4}) run_ranks(ranks, [](const Group& group) { expect_sizes_parity(group, kUneven); });
}

TEST(FullyShard, F60_WithAndWithoutReshardAfterForward) {
  for (bool reshard_after_forward : {true, false})
    run_ranks(3, [=](const Group& group) {
      expect_sizes_parity(group, kUneven, {.reshard_after_forward = reshard_after_forward});
    });
}

TEST(FullyShard, F61_GradientsClearedOrZeroed) {
  for (bool by_zero : {false, true})
    run_ranks(3, [=](const Group& group) {
      expect_sizes_parity(group, kUneven, {}, {.steps = 10, .zero_gradients = by_zero});
    });
}

// pytorch #176076: where ranks do not divide a tied weight's rows, those of the last rank were never updated.
TEST(FullyShard, F62_TransformerWithTiedHead) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const nn::Gpt::Config config{
          .vocabulary = 11, .tokens = 6, .layers = 2, .heads = 2, .width = 8};  // 11 is uneven on 2, 3 and 4 ranks
      nn::Gpt model(config), reference(config);
      shard(model, DeviceMesh(group));
      model.materialize(nn::Seed{1});
      reference.materialize(nn::Seed{1});
      const auto before = whole(model.parameter("tok.weight").value()).to_vector<float>();
      const auto loss = [&](nn::Gpt& m, std::uint64_t step, const auto& rows) {
        std::vector<std::int32_t> ids(12 * 6), next(12 * 6);
        for (std::size_t i = 0; i < ids.size(); ++i) {
          ids[i] = static_cast<std::int32_t>((i * 7 + step) % 11);
          next[i] = static_cast<std::int32_t>((i * 5 + 3) % 11);
        }
        return m(rows(Tensor::from<std::int32_t>(ids, {12, 6})), rows(Tensor::from<std::int32_t>(next, {12, 6})));
      };
      const auto own_rows = [&](const Tensor& all) { return contiguous(slice_of(all, *group)); };
      expect_trains_alike({model, [&](std::uint64_t step) { return loss(model, step, own_rows); }, group.get()},
                          {reference, [&](std::uint64_t step) { return loss(reference, step, std::identity()); }},
                          {.steps = 5});
      // Every row moved, those on the last rank too.
      const auto after = whole(model.parameter("tok.weight").value()).to_vector<float>();
      for (std::size_t row = 0; row < 11; ++row) EXPECT_NE(before[row * 8], after[row * 8]) << row;
    });
}

TEST(FullyShard, F68_TwoForwardsThenOneBackward) {
  run_ranks(2, [](const Group& group) {
    Net net(kUneven), reference(kUneven);
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{1});
    reference.materialize(nn::Seed{1});
    const Tensor a = batch_of(4, 5, 0, "a"), b = batch_of(4, 5, 0, "b");
    backward(sum(net(slice_of(a, *group))) + sum(square(net(slice_of(b, *group)))));
    backward(sum(reference(a)) + sum(square(reference(b))));
    const auto actual = net.parameters(), expected = reference.parameters();
    for (std::size_t i = 0; i < actual.size(); ++i)
      EXPECT_TRUE(near(mul(whole(actual[i]->grad()), 2), expected[i]->grad())) << actual[i]->name();
  });
}

void expect_hooks_once(const Group& group) {
  Net net(kUneven);
  shard(net, DeviceMesh(group));
  net.materialize();
  std::map<std::string, int> calls;
  for (nn::Parameter* p : net.parameters())
    p->on_grad_accumulated([&](Slot& slot) {
      ++calls[slot.name()];
      EXPECT_TRUE(slot.grad().is_distributed());
      EXPECT_EQ(slot.grad().layout(), Spec::of(DeviceMesh(Spec::from(slot.grad()).mesh()), Shard(0)));
    });
  for (int step = 1; step <= 2; ++step) {
    backward(sum(net(batch_of(2, 5, 0, "x"))));
    EXPECT_EQ(calls.size(), net.parameters().size());
    for (const auto& [name, count] : calls) EXPECT_EQ(count, step) << name;
  }
}

TEST(FullyShard, F75_PostAccumulateHooksSeeTheReducedShardOnce) { run_ranks(3, expect_hooks_once); }

TEST(FullyShard, F75_F206_PostAccumulateHooksWithProcesses) { run_processes(3, expect_hooks_once); }

std::vector<float> train_bits(const Group& group) {
  Net net(kUneven);
  shard(net, DeviceMesh(group));
  net.materialize(nn::Seed{21});
  nn::AdamW optimizer(net.parameters(), {.lr = 1e-2});
  std::vector<float> bits;
  for (std::uint64_t step = 0; step < 5; ++step) {
    const Tensor loss =
        mean_square(net(slice_of(batch_of(12, 5, step, "x"), *group)), slice_of(batch_of(12, 2, step, "y"), *group));
    bits.push_back(loss.item<float>());
    backward(loss);
    optimizer.step_and_clear();
  }
  for (const nn::Parameter* p : net.parameters())
    for (float value : whole(p->value()).to_vector<float>()) bits.push_back(value);
  return bits;
}

TEST(FullyShard, F77_TwoRunsAreBitwiseEqual) {
  for (int ranks : {1, 2, 3, 4}) {
    std::vector<std::vector<float>> first(static_cast<std::size_t>(ranks)), second = first;
    run_ranks(ranks, [&](const Group& group) { first[static_cast<std::size_t>(group->rank())] = train_bits(group); });
    run_ranks(ranks, [&](const Group& group) { second[static_cast<std::size_t>(group->rank())] = train_bits(group); });
    EXPECT_EQ(first, second);
  }
}

TEST(FullyShard, F77_ProcessesAndThreadsAreBitwiseEqual) {
  for (int ranks : {2, 3}) {
    std::vector<std::vector<float>> expected(static_cast<std::size_t>(ranks));
    run_ranks(ranks,
              [&](const Group& group) { expected[static_cast<std::size_t>(group->rank())] = train_bits(group); });
    run_processes(ranks, [&](const Group& group) {
      EXPECT_EQ(train_bits(group), expected[static_cast<std::size_t>(group->rank())]);
      EXPECT_EQ(train_bits(group), expected[static_cast<std::size_t>(group->rank())]);
    });
  }
}

TEST(FullyShard, F78_AveragedLossIsTheReferenceLoss) {
  run_ranks(4, [](const Group& group) { expect_sizes_parity(group, kWide, {}, {.steps = 20}); });
}

// Global batches: a distributed gradient says by its Partial op how the ranks' terms combine.
TEST(FullyShard, F78_DistributedGradientsCombineByTheirPlacement) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      nn::Linear layer(3, 4, {.bias = false});
      const DeviceMesh mesh(group);
      nn::fully_shard(layer, mesh);
      layer.materialize();
      const auto deliver = [&](Placement placement, float value) {
        layer.weight.clear_grad();
        const Tensor term = full({4, 3}, value * static_cast<float>(group->rank() + 1));
        layer.weight.sink().accept(layer.weight, Tensor::distributed({4, 3}, Spec::of(mesh, placement), term));
        layer.weight.sink().finish(layer.weight);
        return whole(layer.weight.grad()).to_vector<float>()[11];
      };
      const auto n = static_cast<float>(group->size());
      EXPECT_FLOAT_EQ(deliver(Partial(ReduceKind::sum), 2), 2 * n * (n + 1) / 2);
      EXPECT_FLOAT_EQ(deliver(Partial(ReduceKind::avg), 2), (n + 1));
      expect_error([&] { deliver(Shard(1), 1); }, {});
    });
}

// The same from ops: a plain gathered weight meets a batch that lies on the ranks.
TEST(FullyShard, F78_ADistributedBatchGivesTheSumOverIt) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      nn::Linear layer(3, 4), reference(3, 4);
      const DeviceMesh mesh(group);
      nn::fully_shard(layer, mesh);
      layer.materialize(nn::Seed{4});
      reference.materialize(nn::Seed{4});
      const ImplicitReplication implicit;
      for (std::uint64_t micro = 0; micro < 2; ++micro) {
        const Tensor x = batch_of(12, 3, micro, "x");
        backward(sum(square(layer(distribute(x, mesh, Shard(0))))));
        backward(sum(square(reference(x))));
      }
      EXPECT_TRUE(near(whole(layer.weight.grad()), reference.weight.grad(), 1e-5));
      EXPECT_TRUE(near(whole(layer.bias->grad()), reference.bias->grad(), 1e-5));
    });
}

TEST(FullyShard, F78_GradientsOnAnotherMeshAreRefused) {
  run_ranks(2, [](const Group& group) {
    nn::Linear layer(3, 4, {.bias = false});
    const DeviceMesh dp(group, "dp"), tp(group, "tp");
    nn::fully_shard(layer, dp);
    layer.materialize();
    const Spec* other = Spec::of(tp, Partial());
    expect_error([&] { layer.weight.sink().accept(layer.weight, Tensor::distributed({4, 3}, other, ones({4, 3}))); },
                 {"\"weight\"", "{0: dp}", "another mesh", "redistribute()"});
  });
}

TEST(FullyShard, F83_MeanOverRanksOrACustomFactorForOneModule) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      Net net(kUneven), reference(kUneven);
      shard(net, DeviceMesh(group));
      net.materialize(nn::Seed{2});
      reference.materialize(nn::Seed{2});
      Block& special = *net.blocks.items()[1];
      nn::unit_of(special).set_gradient_divide_factor(5);
      // Every rank has the same batch: the mean over ranks is the reference, the sum is W times it.
      const Tensor x = batch_of(4, 5, 0, "x");
      backward(sum(net(x)));
      backward(sum(reference(x)));
      const auto actual = net.parameters(), expected = reference.parameters();
      for (std::size_t i = 0; i < actual.size(); ++i) {
        const bool is_special = actual[i]->name().starts_with("blocks.1");
        const double factor = is_special ? group->size() / 5.0 : 1.0;
        EXPECT_TRUE(near(whole(actual[i]->grad()), mul(expected[i]->grad(), factor), 1e-5)) << actual[i]->name();
      }
    });
}

TEST(FullyShard, F79_MicroBatchesAddUp) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      Net net(kUneven), reference(kUneven);
      shard(net, DeviceMesh(group));
      net.materialize(nn::Seed{2});
      reference.materialize(nn::Seed{2});
      for (std::uint64_t micro = 0; micro < 3; ++micro) {
        const Tensor x = batch_of(6, 5, micro, "x");
        backward(mul(sum(net(slice_of(x, *group))), static_cast<double>(group->size())));
        backward(sum(reference(x)));
      }
      expect_same_gradients(net, reference);
    });
}

}  // namespace
}  // namespace sherd::testing
