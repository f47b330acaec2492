// Full parameters by hand: what is read and written within the scope, on every kind of mesh. Oracle: the same model
// without sharding, bit by bit.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

#include "nn/optim/sgd.h"
#include "nn/parallel/extensions/int8_gather.h"
#include "nn/parallel/shard/wrap/summon.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using nn::FullParameters;

void expect_full(const nn::Module& net, const nn::Module& reference) {
  const auto a = net.parameters(), e = reference.parameters();
  ASSERT_EQ(a.size(), e.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_FALSE(a[i]->value().is_distributed()) << a[i]->name();
    EXPECT_TRUE(same_bits(a[i]->value().detach(), e[i]->value().detach())) << a[i]->name();
  }
}

// Reads the values of seed 3, writes those of seed 4, and throws writes away.
void expect_scopes(nn::Module& net, nn::Module& before, nn::Module& after) {
  net.materialize(nn::Seed{3});
  before.materialize(nn::Seed{3});
  after.materialize(nn::Seed{4});
  const auto parameters = net.parameters(), values = after.parameters();
  const auto write = [&] {
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i]->assign(values[i]->value().detach());
  };
  const std::int64_t held_before = held(MemoryCategory::unsharded);
  {
    const FullParameters full(net);
    expect_full(net, before);
    write();
    expect_full(net, after);
  }
  expect_same_bits(net, before);
  EXPECT_EQ(held(MemoryCategory::unsharded), held_before);
  {
    const FullParameters full(net, {.write_back = true});
    write();
  }
  expect_same_bits(net, after);
  { const FullParameters full(net, {.write_back = true}); }
  expect_same_bits(net, after);
}

TEST(FullParameters, AreReadAndWrittenOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      Net net(kTwoBlocks), before(kTwoBlocks), after(kTwoBlocks);
      shard(net, DeviceMesh(group));
      expect_scopes(net, before, after);
      expect_trains_alike(on_slices(net, *group, 6, 5), on_batches(after, 6, 5), {});
    });
}

TEST(FullParameters, AreReadAndWrittenOverReplicasAndTensorParallelism) {
  run_ranks(4, [](const Group& group) {
    Net net(kTwoBlocks), before(kTwoBlocks), after(kTwoBlocks);
    shard(net, DeviceMesh(group, {{"replicate", 2}, {"dp", 2}}));
    expect_scopes(net, before, after);
  });
  for (const Grid3& grid : {Grid3{1, 2, 2}, Grid3{1, 3, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const DeviceMesh root = grid.mesh(group);
      ResidualNet net(5, 7), before(5, 7), after(5, 7);
      shard_2d(net, root, grid, true);
      expect_scopes(net, before, after);
      expect_trains_alike(on_rows(net, root, *group), on_all_rows(after), {.value_limit = 2e-5});
    });
}

TEST(FullParameters, HaveTheParametersDtypeWhateverThePolicy) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](const Group& group) {
      Net net(kTwoBlocks), before(kTwoBlocks), after(kTwoBlocks);
      const nn::UnitPolicy options{.mp_policy = {.param_dtype = DType::bf16}, .replicate_below_bytes = 64};
      shard(net, DeviceMesh(group), options, options);
      expect_scopes(net, before, after);
    });
}

TEST(FullParameters, OfOneModuleOnly) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    shard(net, DeviceMesh(group));
    net.materialize();
    const FullParameters full(net.head, {.recurse = false});
    EXPECT_FALSE(net.head.weight.value().is_distributed());
    EXPECT_TRUE(net.blocks.items()[0]->linear_layer.weight.value().is_distributed());
    EXPECT_TRUE(net.head.weight.sharded_value().is_distributed());
    const FullParameters none(net, {.recurse = false});  // names no parameter itself
  });
}

/// One parameter by two names.
struct NamedTwice : nn::Layer<NamedTwice> {
  nn::Parameter& weight;
  NamedTwice() : weight(add_parameter("weight", {8, 4}, nn::Init::zeros())) { share_parameter("again", weight); }
  Tensor forward(const Tensor& x) { return matmul(x, weight); }
};

