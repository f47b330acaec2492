// The two 8-bit examples: block quantisation by itself, gathers and reductions with it. Against exact ones: errors
// within what half a step of a block is, bytes by the formula, replays bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nn/optim/adamw.h"
#include "nn/parallel/extensions/int8_gather.h"
#include "nn/parallel/extensions/int8_reduce.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/comm_counter.h"
#include "tests/parallel/replay.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
const std::vector<std::int64_t> kPartialBlocks{40, 67, 33, 5};  // shards that are no whole blocks

// ---- blocks ----

Tensor back(const nn::QuantizedBlocks& blocks, const Tensor& like, int block) {
  const Tensor out = Tensor::empty(like.shape(), like.dtype());
  nn::dequantize_blocks_into(out, blocks.values, blocks.scales, block);
  return out;
}

// The largest of each block comes back as it was, up to a rounding; others within half a step.
TEST(Int8, F96_AnElementIsOffByHalfAStepOfItsBlockAtMost) {
  for (const int block : {64, 256, 4096})
    for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{63}, std::int64_t{64},
                                     std::int64_t{1000}, std::int64_t{70000}})
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        const Tensor x = cast(random_normal({count}, random_key(1, "x", "test")) *
                                  random_uniform({count}, random_key(2, "x", "test"), 0, 4),
                              dtype);
        const nn::QuantizedBlocks blocks = nn::quantize_blocks(x, block);
        ASSERT_EQ(blocks.values.shape(), (Shape{count}));
        ASSERT_EQ(blocks.scales.shape(), (Shape{(count + block - 1) / block}));
        const auto expected = x.to_vector<double>(), actual = back(blocks, x, block).to_vector<double>();
        const double rounding = dtype == DType::f32 ? 0x1p-22 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
        for (std::int64_t first = 0; first < count; first += block) {
          double largest = 0;
          const auto end = static_cast<std::size_t>(std::min(first + block, count));
          for (auto i = static_cast<std::size_t>(first); i < end; ++i)
            largest = std::max(largest, std::abs(expected[i]));
          for (auto i = static_cast<std::size_t>(first); i < end; ++i)
            ASSERT_LE(std::abs(actual[i] - expected[i]), largest / 127 / 2 + rounding * largest)
                << "element " << i << " of " << count << " in blocks of " << block << ", " << name(dtype);
        }
      }
}

TEST(Int8, F96_WhatIsNotFiniteIsSeenAndZerosStay) {
  std::vector<float> values(256, 0.5f);
  values[70] = std::numeric_limits<float>::infinity();
  values[130] = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t i = 192; i < 256; ++i) values[i] = 0;
  values[200] = 1e-35f;
  const Tensor x = Tensor::from<float>(std::span<const float>(values), {256});
  const auto actual = back(nn::quantize_blocks(x, 64), x, 64).to_vector<float>();
  for (std::size_t i = 0; i < 64; ++i) EXPECT_NEAR(actual[i], 0.5f, 1e-6);
  for (std::size_t i = 64; i < 192; ++i) EXPECT_TRUE(std::isnan(actual[i])) << i;
  for (std::size_t i = 192; i < 256; ++i) EXPECT_EQ(actual[i], 0) << i;
}

TEST(Int8, F96_WhatIsNotDenseIsTakenInItsOrder) {
  const Tensor x = random_normal({6, 50}, random_key(3, "x", "test"));
  const Tensor turned = transpose(x, 0, 1), room = zeros({50, 12});
  const nn::QuantizedBlocks blocks = nn::quantize_blocks(turned, 64);
  nn::dequantize_blocks_into(narrow(room, 1, 3, 6), blocks.values, blocks.scales, 64);
  EXPECT_TRUE(same_bits(narrow(room, 1, 3, 6), back(blocks, turned, 64)));
  EXPECT_TRUE(near(narrow(room, 1, 3, 6), turned, 0.02));
  EXPECT_TRUE(same_bits(narrow(room, 1, 9, 3), zeros({50, 3})));
}

