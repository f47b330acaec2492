// Which tensors are registered and allocated when: lazy root, states around forward and backward, memory.
#include <gtest/gtest.h>

#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

std::int64_t unsharded_bytes() { return held(MemoryCategory::unsharded); }

bool all_sharded(nn::Module& root) {
  for (const nn::Parameter* p : root.parameters())
    if (!p->value().is_distributed()) return false;
  return true;
}

TEST(FullyShard, F25_ChildThatRanAsRootIsNamed) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    shard(net, DeviceMesh(group));
    net.materialize();
    // The first rank to notice tells the others, who may be in the block yet.
    expect_error(
        [&] {
          (*net.blocks.items()[0])(batch_of(2, 6, 0, "x"));
          net(batch_of(2, 6, 0, "x"));
        },
        {"blocks.0", "(model)", "ran by itself"});
  });
}

TEST(FullyShard, F26_RootKeepsItsParametersChildrenDoNot) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    shard(net, DeviceMesh(group));
    net.materialize();
    const Tensor y = net(batch_of(2, 6, 0, "x"));
    EXPECT_FALSE(net.head.weight.value().is_distributed());
    for (Block* block : net.blocks.items()) EXPECT_TRUE(block->linear_layer.weight.value().is_distributed());
    EXPECT_EQ(unsharded_bytes(), nn::unit_of(net).gathered_bytes());
  });
}

TEST(FullyShard, F30_AfterForwardWithReshardNothingIsGathered) {
  run_ranks(3, [](const Group& group) {
    Net net(kTwoBlocks);
    shard(net, DeviceMesh(group), {}, {.reshard_after_forward = true});
    net.materialize();
    const Tensor y = net(batch_of(3, 6, 0, "x"));
    EXPECT_TRUE(all_sharded(net));
    EXPECT_EQ(unsharded_bytes(), 0);
  });
}

TEST(FullyShard, F31_AfterForwardWithoutReshardFullValuesAreRegistered) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      Net net(kTwoBlocks), reference(kTwoBlocks);
      shard(net, DeviceMesh(group), {.reshard_after_forward = false});
      net.materialize(nn::Seed{5});
      reference.materialize(nn::Seed{5});
      const Tensor y = net(batch_of(2, 6, 0, "x"));
      const auto actual = net.parameters(), expected = reference.parameters();
      for (std::size_t i = 0; i < actual.size(); ++i) {
        EXPECT_FALSE(actual[i]->value().is_distributed());
        EXPECT_TRUE(same_bits(actual[i]->value(), expected[i]->value())) << actual[i]->name();
      }
    });
}

TEST(FullyShard, F33_AfterBackwardEverythingIsSharded) {
  for (bool reshard_after_forward : {true, false})
    run_ranks(2, [=](const Group& group) {
      Net net(kTwoBlocks);
      shard(net, DeviceMesh(group), {.reshard_after_forward = reshard_after_forward});
      net.materialize();
      backward(sum(net(batch_of(2, 6, 0, "x"))));
      EXPECT_TRUE(all_sharded(net));
      EXPECT_EQ(unsharded_bytes(), 0);
      for (const nn::Parameter* p : net.parameters()) EXPECT_TRUE(p->grad().is_distributed()) << p->name();
    });
}

// Runs before and after every wrapped forward of the tree.
struct StateProbe final : nn::ModuleHook {
  explicit StateProbe(nn::Module& r) : root(r) {}
  void before_forward(nn::Module&) override { look(); }
  void after_forward(nn::Module&, const std::function<void(const nn::TensorVisitor&)>&) override { look(); }
  void look() {
    std::int64_t gathered = 0;
    for (const nn::UnitHandle& group : nn::units(root)) {
      if (group.is_gathered()) gathered += group.gathered_bytes();  // registered, or about to be
      EXPECT_TRUE(group.is_gathered() || !group.is_unsharded());
      for (const nn::Parameter* p : group.parameters()) {
        EXPECT_EQ(group.is_unsharded(), !p->value().is_distributed()) << p->name();
        EXPECT_TRUE(p->value().is_distributed() || p->value().storage()->is_present()) << p->name();
      }
    }
    EXPECT_EQ(unsharded_bytes(), gathered);
    ++looks;
  }
  nn::Module& root;
  int looks = 0;
};