TEST(FullParameters, AParameterWithTwoNamesIsOneTensor) {
  for (const bool recurse : {false, true})
    run_ranks(2, [=](const Group& group) {
      NamedTwice module;
      nn::fully_shard(module, DeviceMesh(group));
      module.materialize();
      {
        const FullParameters full(module, {.recurse = recurse, .write_back = true});
        EXPECT_EQ(held(MemoryCategory::unsharded), module.weight.value().bytes());
        module.weight.assign(ones({8, 4}));
      }
      EXPECT_TRUE(same_bits(whole(module.weight.value()).detach(), ones({8, 4})));
    });
}

TEST(FullParameters, MistakesAreNamedAndLeaveTheShards) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks), reference(kTwoBlocks);
    shard(net, DeviceMesh(group));
    expect_error([&] { const FullParameters full(net); }, {"has no values", "materialize"});
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    const Tensor x = batch_of(2, 6, 0, "x");
    {
      const FullParameters full(net);
      expect_error([&] { net(x); }, {"summoned", "end the scope"});
      expect_error([&] { const FullParameters again(net); }, {"another scope"});
      EXPECT_FALSE(net.head.weight.value().is_distributed()) << "still as it was";
    }
    nn::reset_after_error(net);
    const auto leave = [&] {
      const FullParameters full(net, {.write_back = true});
      net.head.weight.assign(zeros({5, 7}));
      throw std::runtime_error("left");
    };
    EXPECT_THROW(leave(), std::runtime_error);
    expect_same_bits(net, reference);
    {
      FullParameters full(net, {.write_back = true});
      net.head.weight.set(zeros({5, 7}));
      expect_error([&] { full.close(); }, {"another tensor", "head.weight"});
    }
    expect_same_bits(net, reference);
  });
}

// Found before anything is gathered: nobody waits, and no group has to be reset.
TEST(FullParameters, AMistakeOfOneRankReachesAll) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [](const Group& group) {
      Net net(kTwoBlocks), reference(kTwoBlocks);
      shard(net, DeviceMesh(group));
      if (group->rank() != 1) net.materialize(nn::Seed{3});
      expect_error([&] { const FullParameters full(net); }, {"has no values", "materialize"});
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      if (group->rank() == 1) net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      const FullParameters full(net);
      expect_full(net, reference);
    });
}

// Stages have models of their own: the ranks of one meet, the others do not come.
TEST(FullParameters, OfAStageNeedNoOtherStage) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh root(group, {{"pp", 2}, {"dp", 2}});
    Net net(kTwoBlocks), before(kTwoBlocks), after(kTwoBlocks);
    shard(net, root["dp"]);
    if (root.coordinate(0) == 0) expect_scopes(net, before, after);
    together(*group, [] {});  // none goes while another one is at work
  });
}

// From axis to axis: rank 0 shares no axis with rank 3.
TEST(FullParameters, AMistakeOfOneRankReachesAllOfItsStage) {
  run_ranks(8, [](const Group& group) {
    const DeviceMesh root(group, {{"pp", 2}, {"dp", 2}, {"tp", 2}});
    ResidualNet net(5, 7), before(5, 7), after(5, 7);
    nn::parallelize(net, root["tp"], plan_of(true));
    shard(net, root["dp"]);
    if (root.coordinate(0) == 0) {
      if (group->rank() != 3) net.materialize(nn::Seed{3});
      const std::string_view who = group->rank() == 3 ? "full parameters" : "rank 3: full parameters";
      expect_error([&] { const FullParameters full(net); }, {who, "has no values", "materialize"});
      expect_scopes(net, before, after);
    }
    together(*group, [] {});
  });
}

TEST(FullParameters, MemoryThatOneRankLacksIsMissedByAll) {
  for (const bool everywhere : {false, true})
    run_ranks(2, [=](const Group& group) {
      Net net(kTwoBlocks), reference(kTwoBlocks);
      shard(net, DeviceMesh(group));
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      Allocator& memory = RankContext::current().allocator();
      const std::int64_t before = memory.accounting().total();
      if (everywhere || group->rank() == 1) memory.set_limit(before + 2 * net.num_parameters());  // half of them
      expect_error([&] { const FullParameters full(net); }, {"full parameters: out of memory", "unsharded"});
      memory.set_limit(0);
      EXPECT_EQ(memory.accounting().total(), before);
      {
        const FullParameters full(net);
        expect_full(net, reference);
      }
      expect_trains_alike(on_slices(net, *group, 6, 5), on_batches(reference, 6, 5), {});
    });
}

