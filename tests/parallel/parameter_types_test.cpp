// Types of each parameter within a policy, and of its gradient; gathered memory that stays. Oracles: the same model on
// one rank with parameters cast by hand, and closed forms of small integers, which every sum keeps exact. Bit by bit.
#include <gtest/gtest.h>

#include <utility>

#include "nn/optim/sgd.h"
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
using nn::ParameterTypes;

/// A product in the type of its input, and a scale of its own type after it, as norms are.
struct Scaled : nn::Layer<Scaled> {
  nn::Parameter &weight, &scale;
  Scaled()
      : weight(add_parameter("weight", {5, 4}, nn::Init::normal(0.5))),
        scale(add_parameter("scale", {5}, nn::Init::normal(1))) {}
  Tensor forward(const Tensor& x) { return cast(linear(x, weight), scale.value().dtype()) * scale; }
};

nn::MixedPrecision bf16_but_scales() {
  return {.param_dtype = DType::bf16, .types_of = [](const nn::Parameter& p) {
            return p.name().ends_with("scale") ? ParameterTypes{.param_dtype = DType::f32} : ParameterTypes{};
          }};
}

// All ranks have the same rows, so the mean of 1, 2 or 4 equal gradients is each rank's, exactly.
void expect_scales_in_f32(const Group& group) {
  Scaled net, reference;
  nn::fully_shard(net, DeviceMesh(group), {.mp_policy = bf16_but_scales()});
  net.materialize(nn::Seed{3});
  reference.materialize(nn::Seed{3});
  reference.weight.set(cast(reference.weight.value().detach(), DType::bf16));
  const CommCounts start = settled_counts(*group);
  const Tensor x = batch_of(3, 4, 0, "x");
  const Tensor y = net(x), expected = reference(cast(x, DType::bf16));
  EXPECT_EQ(y.dtype(), DType::f32);
  EXPECT_TRUE(same_bits(y, expected));
  backward(sum(square(y)));
  backward(sum(square(expected)));
  const CommCounts used = counts_since(start, *group);
  const bool is_split = group->size() > 1;
  EXPECT_EQ(used.all_gather.calls, is_split ? 1 : 0);
  EXPECT_EQ(used.reduce_scatter.calls, is_split ? 1 : 0);
  if (is_split) {
    EXPECT_EQ(used.all_gather.bytes, 2 * 20 + 4 * 5);
    EXPECT_EQ(used.reduce_scatter.bytes, 2 * 20 + 4 * 5);
  }
  for (const auto& [own, one] : {std::pair(&net.weight, &reference.weight), std::pair(&net.scale, &reference.scale)}) {
    EXPECT_EQ(own->sharded_value().dtype(), DType::f32) << own->name();
    EXPECT_TRUE(same_bits(whole(own->grad()), cast(one->grad().detach(), DType::f32))) << own->name();
  }
}

TEST(FullyShard, F184_AScaleStaysInF32WithinABf16Unit) {
  for (const int ranks : {1, 2, 4}) run_ranks(ranks, expect_scales_in_f32);
}

TEST(FullyShard, F184_WithProcesses) { run_processes(2, expect_scales_in_f32); }

TEST(FullyShard, F184_GatheredTensorsHaveTheTypesOfTheirParameters) {
  for (const int ranks : {1, 3})
    run_ranks(ranks, [](const Group& group) {
      Scaled net;
      nn::fully_shard(net, DeviceMesh(group), {.mp_policy = bf16_but_scales()});
      net.materialize(nn::Seed{3});
      const auto expect_types = [&] {
        nn::unit_of(net).unshard();
        EXPECT_EQ(net.weight.value().dtype(), DType::bf16);
        EXPECT_EQ(net.scale.value().dtype(), DType::f32);
        nn::unit_of(net).reshard();
      };
      expect_types();
      net.cast_to(DType::f64);
      EXPECT_EQ(net.scale.sharded_value().dtype(), DType::f64);
      expect_types();
    });
}

TEST(FullyShard, F184_ATypeThatIsNoneForAParameterNamesItAndLeavesThemAlone) {
  run_ranks(2, [](const Group& group) {
    Scaled net;
    nn::UnitPolicy policy;
    policy.mp_policy.types_of = [](const nn::Parameter& p) {
      return p.name().ends_with("scale") ? ParameterTypes{.grad_dtype = DType::i64} : ParameterTypes{};
    };
    expect_error([&] { nn::fully_shard(net, DeviceMesh(group), policy); }, {"\"scale\"", "grad_dtype", "i64"});
    EXPECT_FALSE(net.weight.value().is_distributed());
    policy.mp_policy = {.grad_dtype = DType::i64};
    expect_error([&] { nn::fully_shard(net, DeviceMesh(group), policy); }, {"grad_dtype", "i64"});
    EXPECT_FALSE(net.weight.value().is_distributed());
  });
}

