// Counts and bytes of collectives. One grouped launch is one collective.
#include <gtest/gtest.h>

#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/comm/group/host_group.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
constexpr std::int64_t kCommUnits = 4;  // three blocks and the root

struct Counted {
  std::int64_t forward_gathers, backward_gathers, reductions, others;
};

Counted count_step(Net& net, ProcessGroup& group) {
  const CommCounts start = group.host().counts();
  const Tensor loss = sum(net(batch_of(2, 6, 0, "x")));
  const CommCounts middle = settled_counts(group);
  backward(loss);
  const CommCounts end = settled_counts(group);
  return {middle.all_gather.calls - start.all_gather.calls, end.all_gather.calls - middle.all_gather.calls,
          end.reduce_scatter.calls - start.reduce_scatter.calls,
          end.all_reduce.calls + end.broadcast.calls - start.all_reduce.calls - start.broadcast.calls};
}

void expect_counts(const Group& group) {
  const DeviceMesh mesh(group);
  const auto run = [&](std::optional<bool> blocks, std::optional<bool> root, std::int64_t backward_gathers) {
    Net net(kThreeBlocks);
    nn::UnitPolicy block_options, root_options;
    if (blocks) block_options.reshard_after_forward = nn::ReshardAfterForward(*blocks);
    if (root) root_options.reshard_after_forward = nn::ReshardAfterForward(*root);
    shard(net, mesh, block_options, root_options);
    net.materialize();
    for (int step = 0; step < 2; ++step) {
      const Counted c = count_step(net, *group);
      EXPECT_EQ(c.forward_gathers, kCommUnits);
      EXPECT_EQ(c.backward_gathers, backward_gathers);
      EXPECT_EQ(c.reductions, kCommUnits);
      EXPECT_EQ(c.others, 0);
      for (nn::Parameter* p : net.parameters()) p->clear_grad();
    }
    for (const nn::UnitHandle& g : nn::units(net)) EXPECT_EQ(g.late_gathers(), 0) << g.name();
  };
  run({}, {}, kCommUnits - 1);  // root decides for itself: kept
  run(true, true, kCommUnits);  // all resharded
  run(false, false, 0);         // none
}

TEST(FullyShard, F44_CollectivesPerStep) {
  for (int ranks : {2, 3, 4}) run_ranks(ranks, expect_counts);
}

TEST(FullyShard, F44_CollectivesPerStepWithProcesses) {
  for (int ranks : {2, 3}) run_processes(ranks, expect_counts);
}

TEST(FullyShard, F45_OneRankCommunicatesNothingAndIsBitwiseTheReference) {
  run_ranks(1, [](const Group& group) {
    Net net(kThreeBlocks), reference(kThreeBlocks);
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{1});
    reference.materialize(nn::Seed{1});
    nn::AdamW optimizer(net.parameters(), {.lr = 0.01}), reference_optimizer(reference.parameters(), {.lr = 0.01});
    for (std::uint64_t step = 0; step < 5; ++step) {
      for (int micro = 0; micro < 2; ++micro) {  // the second adds to the first's gradients
        const Tensor x = batch_of(4, 6, 2 * step + static_cast<std::uint64_t>(micro), "x"),
                     y = batch_of(4, 5, step, "y");
        const Tensor loss = mean_square(net(x), y), expected = mean_square(reference(x), y);
        EXPECT_TRUE(same_bits(loss, expected));
        backward(loss);
        backward(expected);
      }
      optimizer.step_and_clear();
      reference_optimizer.step_and_clear();
    }
    const auto actual = net.parameters(), expected = reference.parameters();
    for (std::size_t i = 0; i < actual.size(); ++i)
      EXPECT_TRUE(same_bits(whole(actual[i]->value()), expected[i]->value())) << actual[i]->name();
    const CommCounts& c = group->host().counts();
    EXPECT_EQ(c.all_gather.calls + c.reduce_scatter.calls + c.all_reduce.calls + c.broadcast.calls + c.barrier.calls,
              0);
  });
}

TEST(FullyShard, F46_BytesAreThoseOfRealElements) {
  for (int ranks : {2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      Net net(kThreeBlocks);  // 10, 7, 9 and 5 rows: uneven on every number of ranks but one
      shard(net, DeviceMesh(group), {}, {.reshard_after_forward = true});
      net.materialize();
      backward(sum(net(batch_of(2, 6, 0, "x"))));
      EXPECT_EQ(settled_counts(*group).all_gather.bytes, 2 * 4 * net.num_parameters());
      EXPECT_EQ(group->host().counts().reduce_scatter.bytes, 4 * net.num_parameters());
    });
}

