// The dtype of parameters changes after wrapping. Oracle: the same model without sharding, cast by the same call.
#include <gtest/gtest.h>

#include <functional>

#include "nn/optim/sgd.h"
#include "nn/parallel/extensions/int8_gather.h"
#include "nn/parallel/extensions/int8_reduce.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// Steps of both on this rank's rows and on all; optimizers update f64 and no bf16, of which gradients are compared.
void expect_steps_alike(Net& net, Net& reference, const Group& group, DType dtype, double limit) {
  nn::Sgd optimizer(net.parameters(), {.lr = 0.1}), expected(reference.parameters(), {.lr = 0.1});
  const bool is_updated = dtype == DType::f64;
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Tensor x = cast(batch_of(12, 6, step, "x"), dtype), y = cast(batch_of(12, 5, step, "y"), dtype);
    backward(mean_square(net(slice_of(x, *group)), slice_of(y, *group)));
    backward(mean_square(reference(x), y));
    for (const nn::Parameter* p : net.parameters()) EXPECT_EQ(p->grad().dtype(), dtype) << p->name();
    expect_same_gradients(net, reference, limit);
    for (nn::Sgd* each : {&optimizer, &expected}) {
      if (is_updated) each->step();
      each->clear_gradients();
    }
  }
  expect_same_values(net, reference, limit);
}

TEST(FullyShard, F29_ChangingTheDtypeAfterWrappingTrainsToParity) {
  for (const auto& [dtype, limit] : {std::pair(DType::f64, 1e-11), std::pair(DType::bf16, 4e-2)})
    for (const bool has_values : {false, true})
      for (const int ranks : {1, 2, 3})
        run_ranks(ranks, [&](const Group& group) {
          Net net(kTwoBlocks), reference(kTwoBlocks);
          if (has_values) net.materialize(nn::Seed{7});
          shard(net, DeviceMesh(group));
          if (has_values) reference.materialize(nn::Seed{7});
          net.cast_to(dtype);
          reference.cast_to(dtype);
          for (const nn::Parameter* p : net.parameters()) EXPECT_EQ(p->value().dtype(), dtype) << p->name();
          net.materialize(nn::Seed{7});
          reference.materialize(nn::Seed{7});
          expect_same_bits(net, reference);
          expect_steps_alike(net, reference, group, dtype, limit);
        });
}

TEST(FullyShard, F29_ReplicatedIgnoredAndTensorParallelParametersFollow) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    const nn::UnitPolicy options{.replicate_below_bytes = 64, .ignored = {&net.head.weight}};
    shard(net, DeviceMesh(group), options, options);
    net.cast_to(DType::f64);
    net.materialize();
    for (const nn::Parameter* p : net.parameters()) {
      EXPECT_EQ(p->value().dtype(), DType::f64) << p->name();
      EXPECT_EQ(p->value().local().dtype(), DType::f64) << p->name();
    }
    EXPECT_EQ(net(cast(batch_of(2, 6, 0, "x"), DType::f64)).dtype(), DType::f64);
  });
  run_ranks(4, [](const Group& group) {
    const Grid3 grid{1, 2, 2};
    const DeviceMesh root = grid.mesh(group);
    ResidualNet net(5, 7), reference(5, 7);
    shard_2d(net, root, grid, true);
    net.cast_to(DType::f64);
    reference.cast_to(DType::f64);
    net.materialize(nn::Seed{2});
    reference.materialize(nn::Seed{2});
    expect_same_bits(net, reference);
  });
}

// The policy's dtype is no cast any more, or becomes one.
TEST(FullyShard, F29_ThePolicyStays) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](const Group& group) {
      Net net(kTwoBlocks);
      const nn::UnitPolicy options{.mp_policy = {.param_dtype = DType::f32}};
      shard(net, DeviceMesh(group), options, options);
      net.materialize(nn::Seed{7});
      net.cast_to(DType::f64);
      EXPECT_EQ(nn::unit_of(net).layout().pieces[0].full_dtype, DType::f32);
      const Tensor y = net(batch_of(12, 6, 0, "x"));
      EXPECT_EQ(y.dtype(), DType::f32);
      backward(sum(y));
      EXPECT_EQ(net.head.weight.grad().dtype(), DType::f64);
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
    });
}

/// What a unit has beside its strategy.
struct CastExtras {
  const char* text;
  std::function<void(nn::UnitPolicy&)> policy = [](nn::UnitPolicy&) {};
  std::function<void(const nn::UnitHandle&)> unit = [](const nn::UnitHandle&) {};
};
const CastExtras kCastExtras[] = {
    {"alone"},
    {"with inner dims",
     [](nn::UnitPolicy& p) {
       p.placement = [](const nn::Parameter& of) { return nn::shard_dim(of.shape().size() - 1); };
     }},
    {"with owners", [](nn::UnitPolicy& p) { p.placement = [](const nn::Parameter&) { return nn::owned(); }; }},
    {"with small ones whole", [](nn::UnitPolicy& p) { p.replicate_below_bytes = 64; }},
    {"with a gather in 8 bits", [](nn::UnitPolicy&) {},
     [](const nn::UnitHandle& unit) { unit.set_gather_transform(nn::int8_gather()); }},
    {"with a reduction in 8 bits", [](nn::UnitPolicy&) {},
     [](const nn::UnitHandle& unit) { unit.set_custom_reduce(nn::int8_reduce()); }},
};

// There and back, before and after there are values; f64 travels in 8 bits as it is.
TEST(FullyShard, F29_EveryStrategyFollowsAnotherDtype) {
  for (const std::string& name : nn::strategy_names())
    for (const CastExtras& extras : kCastExtras)
      for (const bool is_there : {false, true})
        run_ranks(4, [&](const Group& group) {
          SCOPED_TRACE(fmt::format("{} {} {}", name, extras.text, is_there));
          Net net(kTwoBlocks), reference(kTwoBlocks);
          nn::UnitPolicy policy = nn::strategy(name);
          extras.policy(policy);
          shard(net, DeviceMesh(group, {{"replicate", 2}, {"dp", 2}}), policy, policy);
          for (const nn::UnitHandle& unit : nn::units(net)) extras.unit(unit);
          for (Net* each : {&net, &reference}) {
            if (is_there) each->materialize(nn::Seed{7});
            each->cast_to(DType::bf16);
            each->cast_to(DType::f32);
            each->cast_to(DType::f64);
            each->materialize(nn::Seed{7});
          }
          expect_same_bits(net, reference);
          expect_steps_alike(net, reference, group, DType::f64, 1e-11);
          EXPECT_EQ(held(MemoryCategory::unsharded) + held(MemoryCategory::gradients), 0);
        });
}

TEST(FullyShard, F29_MistakesAreNamed) {
  run_ranks(2, [](const Group& group) {
    Net net(kTwoBlocks);
    nn::fully_shard(net, DeviceMesh(group));
    net.materialize();
    expect_error([&] { net.cast_to(DType::i64); }, {"cast_to(i64)", "f32"});
    expect_error([&] { net.head.cast_to(DType::f64); }, {"head.weight", "wrapped above"});
    net(batch_of(2, 6, 0, "x"));
    expect_error([&] { net.cast_to(DType::f64); }, {"ran already", "first forward"});
  });
}

}  // namespace
}  // namespace sherd::testing