/// x (a + b): both gradients are the sum of the rows of x.
struct Terms : nn::Layer<Terms> {
  nn::Parameter &a, &b;
  Terms() : a(add_parameter("a", {4}, nn::Init::ones())), b(add_parameter("b", {4}, nn::Init::ones())) {}
  Tensor forward(const Tensor& x) { return x * a + x * b; }
};

enum class First { synced, unsynced, unsummed };  // of two backward passes

// bf16 has no 257: a's gradient is rounded to 256 on its way, b's is not. All else is exact.
void expect_gradient_types(const Group& group, const DeviceMesh& mesh, const char* strategy, First first) {
  Terms net;
  nn::UnitPolicy policy = nn::strategy(strategy);
  policy.mp_policy.types_of = [](const nn::Parameter& p) {
    return p.name() == "a" ? ParameterTypes{.grad_dtype = DType::bf16} : ParameterTypes{};
  };
  nn::fully_shard(net, mesh, policy);
  net.materialize();
  nn::unit_of(net).set_gradient_divide_factor(1);
  const auto n = static_cast<float>(group->size());
  const auto rank = static_cast<float>(group->rank());
  const Tensor x = Tensor::from<float>({rank + 1, 257, 3, 2}, {4});
  if (first == First::unsynced) nn::units(net).set_requires_gradient_sync(false);
  if (first == First::unsummed) nn::units(net).set_requires_all_reduce(false);
  backward(sum(net(x)));
  nn::units(net).set_requires_gradient_sync(true);
  nn::units(net).set_requires_all_reduce(true);
  backward(sum(net(x)));
  EXPECT_EQ(net.a.grad().dtype(), DType::bf16);
  EXPECT_EQ(net.b.grad().dtype(), DType::f32);
  const UnitLayout& layout = nn::unit_of(net).layout();
  EXPECT_EQ(UnitLayout::intern(parse_unit_layout(layout.print())).get(), &layout) << "the text says the types";
  const Tensor a = Tensor::from<float>({n * (n + 1), 512 * n, 6 * n, 4 * n}, {4});
  const Tensor b = Tensor::from<float>({n * (n + 1), 514 * n, 6 * n, 4 * n}, {4});
  EXPECT_TRUE(same_bits(cast(whole(net.a.grad()), DType::f32), a)) << strategy;
  EXPECT_TRUE(same_bits(whole(net.b.grad()), b)) << strategy;
  nn::Sgd optimizer(net.parameters(), {.lr = 0.5});
  optimizer.step_and_clear();
  for (const auto& [p, gradient] : {std::pair(&net.a, &a), std::pair(&net.b, &b)}) {
    EXPECT_EQ(p->sharded_value().dtype(), DType::f32);
    EXPECT_TRUE(same_bits(whole(p->value()), add(mul(*gradient, -0.5), 1.0))) << p->name() << " " << strategy;
  }
  EXPECT_EQ(held(MemoryCategory::gradients), 0);
}

TEST(FullyShard, F185_AGradientTypeOfAParameterHoldsInEveryStrategy) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      for (const char* strategy : {"full_shard", "shard_grad_op", "shard_optimizer", "no_shard"})
        for (const First first : {First::synced, First::unsynced})
          expect_gradient_types(group, DeviceMesh(group), strategy, first);
    });
}

TEST(FullyShard, F185_AGradientTypeOfAParameterHoldsOverReplicas) {
  for (const int ranks : {2, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group, {{"replicate", 2}, {"dp", group->size() / 2}});
      for (const char* strategy : {"hybrid_shard", "hybrid_shard_grad_op", "hybrid_shard_state"})
        for (const First first : {First::synced, First::unsynced, First::unsummed})
          expect_gradient_types(group, mesh, strategy, first);
    });
}

// f32 has no 16777217: what passes add up to is kept in the type of the gradient, whatever they compute in.
void expect_sums_in_f64(const Group& group, const char* strategy, First first) {
  Terms net;
  nn::UnitPolicy policy = nn::strategy(strategy);
  policy.mp_policy.grad_dtype = DType::f64;
  nn::fully_shard(net, DeviceMesh(group), policy);
  net.materialize();
  if (first == First::unsynced) nn::units(net).set_requires_gradient_sync(false);
  backward(sum(net(full({4}, 16777216))));
  nn::units(net).set_requires_gradient_sync(true);
  backward(sum(net(ones({4}))));
  for (const nn::Parameter* p : net.parameters())
    EXPECT_TRUE(same_bits(whole(p->grad()), full({4}, 16777217, DType::f64))) << p->name() << " " << strategy;
}