// A gather of one rank would be a copy of what is there: full tensors are the shards, before and after a load.
TEST(FullyShard, F172_OnOneRankFullTensorsAreTheShards) {
  for (const bool is_frozen : {true, false})
    run_ranks(1, [=](const Group& group) {
      Net net(kThreeBlocks), other(kThreeBlocks);
      shard(net, DeviceMesh(group), {.reshard_after_forward = false});
      net.materialize(nn::Seed{1});
      other.materialize(nn::Seed{2});
      const auto parameters = net.parameters(), values = other.parameters();
      for (nn::Parameter* p : parameters) p->set_requires_grad(!is_frozen);
      std::vector<Ref<Storage>> shards;
      for (const nn::Parameter* p : parameters) shards.push_back(p->sharded_value().local().storage());
      const Tensor x = batch_of(2, 6, 0, "x");
      for (int load = 0; load < 2; ++load) {
        const Tensor y = net(x);
        for (std::size_t i = 0; i < shards.size(); ++i) {
          EXPECT_FALSE(parameters[i]->value().is_distributed());
          EXPECT_TRUE(parameters[i]->value().storage() == shards[i]) << parameters[i]->name();
        }
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
        if (load == 1) { EXPECT_TRUE(same_bits(y, other(x))); }
        if (!is_frozen) backward(sum(y));
        for (std::size_t i = 0; i < shards.size(); ++i) parameters[i]->assign(values[i]->value());
      }
    });
}

/// Parameters of three types, used in f32.
struct MixedTypes : nn::Layer<MixedTypes> {
  nn::Parameter &weight, &scale, &shift;
  MixedTypes()
      : weight(add_parameter("weight", {5, 4}, nn::Init::normal(0.5))),
        scale(add_parameter("scale", {5}, nn::Init::normal(1), DType::bf16)),
        shift(add_parameter("shift", {5}, nn::Init::normal(1), DType::f64)) {}
  Tensor forward(const Tensor& x) { return linear(x, weight) * cast(scale, DType::f32) + cast(shift, DType::f32); }
};

TEST(FullyShard, F49_F94_F185_AUnitOfSeveralTypesIsOneLaunch) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      MixedTypes net, reference;
      nn::fully_shard(net, DeviceMesh(group));
      net.materialize(nn::Seed{1});
      reference.materialize(nn::Seed{1});
      const CommCounts start = settled_counts(*group);
      const Tensor x = batch_of(3, 4, 0, "x");  // the same on all ranks, so the mean is each one's
      const Tensor y = net(x), expected = reference(x);
      const auto a = net.parameters(), e = reference.parameters();
      for (std::size_t i = 0; i < a.size(); ++i)
        EXPECT_TRUE(same_bits(a[i]->value(), e[i]->value())) << a[i]->name() << " is gathered";
      EXPECT_TRUE(same_bits(y, expected));
      backward(sum(square(y)));
      backward(sum(square(expected)));
      CommCounts used = settled_counts(*group);
      used -= start;
      EXPECT_EQ(used.all_gather.calls, group->size() > 1 ? 1 : 0);
      EXPECT_EQ(used.reduce_scatter.calls, group->size() > 1 ? 1 : 0);
      for (std::size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(a[i]->grad().dtype(), a[i]->value().dtype()) << a[i]->name();
        EXPECT_TRUE(near(whole(a[i]->grad()), e[i]->grad())) << a[i]->name();
      }
    });
}

TEST(FullyShard, CommCounterAgreesWithTheGroupAndNamesModules) {
  for (const bool is_mixed : {false, true})
    run_ranks(3, [=](const Group& group) {
      Net net(kThreeBlocks);
      nn::UnitPolicy options;
      if (is_mixed) options.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
      shard(net, DeviceMesh(group), options, options);
      net.materialize();
      const CommCounts start = settled_counts(*group);
      CommCounter counter;
      backward(sum(net(batch_of(2, 6, 0, "x"))));
      const CommCounts end = settled_counts(*group);
      const CommCounter::Item gathers = counter.of_op("unshard"), reductions = counter.of_op("reduce");
      EXPECT_EQ(gathers.calls, end.all_gather.calls - start.all_gather.calls);
      EXPECT_EQ(gathers.bytes, end.all_gather.bytes - start.all_gather.bytes);
      EXPECT_EQ(reductions.calls, kCommUnits);
      EXPECT_EQ(reductions.bytes, end.reduce_scatter.bytes - start.reduce_scatter.bytes);
      EXPECT_EQ(counter.of_module("blocks.1").calls, 3) << counter.describe();
      EXPECT_EQ(counter.total().calls, gathers.calls + reductions.calls);
    });
}

// Blocks of equal shapes: without their names the calls look alike, and each would be gathered into the other.
TEST(FullyShard, RanksThatGatherDifferentModulesAreToldWhich) {
  run_ranks(2, [](const Group& group) {
    Net net({4, 4, 4, 4, 4});
    shard(net, DeviceMesh(group), {.prefetch = false});
    net.materialize();
    const GradMode off(false);
    const Tensor x = batch_of(2, 4, 0, "x");
    net(x);  // the root of the blocks
    (*net.blocks.items()[0])(x);
    Block& next = *net.blocks.items()[group->rank() == 0 ? 1 : 2];
    expect_error([&] { next(x).to_vector<float>(); }, {"for blocks.1 [", "for blocks.2 ["});
    nn::reset_after_error(net);
    net(x).to_vector<float>();
  });
}

}  // namespace
}  // namespace sherd::testing