TEST(FullyShard, F34_RegisteredSetIsAllocatedSet) {
  for (bool reshard_after_forward : {true, false})
    run_ranks(2, [=](const Group& group) {
      Net net(kTwoBlocks);
      shard(net, DeviceMesh(group), {.reshard_after_forward = reshard_after_forward});
      net.materialize();
      auto probe = std::make_shared<StateProbe>(net);
      net.for_each_module([&](nn::Module& m) { m.add_hook(probe); });
      nn::AdamW optimizer(net.parameters());
      for (int step = 0; step < 2; ++step) {
        for (nn::Parameter* p : net.parameters())
          if (step == 0) p->on_grad_accumulated([&](Slot&) { probe->look(); });
        backward(sum(net(batch_of(2, 6, 0, "x"))));
        probe->look();
        optimizer.step_and_clear();
      }
      EXPECT_GT(probe->looks, 20);
    });
}

TEST(FullyShard, F35_UnshardAndReshardActOnOneModule) {
  run_ranks(3, [](const Group& group) {
    Net net(kTwoBlocks);
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{2});
    Block& block = *net.blocks.items()[0];
    const Tensor before = Tensor::from<float>(block.linear_layer.weight.value().local().to_vector<float>(),
                                              block.linear_layer.weight.value().local().shape());
    nn::unit_of(block).unshard();
    EXPECT_FALSE(block.linear_layer.weight.value().is_distributed());
    EXPECT_TRUE(net.head.weight.value().is_distributed());
    EXPECT_TRUE(net.blocks.items()[1]->linear_layer.weight.value().is_distributed());
    nn::unit_of(block).reshard();
    EXPECT_TRUE(same_bits(block.linear_layer.weight.value().local(), before));
    EXPECT_EQ(unsharded_bytes(), 0);
  });
}

TEST(FullyShard, F36_AsyncUnshardReturnsAHandle) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks), reference(kTwoBlocks);
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{2});
    reference.materialize(nn::Seed{2});
    nn::UnshardHandle handle = nn::unit_of(net).unshard_async();
    handle.wait();
    handle.wait();
    EXPECT_TRUE(same_bits(net.head.weight.value(), reference.head.weight.value()));
  });
}

TEST(FullyShard, F37_UnshardedTensorsAreTheSameObjectsEveryStep) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    shard(net, DeviceMesh(group));
    net.materialize();
    nn::AdamW optimizer(net.parameters(), {.lr = 0.1});
    std::vector<TensorImpl*> first;
    for (int step = 0; step < 3; ++step) {
      std::vector<TensorImpl*> now;
      for (const nn::UnitHandle& g : nn::units(net)) {
        g.unshard();
        for (const nn::Parameter* p : g.parameters()) now.push_back(p->value().impl());
        g.reshard();
      }
      if (step == 0) first = now;
      EXPECT_EQ(now, first);
      // Backward reads weights that were freed after forward and gathered again, at the same handles.
      backward(sum(net(batch_of(2, 6, 0, "x"))));
      optimizer.step_and_clear();
    }
  });
}

TEST(FullyShard, F37_WeightsChangedBetweenForwardAndBackwardAreNoticed) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    shard(net, DeviceMesh(group));
    net.materialize();
    nn::AdamW optimizer(net.parameters(), {.lr = 0.1});
    backward(sum(net(batch_of(2, 6, 0, "x"))));
    const Tensor late = sum(net(batch_of(2, 6, 1, "x")));
    nn::unit_of(net).reshard();
    optimizer.step_and_clear();
    expect_error([&] { backward(late); }, {"saved for backward", "has been written since"});
  });
}