TEST(FullyShard, F185_PassesAddUpInTheTypeOfTheGradient) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](const Group& group) {
      for (const char* strategy : {"full_shard", "shard_optimizer", "no_shard"})
        for (const First first : {First::synced, First::unsynced}) expect_sums_in_f64(group, strategy, first);
    });
}

TEST(FullyShard, F185_GradientsTakeTheBytesOfTheirType) {
  for (const bool is_bf16 : {false, true})
    run_ranks(2, [=](const Group& group) {
      struct Wide : nn::Layer<Wide> {
        nn::Parameter& weight;
        Wide() : weight(add_parameter("weight", {256}, nn::Init::ones())) {}
        Tensor forward(const Tensor& x) { return x * weight; }
      };
      Wide net;
      nn::UnitPolicy policy;
      if (is_bf16) policy.mp_policy.grad_dtype = DType::bf16;
      nn::fully_shard(net, DeviceMesh(group), policy);
      net.materialize();
      const CommCounts start = settled_counts(*group);
      backward(sum(net(batch_of(2, 256, 0, "x"))));
      const CommCounts used = counts_since(start, *group);
      EXPECT_EQ(used.reduce_scatter.bytes, is_bf16 ? 512 : 1024);
      EXPECT_EQ(held(MemoryCategory::gradients), is_bf16 ? 256 : 512) << "half of them on each rank";
    });
}

// ---- memory that stays ----

/// Where each parameter is when its unit is gathered.
std::vector<const void*> gathered_addresses(Net& net) {
  std::vector<const void*> result;
  for (const nn::UnitHandle& unit : nn::units(net)) {
    unit.unshard();
    for (const nn::Parameter* p : unit.parameters()) result.push_back(p->value().local().raw());
    unit.reshard();
  }
  return result;
}

TEST(FullyShard, F187_GatheredMemoryKeepsItsAddressAndIsCounted) {
  for (const int ranks : {1, 2, 3})
    for (const bool is_bf16 : {false, true})
      run_ranks(ranks, [=](const Group& group) {
        Net net(kTwoBlocks), other(kTwoBlocks);
        nn::UnitPolicy policy;
        if (is_bf16) policy.mp_policy.param_dtype = DType::bf16;
        shard(net, DeviceMesh(group), policy, policy);
        shard(other, DeviceMesh(group), policy, policy);
        net.materialize(nn::Seed{4});
        other.materialize(nn::Seed{4});
        nn::units(net).set_keep_unsharded_storage(true);
        EXPECT_EQ(held(MemoryCategory::unsharded), 0) << "nothing was gathered yet";
        const std::vector<const void*> before = gathered_addresses(net);
        const bool gathers = group->size() > 1 || is_bf16;
        std::int64_t bytes = 0;
        for (const nn::UnitHandle& unit : nn::units(net)) {
          bytes += gathers ? unit.gathered_bytes() : 0;
          EXPECT_FALSE(unit.is_gathered());
        }
        EXPECT_EQ(held(MemoryCategory::unsharded), bytes);
        nn::Sgd optimizer(net.parameters(), {.lr = 0.1}), plain(other.parameters(), {.lr = 0.1});
        for (std::uint64_t step = 0; step < 3; ++step) {
          const Tensor x = slice_of(batch_of(12, 6, step, "x"), *group);
          const Tensor loss = sum(square(net(x))), expected = sum(square(other(x)));
          EXPECT_TRUE(same_bits(loss, expected)) << "what is kept is gathered anew, step " << step;
          backward(loss);
          backward(expected);
          optimizer.step_and_clear();
          plain.step_and_clear();
          EXPECT_EQ(held(MemoryCategory::unsharded), bytes);
        }
        EXPECT_EQ(gathered_addresses(net), before);
        nn::units(net).set_keep_unsharded_storage(false);
        EXPECT_EQ(held(MemoryCategory::unsharded), 0);
      });
}

TEST(FullyShard, F187_MemoryThatIsKeptGoesWithItsModel) {
  run_ranks(2, [](const Group& group) {
    {
      Net net(kTwoBlocks);
      shard(net, DeviceMesh(group));
      net.materialize();
      nn::units(net).set_keep_unsharded_storage(true);
      net.cast_to(DType::bf16);
      gathered_addresses(net);
      EXPECT_GT(held(MemoryCategory::unsharded), 0);
    }
    EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  });
}

}  // namespace
}  // namespace sherd::testing
