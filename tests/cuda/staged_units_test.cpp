// fully_shard on two emulated devices, over groups that stage through the host and groups that are composed over a
// library of equal counts, which give the same bits. Oracle: the same training on two ranks of the host, whose kernels
// round differently, and the ghost's account of memory.
#include <gtest/gtest.h>

#include <future>

#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/composed_group.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/staged_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/hazards.h"
#include "runtime/op/copy/offload.h"
#include "tests/cuda/cuda_test.h"
#include "tests/parallel/nets.h"
#include "tests/support/bare_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using StagedUnits = cuda::CudaTest;
using Group = std::shared_ptr<ProcessGroup>;

const std::vector<std::int64_t> kNetSizes{6, 10, 7, 9, 5};

struct Options {
  nn::UnitPolicy unit{};
  int replicas = 1;
  bool clips = true;
};

/// Trains three steps of two micro-batches and returns the parameters on the host, whole.
std::vector<Tensor> train(const Group& group, Device device, const Options& options) {
  const int shards = group->size() / options.replicas;
  const DeviceMesh mesh =
      options.replicas == 1
          ? DeviceMesh(group, "dp")
          : DeviceMesh(group, std::vector<DeviceMesh::Axis>{{"replicate", options.replicas}, {"dp", shards}});
  Net net(kNetSizes);
  shard(net, mesh, options.unit, options.unit);
  net.materialize(nn::Seed{3}, device);
  nn::AdamW optimizer(net.parameters(), nn::AdamW::Options{.lr = 0.01});
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (std::uint64_t micro = 0; micro < 2; ++micro) {
      const std::uint64_t index = 10 * step + 2 * micro + static_cast<std::uint64_t>(group->rank());
      const Tensor x = to(batch_of(4, 6, index, "x"), device), y = to(batch_of(4, 5, index, "y"), device);
      backward(mean_square(net(x), y));
    }
    if (options.clips) nn::clip_grad_norm(optimizer, 1.0);
    optimizer.step_and_clear();
  }
  std::vector<Tensor> values;
  for (nn::Parameter* p : net.parameters()) values.push_back(to(full_tensor(p->sharded_value()), Device::cpu()));
  return values;
}

void expect_as_on_the_host(int ranks, const Options& options, double slack = 1) {
  run_ranks(ranks, [&](const Group& host) {
    const std::vector<Tensor> expected = train(host, Device::cpu(), options);
    const Device there = cuda::device_of_rank(host->rank());
    const std::vector<Tensor> got = train(make_staged_group(host), there, options);
    const std::vector<Tensor> composed = train(make_composed_group(make_bare_group(host)), there, options);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(near(got[i], expected[i], slack * tolerance(DType::f32))) << "parameter " << i;
      EXPECT_TRUE(same_bits(got[i], composed[i])) << "parameter " << i;
    }
  });
}

TEST_F(StagedUnits, F176_TrainAsOnTheHost) {
  expect_as_on_the_host(2, {});
  expect_as_on_the_host(2, {.unit = {.reshard_after_forward = nn::ReshardAfterForward(false)}});
  expect_as_on_the_host(3, {});
}