// On one rank they are, unless gathered parameters have another type: the shards are the full tensors.
TEST(FullyShard, F38_WritesToGatheredParametersAreLost) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      Net net(kTwoBlocks);
      nn::UnitPolicy options;
      if (group->size() == 1) options.mp_policy = {.param_dtype = DType::bf16};
      shard(net, DeviceMesh(group), options, options);
      net.materialize(nn::Seed{2});
      const nn::Parameter& weight = net.head.weight;
      const auto shard_before = weight.value().local().to_vector<float>();
      nn::unit_of(net).unshard();
      const auto gathered = weight.value().to_vector<float>();
      {
        const GradMode off(false);
        fill_into(weight.value().detach(), 7);
      }
      EXPECT_EQ(weight.value().to_vector<float>()[0], 7);
      nn::unit_of(net).reshard();
      EXPECT_EQ(weight.value().local().to_vector<float>(), shard_before);
      nn::unit_of(net).unshard();
      EXPECT_EQ(weight.value().to_vector<float>(), gathered);
    });
}

TEST(FullyShard, F41_AfterAdamFourShardsAfterClearingThree) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      Net net({64, 96, 128, 48});
      shard(net, DeviceMesh(group));
      net.materialize();
      nn::AdamW optimizer(net.parameters());
      const Accounting& memory = RankContext::current().allocator().accounting();
      std::int64_t own = 0;
      for (const nn::Parameter* p : net.parameters()) own += p->value().local().bytes();
      const auto within_one_percent = [](std::int64_t actual, std::int64_t expected) {
        return actual >= expected && static_cast<double>(actual) <= 1.01 * static_cast<double>(expected);
      };
      for (int step = 0; step < 2; ++step) {
        backward(mean_square(net(batch_of(2, 64, 0, "x")), batch_of(2, 48, 0, "y")));
        EXPECT_TRUE(within_one_percent(memory.current(MemoryCategory::gradients), own))
            << memory.current(MemoryCategory::gradients);
        optimizer.step();
        EXPECT_TRUE(within_one_percent(memory.current(MemoryCategory::parameters), own));
        EXPECT_EQ(memory.current(MemoryCategory::optimizer), 2 * own);
        optimizer.clear_gradients();
        EXPECT_EQ(memory.current(MemoryCategory::gradients), 0);
        EXPECT_EQ(memory.current(MemoryCategory::unsharded), 0);
      }
    });
}

TEST(FullyShard, F42_DestroyingTheModelFreesEverything) {
  run_ranks(2, [](const Group& group) {
    const Accounting& memory = RankContext::current().allocator().accounting();
    const std::int64_t before = memory.total();
    {
      Net net(kTwoBlocks);
      shard(net, DeviceMesh(group));
      net.materialize();
      nn::AdamW optimizer(net.parameters());
      backward(sum(net(batch_of(2, 6, 0, "x"))));
      optimizer.step();
      const Tensor pending = sum(net(batch_of(2, 6, 0, "x")));  // a forward without its backward
    }
    EXPECT_EQ(memory.total(), before);
  });
}

TEST(FullyShard, F43_ErrorInForwardReshardsLocallyAndAfterResetTheNextStepIsRight) {
  struct Picky : nn::Layer<Picky> {
    nn::Linear& inner;
    Picky() : inner(add<nn::Linear>("inner", 6, 6)) {}
    Tensor forward(const Tensor& x) {
      check(x.size(0) > 1, "one row is not enough");
      return inner(x);
    }
  };
  run_ranks(2, [](const Group& group) {
    Picky model, reference;
    nn::fully_shard(model, DeviceMesh(group));
    model.materialize();
    reference.materialize();
    const std::int64_t gathers = group->host().counts().all_gather.calls;
    expect_error([&] { model(batch_of(1, 6, 0, "x")); }, {"one row"});  // on one rank maybe as the other's reason
    EXPECT_LE(group->host().counts().all_gather.calls, gathers + 1);
    EXPECT_EQ(unsharded_bytes(), 0);
    expect_error([&] { model(batch_of(2, 6, 1, "x")); }, {"aborted the group", "one row"});
    expect_error([&] { nn::reset_after_error(model.inner); }, {"inner", "not wrapped"});
    nn::reset_after_error(model);
    const Tensor x = batch_of(2, 6, 1, "x");
    backward(sum(model(x)));
    backward(sum(reference(x)));
    EXPECT_TRUE(near(whole(model.inner.weight.grad()), reference.inner.weight.grad()));
  });
}