// Peers are in a gather by then.
TEST(FullParameters, AnErrorWhileTheyAreGatheredSaysWhatToDo) {
  for (const bool everywhere : {false, true})
    run_ranks(2, [=](const Group& group) {
      Net net(kTwoBlocks), reference(kTwoBlocks);
      shard(net, DeviceMesh(group));
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      Allocator& memory = RankContext::current().allocator();
      const std::int64_t all = memory.accounting().total() + 4 * net.num_parameters();  // and none on its way
      if (everywhere || group->rank() == 1) memory.set_limit(all + 4);
      const auto summon = [&] { const FullParameters full(net); };
      expect_error(summon, {"out of memory", "FullParameters", "reset_after_error(model)"});
      memory.set_limit(0);
      expect_error(summon, {"aborted the group", "reset_after_error(model)"});
      nn::reset_after_error(net);
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      expect_trains_alike(on_slices(net, *group, 6, 5), on_batches(reference, 6, 5), {});
    });
}

TEST(FullParameters, AStepInBetweenIsNotOverwritten) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks), reference(kTwoBlocks);
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    nn::Sgd optimizer(net.parameters(), {.lr = 0.1}), expected(reference.parameters(), {.lr = 0.1});
    const Tensor x = batch_of(4, 6, 0, "x");
    backward(sum(net(x)));
    backward(sum(reference(x)));
    FullParameters full(net, {.write_back = true});
    optimizer.step();
    expected.step();
    expect_error([&] { full.close(); }, {"was written in between"});
    expect_same_values(net, reference);
  });
}

TEST(FullParameters, OutliveTheirModel) {
  run_ranks(2, [](const Group& group) {
    auto net = std::make_unique<Net>(kTwoBlocks);
    shard(*net, DeviceMesh(group));
    net->materialize();
    FullParameters full(*net, {.write_back = true});
    net.reset();
    full.close();
    full.close();
    EXPECT_EQ(held(MemoryCategory::unsharded) + held(MemoryCategory::parameters), 0);
  });
}

// What is left of a unit is not held up by a scope of modules that are gone.
TEST(FullParameters, OfAModuleThatGoesLeaveTheRestOfItsUnit) {
  run_ranks(2, [](const Group& group) {
    Block stays(6, 6);
    auto goes = std::make_unique<Block>(6, 6);
    const nn::UnitHandle unit = nn::fully_shard(std::vector<nn::Module*>{&stays, goes.get()}, DeviceMesh(group));
    stays.materialize(nn::Seed{3});
    goes->materialize(nn::Seed{3});
    {
      const FullParameters full(*goes, {.write_back = true});
      expect_error([&] { unit.unshard(); }, {"summoned", "end the scope"});
      goes.reset();
    }
    unit.unshard();
    EXPECT_FALSE(stays.linear_layer.weight.value().is_distributed());
    unit.reshard();
  });
}

// ---- scopes within scopes ----

/// The strategies that fit a mesh of 2 x 2.
void for_each_strategy(const std::function<void(const Group&, const DeviceMesh&, const nn::UnitPolicy&)>& body) {
  for (const std::string& name : nn::strategy_names())
    run_ranks(4, [&](const Group& group) {
      SCOPED_TRACE(name);
      body(group, DeviceMesh(group, {{"replicate", 2}, {"dp", 2}}), nn::strategy(name));
    });
}

TEST(FullParameters, AreReadAndWrittenUnderEveryStrategy) {
  for_each_strategy([](const Group& group, const DeviceMesh& mesh, const nn::UnitPolicy& policy) {
    Net net(kTwoBlocks), before(kTwoBlocks), after(kTwoBlocks);
    shard(net, mesh, policy, policy);
    expect_scopes(net, before, after);
    expect_trains_alike(on_slices(net, *group, 6, 5), on_batches(after, 6, 5), {.value_limit = 2e-5});
    before.materialize();
    const auto parameters = net.parameters();
    {
      const FullParameters full(net, {.write_back = true});  // what was gathered of a step is stale
      for (nn::Parameter* p : parameters) p->assign(mul(p->value().detach(), 0.5));
    }
    for (nn::Parameter* p : after.parameters()) p->assign(mul(p->value().detach(), 0.5));
    expect_trains_alike(on_slices(net, *group, 6, 5), on_batches(after, 6, 5), {.value_limit = 4e-5});
  });
}