TEST(Int8, F96_WrongCallsAreRefused) {
  const Tensor x = zeros({4, 32});
  expect_error([&] { nn::quantize_blocks(x, 100); }, {"quantize_blocks", "100", "multiple of 64"});
  expect_error([&] { nn::quantize_blocks(x, 8192); }, {"8192", "up to 4096"});
  expect_error([&] { nn::quantize_blocks(zeros({4}, DType::f64)); }, {"quantize_blocks", "f64[4]"});
  const nn::QuantizedBlocks blocks = nn::quantize_blocks(x, 64);
  expect_error([&] { nn::dequantize_blocks_into(zeros({4, 33}), blocks.values, blocks.scales, 64); },
               {"dequantize_blocks", "f32[4,33]", "u8[132]"});
  expect_error([] { nn::int8_gather(1); }, {"int8_gather", "blocks of 1"});
  expect_error([] { nn::int8_reduce(1); }, {"int8_reduce", "blocks of 1"});
}

// ---- what moves ----

/// Elements that each of `shards` ranks has of a tensor, by the chunk rule.
std::vector<std::int64_t> chunk_counts(const Shape& shape, std::int64_t shards) {
  const std::int64_t chunk = (shape[0] + shards - 1) / shards;
  std::vector<std::int64_t> counts;
  for (std::int64_t r = 0; r < shards; ++r)
    counts.push_back(std::max<std::int64_t>(std::min(chunk, shape[0] - r * chunk), 0) * (numel(shape) / shape[0]));
  return counts;
}
/// Values and scales of all shards.
std::int64_t bytes_in_8_bits(const Shape& shape, std::int64_t shards) {
  std::int64_t bytes = 0;
  for (const std::int64_t count : chunk_counts(shape, shards)) bytes += count + 4 * ((count + 255) / 256);
  return bytes;
}
std::int64_t gathered_bytes(const nn::Module& net, std::int64_t shards) {
  std::int64_t bytes = 0;
  for (const nn::Parameter* p : net.parameters())
    bytes += p->shape().size() > 1 ? bytes_in_8_bits(p->shape(), shards) : 4 * numel(p->shape());
  return bytes;
}

void expect_bytes_of_the_formula(const Group& group, const Grid& grid) {
  const DeviceMesh mesh = grid.mesh(group);
  Net net(kPartialBlocks);
  const nn::UnitPolicy options{.reshard_after_forward = nn::ReshardAfterForward(false)};
  shard(net, mesh, options, options);
  for (const nn::UnitHandle& unit : nn::units(net)) {
    unit.set_gather_transform(nn::int8_gather());
    unit.set_custom_reduce(nn::int8_reduce());
  }
  net.materialize(nn::Seed{2});
  const CommCounts before = settled_counts(mesh.group("dp"));
  const CommCounter counter;
  backward(sum(net(batch_of(2, 40, 0, "x"))));
  CommCounts step = settled_counts(mesh.group("dp"));
  step -= before;
  std::int64_t reduced = 0;
  for (const nn::Parameter* p : net.parameters()) reduced += bytes_in_8_bits(p->shape(), grid.shards);
  EXPECT_EQ(step.all_gather.calls, kUnits);
  EXPECT_EQ(step.all_gather.bytes, gathered_bytes(net, grid.shards));
  EXPECT_LT(step.all_gather.bytes, 1.2 * static_cast<double>(net.num_parameters())) << "near 1 byte an element";
  EXPECT_EQ(step.all_to_all.calls, kUnits);
  EXPECT_EQ(step.all_to_all.bytes, reduced);
  EXPECT_EQ(step.reduce_scatter.calls, 0);
  EXPECT_EQ(counter.of(comm::CommOp::all_gather).bytes, step.all_gather.bytes);
  EXPECT_EQ(counter.of(comm::CommOp::all_to_all).bytes, reduced);
  for (const nn::Parameter* p : net.parameters()) EXPECT_EQ(p->grad().dtype(), DType::f32) << p->name();
}