// Two modules in one group, of which a step may use one only, or one of them twice.
struct Siblings : nn::Layer<Siblings> {
  nn::Linear &a, &b, &head;
  std::string order = "ab";
  Siblings() : a(add<nn::Linear>("a", 4, 4)), b(add<nn::Linear>("b", 4, 4)), head(add<nn::Linear>("head", 4, 3)) {}
  Tensor forward(Tensor x) {
    for (const char which : order) x = relu(which == 'a' ? a(x) : b(x));
    return head(x);
  }
};

TEST(FullyShard, F4_ModulesOfOneGroupMayRunInAnyNumber) {
  for (const std::string order : {"a", "b", "ab", "aab", "aba", ""})
    for (const bool reshard : {true, false})
      run_ranks(2, [&](const Group& group) {
        SCOPED_TRACE(order);
        Siblings net, reference;
        net.order = reference.order = order;
        const DeviceMesh mesh(group);
        nn::fully_shard({&net.a, &net.b}, mesh, {.reshard_after_forward = nn::ReshardAfterForward(reshard)});
        nn::fully_shard(net, mesh);
        net.materialize(nn::Seed{3});
        reference.materialize(nn::Seed{3});
        const auto evaluate = [&](std::uint64_t step, nn::Optimizer&) {
          const GradMode off(false);
          net(batch_of(2, 4, step, "evaluation"));
          EXPECT_TRUE(all_sharded(net));
          EXPECT_EQ(unsharded_bytes(), 0);
        };
        expect_trains_alike(on_slices(net, *group, 4, 3), on_batches(reference, 4, 3), {.before_step = evaluate});
        const Tensor y = net(batch_of(2, 4, 0, "x"));
        const nn::UnitHandle siblings = nn::unit_of(net.a);
        if (reshard || order.empty()) { EXPECT_FALSE(siblings.is_gathered()) << "after forward"; }
        backward(sum(y));
        EXPECT_TRUE(all_sharded(net));
        EXPECT_EQ(unsharded_bytes(), 0);
        EXPECT_EQ(siblings.late_gathers(), 0);
      });
}

void expect_evaluation_leaves_shards(const Group& group) {
  Net net(kTwoBlocks), reference(kTwoBlocks);
  shard(net, DeviceMesh(group));
  net.materialize(nn::Seed{4});
  reference.materialize(nn::Seed{4});
  const Tensor x = batch_of(4, 6, 0, "x"), y = batch_of(4, 5, 0, "y");
  nn::AdamW optimizer(net.parameters(), {.lr = 0.1}), reference_optimizer(reference.parameters(), {.lr = 0.1});
  for (int step = 0; step < 2; ++step) {
    {
      GradMode off(false);
      EXPECT_TRUE(near(net(x), reference(x)));
    }
    EXPECT_TRUE(all_sharded(net));
    EXPECT_EQ(unsharded_bytes(), 0);
    backward(mean_square(net(slice_of(x, *group)), slice_of(y, *group)));
    backward(mean_square(reference(x), y));
    optimizer.step_and_clear();
    reference_optimizer.step_and_clear();
    EXPECT_TRUE(near(whole(net.head.weight.value()), reference.head.weight.value()));
  }
}

TEST(FullyShard, F72_EvaluationLeavesParametersSharded) {
  for (int ranks : {1, 2, 4}) run_ranks(ranks, expect_evaluation_leaves_shards);
}

TEST(FullyShard, F72_F206_EvaluationLeavesParametersShardedWithProcesses) {
  for (int ranks : {2, 4}) run_processes(ranks, expect_evaluation_leaves_shards);
}

}  // namespace
}  // namespace sherd::testing