// Modules of nested scopes may share a unit: each scope writes its own parameters.
TEST(FullParameters, OfOtherParametersMayBeNested) {
  for (const bool inner_ends_first : {true, false})
    for_each_strategy([=](const Group&, const DeviceMesh& mesh, const nn::UnitPolicy& policy) {
      ResidualNet net(5, 7), reference(5, 7);
      nn::fully_shard(net, mesh, policy);  // all are of one unit
      net.materialize(nn::Seed{3});
      reference.materialize(nn::Seed{3});
      auto outer = std::make_unique<FullParameters>(net.head, nn::FullParameters::Options{.write_back = true});
      auto inner = std::make_unique<FullParameters>(net.in, nn::FullParameters::Options{.write_back = true});
      expect_error([&] { const FullParameters again(net.in); }, {"\"in.weight\" is in another scope"});
      expect_error([&] { const FullParameters again(net); }, {"is in another scope"});
      net.head.weight.assign(full({2, 5}, 2));
      net.in.weight.assign(full({5, 3}, 3));
      reference.head.weight.assign(full({2, 5}, 2));
      reference.in.weight.assign(full({5, 3}, 3));
      (inner_ends_first ? inner : outer)->close();
      EXPECT_TRUE((inner_ends_first ? net.in : net.head).weight.value().is_distributed());
      EXPECT_FALSE((inner_ends_first ? net.head : net.in).weight.value().is_distributed());
      expect_error([&] { nn::unit_of(net).unshard(); }, {"summoned"});
      (inner_ends_first ? outer : inner)->close();
      expect_same_bits(net, reference);
      nn::unit_of(net).unshard();
      nn::unit_of(net).reshard();
    });
}

TEST(FullParameters, AnExceptionInsideOfTwoScopesWritesNothing) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks), reference(kTwoBlocks);
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    const auto leave = [&] {
      const FullParameters outer(net.head, {.write_back = true});
      net.head.weight.assign(zeros({5, 7}));
      const FullParameters inner(*net.blocks.items()[0], {.write_back = true});
      net.blocks.items()[0]->linear_layer.weight.assign(zeros({10, 6}));
      throw std::runtime_error("left");
    };
    EXPECT_THROW(leave(), std::runtime_error);
    expect_same_bits(net, reference);
    const auto caught = [&] {  // ended before the scope does
      const FullParameters full(net.head, {.write_back = true});
      net.head.weight.assign(zeros({5, 7}));
      try {
        throw std::runtime_error("handled");
      } catch (const std::runtime_error&) {}
    };
    caught();
    reference.head.weight.assign(zeros({5, 7}));
    expect_same_bits(net, reference);
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
}

// Whether they train is a matter of the parameter, whatever is in it.
TEST(FullParameters, FreezingAndThawingHoldsAcrossAScope) {
  for_each_strategy([](const Group& group, const DeviceMesh& mesh, const nn::UnitPolicy& policy) {
    Net net(kTwoBlocks), reference(kTwoBlocks);
    shard(net, mesh, policy, policy);
    net.materialize(nn::Seed{3});
    reference.materialize(nn::Seed{3});
    const auto expect_trains = [&](bool trains) {
      EXPECT_EQ(net.head.weight.requires_grad(), trains);
      EXPECT_EQ(net.head.weight.value().requires_grad(), trains);
      EXPECT_EQ(net.head.weight.sharded_value().requires_grad(), trains);
    };
    net.head.weight.set_requires_grad(false);
    {
      const FullParameters full(net, {.write_back = true});
      EXPECT_FALSE(net.head.weight.value().requires_grad());
      EXPECT_TRUE(net.head.bias->value().requires_grad());
    }
    expect_trains(false);
    {
      const FullParameters full(net);
      net.head.weight.set_requires_grad(true);
    }
    expect_trains(true);
    {
      const FullParameters full(net);
      net.head.weight.set_requires_grad(false);
    }
    expect_trains(false);
    reference.head.weight.set_requires_grad(false);
    const Tensor x = batch_of(12, 6, 0, "x");
    backward(mean(square(net(slice_of(x, *group)))));
    backward(mean(square(reference(x))));
    EXPECT_FALSE(net.head.weight.grad().defined());
    EXPECT_TRUE(
        near(net.head.bias->grad().local(), part_of(reference.head.bias->grad().detach(), net.head.bias->grad())));
  });
}