TEST(FullyShard, F96_EightBitsMoveOneByteAnElementAndScales) {
  for (const Grid& grid : {Grid{1, 2}, Grid{1, 3}, Grid{2, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) { expect_bytes_of_the_formula(group, grid); });
}

TEST(FullyShard, F96_EightBitsMoveOneByteAnElementAndScalesWithProcesses) {
  run_processes(2, [](const Group& group) { expect_bytes_of_the_formula(group, {1, 2}); });
}

// ---- what arrives ----

// Modules see what every rank's shard is in 8 bits, and gradients of f32 from it.
TEST(FullyShard, F96_ModulesComputeWithTheDecodedShardsAndGradientsAreExact) {
  for (const bool is_bf16 : {false, true})
    for (const int ranks : {2, 3})
      run_ranks(ranks, [=](const Group& group) {
        nn::UnitPolicy options;
        if (is_bf16) options.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
        nn::Linear net(40, 67), exact(40, 67);
        for (nn::Linear* each : {&net, &exact}) {
          nn::fully_shard(*each, DeviceMesh(group), options);
          each->materialize(nn::Seed{2});
        }
        const nn::UnitHandle unit = nn::unit_of(net);
        unit.set_gather_transform(nn::int8_gather());
        unit.unshard();
        const Tensor weight = whole(net.weight.sharded_value()).detach();
        std::int64_t row = 0;
        for (const std::int64_t count : chunk_counts({67, 40}, ranks)) {
          const Tensor shard = narrow(weight, 0, row, count / 40);
          const Tensor expected = back(nn::quantize_blocks(shard), contiguous(shard), nn::kQuantizationBlock);
          EXPECT_TRUE(same_bits(narrow(net.weight.value().detach(), 0, row, count / 40),
                                is_bf16 ? cast(expected, DType::bf16) : expected));
          row += count / 40;
        }
        EXPECT_TRUE(
            same_bits(cast(net.bias->value().detach(), DType::f32),
                      cast(cast(whole(net.bias->sharded_value()).detach(), net.bias->value().dtype()), DType::f32)));
        unit.reshard();
        // The gradient of a sum is that of the inputs, whatever the weights.
        const Tensor x = slice_of(batch_of(12, 40, 0, "x"), *group);
        backward(sum(net(x)));
        backward(sum(exact(x)));
        EXPECT_TRUE(same_bits(net.weight.grad().local(), exact.weight.grad().local()));
        EXPECT_TRUE(same_bits(net.bias->grad().local(), exact.bias->grad().local()));
      });
}

// Each rank's contribution is off by half a step of its block, at most 1/254 of its largest.
TEST(FullyShard, F96_AnEightBitReductionIsOffByTheMeanOfHalfSteps) {
  for (const Grid& grid : {Grid{1, 2}, Grid{1, 3}, Grid{2, 2}})
    for (const int passes : {1, 2})
      run_ranks(grid.ranks(), [&](const Group& group) {
        Net net(kPartialBlocks), exact(kPartialBlocks), local(kPartialBlocks);
        for (Net* each : {&net, &exact}) shard(*each, grid.mesh(group));
        for (Net* each : {&net, &exact, &local}) each->materialize(nn::Seed{2});
        for (const nn::UnitHandle& unit : nn::units(net)) unit.set_custom_reduce(nn::int8_reduce());
        std::vector<double> largest(net.parameters().size());
        for (int pass = 0; pass < passes; ++pass) {  // the second adds to the first's
          const Tensor x = slice_of(batch_of(12, 40, static_cast<std::uint64_t>(pass), "x"), *group);
          for (Net* each : {&net, &exact, &local}) backward(sum(square((*each)(x))));
          for (std::size_t i = 0; i < largest.size(); ++i) {
            double own = 0;
            for (const double g : local.parameters()[i]->grad().to_vector<double>()) own = std::max(own, std::abs(g));
            largest[i] += mean_over(*group, own);
            local.parameters()[i]->clear_grad();
          }
        }
        const auto a = net.parameters(), e = exact.parameters();
        for (std::size_t i = 0; i < a.size(); ++i) {
          const auto actual = a[i]->grad().local().to_vector<double>(),
                     expected = e[i]->grad().local().to_vector<double>();
          for (std::size_t k = 0; k < actual.size(); ++k)
            ASSERT_LE(std::abs(actual[k] - expected[k]), largest[i] / 254 * 1.001 + 1e-6) << a[i]->name() << " " << k;
        }
      });
}

// A gradient of equal elements is exact in 8 bits. f32 has no 127 * 2^17 + 127 / 2^9.
TEST(FullyShard, F96_F185_EightBitReductionsAddUpInTheTypeOfTheGradient) {
  run_ranks(2, [](const Group& group) {
    nn::Linear net(8, 4, {.bias = false});
    nn::fully_shard(net, DeviceMesh(group), {.mp_policy = {.grad_dtype = DType::f64}});
    nn::unit_of(net).set_custom_reduce(nn::int8_reduce());
    net.materialize();
    for (const double element : {127 * 0x1p17, 127 * 0x1p-9}) backward(sum(net(full({1, 8}, element))));
    EXPECT_TRUE(same_bits(whole(net.weight.grad()), full({4, 8}, 127 * 0x1p17 + 127 * 0x1p-9, DType::f64)));
  });
}

// What is not finite on one rank is on every rank that gets a part of its block: loss scaling sees it.
TEST(FullyShard, F96_F97_AnEightBitReductionKeepsWhatIsNotFinite) {
  run_ranks(2, [](const Group& group) {
    nn::Linear net(8, 4, {.bias = false});
    nn::fully_shard(net, DeviceMesh(group));
    nn::unit_of(net).set_custom_reduce(nn::int8_reduce());
    net.materialize();
    const float inf = std::numeric_limits<float>::infinity();
    backward(sum(net(full({1, 8}, group->rank() == 1 ? inf : 1))));
    for (const double g : net.weight.grad().local().to_vector<double>()) EXPECT_FALSE(std::isfinite(g));
  });
}

// ---- training ----

struct Int8Training {
  Net net{kPartialBlocks};
  std::unique_ptr<nn::AdamW> optimizer;
  Int8Training(const DeviceMesh& mesh, const nn::UnitPolicy& options, bool in_8_bits) {
    nn::UnitPolicy blocks = options;
    blocks.mp_policy.output_dtype.reset();  // of the model's output alone
    shard(net, mesh, blocks, options);
    if (in_8_bits)
      for (const nn::UnitHandle& unit : nn::units(net)) {
        unit.set_gather_transform(nn::int8_gather());
        unit.set_custom_reduce(nn::int8_reduce());
      }
    net.materialize(nn::Seed{5});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.01});
  }
  Tensor micro(const Tensor& x, const Tensor& y) {
    const Tensor loss = mean_square(net(x), y);
    backward(loss);
    return loss.detach();
  }
  Tensor step(const Tensor& x, const Tensor& y) {
    nn::units(net).set_requires_gradient_sync(false);
    micro(x * 2, y);
    nn::units(net).set_requires_gradient_sync(true);
    const Tensor loss = micro(x, y);
    optimizer->step_and_clear();
    return loss;
  }
};