TEST_F(StagedUnits, F176_CastAndReduceInOtherTypes) {
  const nn::MixedPrecision bf16{.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
  expect_as_on_the_host(2, {.unit = {.mp_policy = bf16}}, 2000);
}

TEST_F(StagedUnits, F176_AddUpOverReplicas) {
  expect_as_on_the_host(4, {.replicas = 2});
  expect_as_on_the_host(2, {.replicas = 2});
}

TEST_F(StagedUnits, F176_PlaceParametersInOtherWays) {
  expect_as_on_the_host(2, {.unit = {.placement = [](const nn::Parameter&) { return nn::shard_dim(-1); }}});
  expect_as_on_the_host(3, {.unit = {.placement = [](const nn::Parameter&) { return nn::owned(); }}});
}

// Homes are memory of the host, and updates are made on the device. Without clipping: the norm adds up in another
// order.
TEST_F(StagedUnits, F95_OffloadedShardsHaveTheBitsOfShardsOnTheDevice) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](const Group& host) {
      const Device there = cuda::device_of_rank(host->rank());
      const Group group = host->size() == 1 ? host : make_staged_group(host);
      const auto shards_of = [&](bool is_offloaded, bool casts, bool clips) {
        nn::UnitPolicy unit;
        if (casts) unit.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
        if (is_offloaded) unit.offload = nn::ShardOffload{.gradients = true, .bytes_in_flight = 4096};
        Net net(kNetSizes);
        shard(net, DeviceMesh(group, "dp"), unit, unit);
        net.materialize(nn::Seed{3}, there);
        nn::AdamW optimizer(net.parameters(), nn::AdamW::Options{.lr = 0.01});
        if (is_offloaded) optimizer.offload({.bytes_in_flight = 4096});
        for (std::uint64_t step = 0; step < 3; ++step) {
          for (std::uint64_t micro = 0; micro < 2; ++micro) {
            const std::uint64_t index = 10 * step + 2 * micro + static_cast<std::uint64_t>(group->rank());
            const Tensor x = to(batch_of(4, 6, index, "x"), there), y = to(batch_of(4, 5, index, "y"), there);
            backward(mean_square(net(x), y));
          }
          if (clips) nn::clip_grad_norm(optimizer, 1.0);
          optimizer.step_and_clear();
        }
        std::vector<Tensor> values;
        for (nn::Parameter* p : net.parameters()) {
          EXPECT_EQ(home_of(p->sharded_value()) != nullptr, is_offloaded);
          values.push_back(add(to(p->sharded_value().local().detach(), Device::cpu()), 0.0));
        }
        return values;
      };
      const HazardChecker checker;
      for (const bool casts : {false, true})
        for (const bool clips : {false, true}) {
          const std::vector<Tensor> expected = shards_of(false, casts, clips), got = shards_of(true, casts, clips);
          for (std::size_t i = 0; i < got.size(); ++i) {
            if (clips) EXPECT_TRUE(near(got[i], expected[i], tolerance(DType::f32))) << "parameter " << i;
            else EXPECT_TRUE(same_bits(got[i], expected[i])) << "parameter " << i << " casts " << casts;
          }
        }
    });
}

TEST_F(StagedUnits, F177_HaveNoHazards) {
  run_ranks(2, [](const Group& host) {
    HazardChecker checker;
    train(make_staged_group(host), cuda::device_of_rank(host->rank()), {});
    EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
    EXPECT_GT(checker.num_checked(), 200);
  });
}

// Rank 1 does not begin its step before rank 0 has queued all of its own: nothing waits on rank 0's thread.
TEST_F(StagedUnits, F179_AStepWaitsForNobodyOnTheRanksThread) {
  std::promise<void> is_queued;
  const std::shared_future<void> queued = is_queued.get_future().share();
  run_ranks(2, [&](const Group& host) {
    const Group group = make_staged_group(host);
    const Device there = cuda::device_of_rank(group->rank());
    Net net(kNetSizes);
    shard(net, DeviceMesh(group, "dp"));
    net.materialize(nn::Seed{3}, there);
    nn::AdamW optimizer(net.parameters(), nn::AdamW::Options{.lr = 0.01});
    const auto step = [&] {
      const Tensor x = to(batch_of(4, 6, 1, "x"), there), y = to(batch_of(4, 5, 1, "y"), there);
      const Tensor loss = mean_square(net(x), y);
      backward(loss);
      nn::clip_grad_norm(optimizer, 1.0);
      optimizer.step_and_clear();
      return loss;
    };
    const float first = step().item<float>();
    host->host().barrier();
    if (group->rank() == 1) queued.wait();
    const Tensor loss = step();
    if (group->rank() == 0) is_queued.set_value();
    EXPECT_LT(loss.item<float>(), first);
  });
}

// The step that fails is left by both ranks; from the next one on it is as if there had been none.
TEST_F(StagedUnits, AStepAfterAnErrorIsAsIfThereHadBeenNone) {
  run_ranks(2, [](const Group& host) {
    const Group group = make_staged_group(host);
    const Device there = cuda::device_of_rank(group->rank());
    const auto train = [&](bool has_error) {
      Net net(kNetSizes);
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
          expect_error(
              [&] {
                (void)loss_of(step).item<float>();
                for (nn::Parameter* p : net.parameters()) (void)p->grad().local().to_vector<float>();
              },
              {"enough"});
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
    const std::vector<Tensor> expected = train(false), got = train(true);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i], expected[i])) << "parameter " << i;
  });
}

TEST_F(StagedUnits, AreRefusedOnGroupsThatMoveHostMemory) {
  run_ranks(2, [](const Group& host) {
    Net net(kNetSizes);
    shard(net, DeviceMesh(host, "dp"));
    expect_error([&] { net.materialize(nn::Seed{3}, Device::cuda(0)); },
                 {"2 ranks on cuda:0", "moves host memory", "group_choice.h"});
  });
}

}  // namespace
}  // namespace sherd::testing