/// What a look must not disturb.
struct LookedAt {
  const char* text;
  nn::UnitPolicy policy{};
  std::function<void(nn::Module&)> prepare = [](nn::Module&) {};
};

void expect_looks_change_nothing(const Group& group, const DeviceMesh& mesh, const LookedAt& what) {
  SCOPED_TRACE(what.text);
  Net net(kTwoBlocks), twin(kTwoBlocks), reference(kTwoBlocks);
  for (Net* each : {&net, &twin}) {
    shard(*each, mesh, what.policy, what.policy);
    what.prepare(*each);
    each->materialize(nn::Seed{3});
  }
  reference.materialize(nn::Seed{3});
  for (int step = 0; step < 2; ++step)
    for (const bool is_last : {false, true}) {
      const Tensor x = slice_of(batch_of(12, 6, is_last ? 1 : 0, "x"), *group);
      for (Net* each : {&net, &twin}) {
        nn::units(*each).set_requires_gradient_sync(is_last);
        const Tensor loss = mean(square((*each)(x)));
        if (each == &net) {
          const FullParameters full(net);
          expect_full(net, reference);
        }
        backward(loss);
        if (each == &net) {
          const FullParameters full(net, {.write_back = is_last});
          expect_full(net, reference);
        }
      }
    }
  const auto a = net.parameters(), e = twin.parameters();
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(same_bits(a[i]->grad().local(), e[i]->grad().local())) << a[i]->name();
  for (Net* each : {&net, &twin})
    for (nn::Parameter* p : each->parameters()) p->reshard(), p->clear_grad();
  EXPECT_EQ(held(MemoryCategory::gradients) + held(MemoryCategory::communication), 0);
}

// Between forward and backward, and between passes that wait.
TEST(FullParameters, ALookInTheMiddleOfAStepChangesNothing) {
  for_each_strategy([](const Group& group, const DeviceMesh& mesh, const nn::UnitPolicy& policy) {
    expect_looks_change_nothing(group, mesh, {"alone", policy});
    nn::UnitPolicy bf16 = policy;
    bf16.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
    expect_looks_change_nothing(group, mesh, {"bf16", bf16});
  });
  const auto in_8_bits = [](nn::Module& net) {
    for (const nn::UnitHandle& unit : nn::units(net)) unit.set_gather_transform(nn::int8_gather());
  };
  const auto keeps_storage = [](nn::Module& net) { nn::units(net).set_keep_unsharded_storage(true); };
  const auto stays = [](nn::Module& net) { nn::units(net).set_reshard_after_backward(false); };
  nn::UnitPolicy slices;
  slices.reshard_after_forward = 2;
  run_ranks(4, [&](const Group& group) {
    const DeviceMesh mesh(group);
    for (const LookedAt& what : {LookedAt{"slices", slices},
                                 {"8 bits", {}, in_8_bits},
                                 {"storage", {}, keeps_storage},
                                 {"gathered after backward", {}, stays}})
      expect_looks_change_nothing(group, mesh, what);
  });
}

TEST(FullParameters, WhatIsWrittenBetweenForwardAndBackwardIsNoticed) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{3});
    const Tensor loss = mean(square(net(batch_of(2, 6, 0, "x"))));
    { const FullParameters full(net, {.write_back = true}); }  // other values, for all that backward knows
    expect_error([&] { backward(loss); }, {"written"});
    nn::reset_after_error(net);
  });
}

/// Uses a parameter of another module.
struct Borrowing : nn::Layer<Borrowing> {
  explicit Borrowing(nn::Parameter& weight) { share_parameter("weight", weight); }
  Tensor forward(const Tensor& x) { return x; }
};

// The unit goes with the module that was wrapped, the parameter stays with the one that has it: whole, as it is then.
TEST(FullParameters, OfAUnitThatGoesAreLeftToTheOwner) {
  run_ranks(2, [](const Group& group) {
    nn::Linear owner(6, 6);
    auto user = std::make_unique<Borrowing>(owner.weight);
    nn::fully_shard(*user, DeviceMesh(group));
    user->materialize(nn::Seed{3});
    FullParameters full(*user, {.write_back = true});
    owner.weight.assign(ones({6, 6}));
    user.reset();
    full.close();
    EXPECT_FALSE(owner.weight.value().is_distributed());
    EXPECT_TRUE(same_bits(owner.weight.value().detach(), ones({6, 6})));
  });
}

}  // namespace
}  // namespace sherd::testing