nn::UnitPolicy options_of(bool is_bf16) {
  nn::UnitPolicy options;
  if (is_bf16) options.mp_policy = {.param_dtype = DType::bf16, .output_dtype = DType::f32};
  return options;
}

TEST(FullyShard, F96_F77_EightBitStepsReplayBitwise) {
  for (const Grid& grid : {Grid{1, 1}, Grid{1, 2}, Grid{1, 3}, Grid{2, 2}})
    for (const bool is_bf16 : {false, true})
      run_ranks(grid.ranks(), [&](const Group& group) {
        const DeviceMesh mesh = grid.mesh(group);
        Int8Training eager(mesh, options_of(is_bf16), true), captured(mesh, options_of(is_bf16), true);
        expect_replays_bitwise(group, eager, captured, 6, [&](std::uint64_t i) {
          return std::pair(slice_of(batch_of(12, 40, i, "x"), *group), slice_of(batch_of(12, 5, i, "y"), *group));
        });
      });
}

TEST(FullyShard, F96_EightBitTrainingFollowsTheExactOne) {
  for (const Grid& grid : {Grid{1, 2}, Grid{2, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const DeviceMesh mesh = grid.mesh(group);
      Int8Training with(mesh, {}, true), without(mesh, {}, false);
      double first = 0, in_8_bits = 0, exact = 0;
      for (std::uint64_t i = 0; i < 30; ++i) {
        const Tensor x = slice_of(batch_of(12, 40, i % 3, "x"), *group),
                     y = slice_of(batch_of(12, 5, i % 3, "y"), *group);
        in_8_bits = mean_over(*group, with.step(x, y).item<float>());
        exact = mean_over(*group, without.step(x, y).item<float>());
        if (i == 0) first = exact;
      }
      EXPECT_LT(exact, 0.9 * first);
      EXPECT_NEAR(in_8_bits, exact, 0.05 * first);
      EXPECT_EQ(held(MemoryCategory::unsharded), 0);
    });
}

}  // namespace
}  // namespace sherd::testing
