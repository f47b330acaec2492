// Micro-batches whose gradients are summed as a tree (UnitPolicy::sums_in_tree). Oracle: ranks that each have one of
// them, which reductions sum as a tree, bit by bit.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "nn/parallel/extensions/int8_gather.h"
#include "nn/parallel/extensions/int8_reduce.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using LeafGradients = std::vector<Tensor>;

Tensor loss_of_leaf(Net& net, int leaf) {
  return sum(square(net(batch_of(3, 5, static_cast<std::uint64_t>(leaf), "x"))));
}

/// The full gradients of `leaves` leaves, each rank's neighbours of each other.
LeafGradients sum_of_leaves(const Group& group, const DeviceMesh& mesh, nn::UnitPolicy policy, int leaves) {
  const int own = leaves / group->size(), first = own * group->rank();
  policy.sums_in_tree = true;
  Net net(kUneven);
  shard(net, mesh, policy, policy);
  net.materialize(nn::Seed{2});
  nn::units(net).set_gradient_divide_factor(leaves);
  for (int m = 0; m < own; ++m) {
    nn::units(net).set_requires_gradient_sync(m == own - 1);
    backward(loss_of_leaf(net, first + m));
  }
  LeafGradients all;
  for (const nn::Parameter* p : net.parameters()) all.push_back(whole(p->grad()));
  return all;
}

LeafGradients sums_on(const Grid& grid, const nn::UnitPolicy& policy, int leaves) {
  LeafGradients result;
  run_ranks(grid.ranks(), [&](const Group& group) {
    LeafGradients own = sum_of_leaves(group, grid.mesh(group), policy, leaves);
    if (group->rank() == 0) result = std::move(own);
  });
  return result;
}

void expect_same_sums(const LeafGradients& actual, const LeafGradients& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << what << ' ' << i;
}

nn::UnitPolicy owned_state() { return {.optimizer = nn::ShardedOver::all}; }

TEST(TreeSums, OneRankHasTheBitsOfAsManyRanks) {
  for (const bool is_bf16 : {false, true})
    for (int leaves = 1; leaves <= 9; ++leaves) {
      const nn::UnitPolicy policy = is_bf16 ? in_bf16({}) : nn::UnitPolicy{};
      expect_same_sums(sums_on({1, 1}, policy, leaves), sums_on({1, leaves}, policy, leaves),
                       fmt::format("{}", leaves));
    }
}

TEST(TreeSums, EightLeavesHaveOneSumInEveryLayout) {
  for (const bool is_bf16 : {false, true})
    for (const nn::UnitPolicy& shape :
         {nn::UnitPolicy{}, nn::strategy("no_shard"), nn::strategy("shard_optimizer"), owned_state()}) {
      const nn::UnitPolicy policy = is_bf16 ? in_bf16(shape) : shape;
      const LeafGradients expected = sums_on({1, 1}, is_bf16 ? in_bf16({}) : nn::UnitPolicy{}, 8);
      for (const Grid& grid : {Grid{1, 2}, Grid{2, 1}, Grid{1, 4}, Grid{2, 2}, Grid{4, 1}, Grid{4, 2}, Grid{2, 4}})
        expect_same_sums(sums_on(grid, policy, 8), expected, fmt::format("{} x {}", grid.replicas, grid.shards));
    }
}

// An average is scaled after replicas are summed: sixths of three sums of two, or of two of three, are the same.
TEST(TreeSums, SixRanksAreScaledOnce) {
  const LeafGradients flat = sums_on({1, 6}, {}, 6);
  expect_same_sums(sums_on({3, 2}, {}, 6), flat, "3 x 2");
  expect_same_sums(sums_on({3, 2}, owned_state(), 6), flat, "3 x 2, divided");
}

TEST(TreeSums, ASumWaitsForEachDigit) {
  run_ranks(1, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 1}});
    Net net(kUneven);
    shard(net, mesh, {.sums_in_tree = true}, {.sums_in_tree = true});
    net.materialize(nn::Seed{2});
    const std::int64_t one = 4 * net.num_parameters(), none = held(MemoryCategory::gradients);
    nn::units(net).set_requires_gradient_sync(false);
    for (int passes = 1; passes <= 8; ++passes) {
      backward(loss_of_leaf(net, passes));
      const std::int64_t waits = held(MemoryCategory::gradients) - none;
      const int digits = std::popcount(static_cast<unsigned>(passes));
      EXPECT_EQ(std::ssize(nn::units(net).pending_gradients()), digits * std::ssize(net.parameters()));
      EXPECT_GE(waits, digits * one) << passes;
      EXPECT_LE(waits, digits * (one + 64 * std::ssize(net.parameters()))) << passes;
    }
    EXPECT_EQ(nn::units(net).pending_gradients().size(), net.parameters().size());
    nn::units(net).set_requires_gradient_sync(true);
    nn::finalize_backward(net);
    EXPECT_EQ(nn::units(net).pending_gradients().size(), 0U);
  });
}

TEST(TreeSums, AStepThatIsLeftDropsThemAll) {
  run_ranks(2, [](const Group& group) {
    PolicyTraining training(DeviceMesh(group), {.sums_in_tree = true});
    const std::int64_t none = held(MemoryCategory::gradients);
    nn::units(training.net).set_requires_gradient_sync(false);
    for (int m = 0; m < 3; ++m) backward(loss_of_leaf(training.net, m));
    EXPECT_FALSE(nn::units(training.net).pending_gradients().empty());
    nn::reset_after_error(training.net);
    EXPECT_TRUE(nn::units(training.net).pending_gradients().empty());
    EXPECT_EQ(held(MemoryCategory::gradients), none);
  });
}

TEST(TreeSums, CapturedPassesHaveTheSameBits) {
  for (const Grid& grid : {Grid{1, 1}, Grid{1, 2}, Grid{2, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const DeviceMesh mesh = grid.mesh(group);
      const nn::UnitPolicy policy{.sums_in_tree = true};
      PolicyTraining eager(mesh, policy), captured(mesh, policy);
      const auto step = [](PolicyTraining& training, const Tensor& x) {
        Tensor loss;
        for (int m = 0; m < 5; ++m) {
          nn::units(training.net).set_requires_gradient_sync(m == 4);
          loss = sum(square(training.net(mul(x, 1.0 + m))));
          backward(loss);
        }
        training.optimizer->step_and_clear();
        return loss.detach();
      };
      auto compiled = compile_once([&](const Tensor& x, const Tensor&) { return step(captured, x); }, {.group = group});
      for (std::uint64_t i = 0; i < 5; ++i) {
        const Tensor x = own_rows(group, i);
        EXPECT_TRUE(same_bits(compiled(x, x), step(eager, x))) << i;
      }
      EXPECT_EQ(compiled.mode(), CompiledStep::Mode::replay) << compiled.why();
      std::size_t sums = 0;
      const std::string why = compiled.why();
      for (std::size_t at = 0; (at = why.find("2 ranks of", at)) != std::string::npos; ++at) ++sums;
      EXPECT_EQ(sums, static_cast<std::size_t>((grid.shards > 1) + (grid.replicas > 1))) << why;
      const auto a = captured.net.parameters(), e = eager.net.parameters();
      for (std::size_t i = 0; i < a.size(); ++i)
        EXPECT_TRUE(same_bits(a[i]->value().local(), e[i]->value().local())) << a[i]->name();
    });
}

TEST(TreeSums, ACapturedStepNamesASecondRounding) {
  for (const Grid& grid : {Grid{1, 2}, Grid{2, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      nn::UnitPolicy narrow;
      narrow.mp_policy.reduce_dtype = DType::bf16;
      PolicyTraining training(grid.mesh(group), narrow);
      auto step = compile_once(
          [&](const Tensor& x, const Tensor&) {
            const Tensor loss = sum(square(training.net(x)));
            backward(loss);
            training.optimizer->step_and_clear();
            return loss.detach();
          },
          {.group = group});
      for (std::uint64_t i = 0; i < 4; ++i) step(own_rows(group, i), own_rows(group, i));
      const std::string why = step.why();
      EXPECT_NE(why.find("rounds gradients to bf16"), why.npos) << why;
      EXPECT_EQ(why.find("bf16 twice") != why.npos, grid.replicas > 1) << why;
    });
}

// Passes of steps of two, and of steps that need sums which no recording of those has seen.
TEST(TreeSums, PassesMayBeCapturedApart) {
  for (const Grid& grid : {Grid{1, 1}, Grid{1, 2}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const DeviceMesh mesh = grid.mesh(group);
      const nn::UnitPolicy policy{.sums_in_tree = true};
      PolicyTraining eager(mesh, policy), captured(mesh, policy);
      const auto pass = [](PolicyTraining& training, const Tensor& x, bool is_last) {
        const Tensor loss = sum(square(training.net(x)));
        backward(loss);
        if (is_last) training.optimizer->step_and_clear();
        return loss.detach();
      };
      auto micro =
          compile_once([&](const Tensor& x, const Tensor&) { return pass(captured, x, false); }, {.group = group});
      auto last =
          compile_once([&](const Tensor& x, const Tensor&) { return pass(captured, x, true); }, {.group = group});
      std::uint64_t drawn = 0;
      for (const int passes : {2, 2, 2, 6, 2, 3, 7, 6, 2, 8, 2})
        for (int m = 0; m < passes; ++m) {
          const bool is_last = m == passes - 1;
          const Tensor x = own_rows(group, drawn++);
          for (Net* net : {&eager.net, &captured.net}) nn::units(*net).set_requires_gradient_sync(is_last);
          EXPECT_TRUE(same_bits(is_last ? last(x, x) : micro(x, x), pass(eager, x, is_last)))
              << passes << " pass " << m;
          EXPECT_TRUE(!is_last || nn::units(captured.net).pending_gradients().empty()) << passes;
          const auto a = captured.net.parameters(), e = eager.net.parameters();
          for (std::size_t i = 0; is_last && i < a.size(); ++i)
            EXPECT_TRUE(same_bits(a[i]->value().local(), e[i]->value().local())) << a[i]->name() << " after " << passes;
        }
    });
}

TEST(TreeSums, ShardsAndReductionsOfTheProgramsOwnAreRefused) {
  run_ranks(4, [](const Group& group) {
    Net net(kUneven);
    nn::UnitPolicy narrow{.sums_in_tree = true};
    narrow.mp_policy.reduce_dtype = DType::bf16;
    const DeviceMesh grid(group, {{"replicate", 2}, {"dp", 2}});
    expect_error([&] { nn::fully_shard(net, grid, narrow); }, {"add up as a tree", "reduce_dtype = bf16", "take f32"});
  });
  run_ranks(1, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 1}});
    Net net(kUneven);
    const nn::UnitPolicy policy{.gradients = nn::ShardedOver::shards, .sums_in_tree = true};
    expect_error([&] { nn::fully_shard(net, mesh, policy); }, {"add up as a tree in full", "shards over shards"});
    shard(net, mesh, {.sums_in_tree = true}, {.sums_in_tree = true});
    expect_error([&] { nn::units(net).set_custom_reduce(nn::int8_reduce()); }, {"set_custom_reduce", "order"});
    expect_error([&] { nn::units(net).set_gather_transform(nn::int8_gather()); }, {"set_gather_transform", "round"});
    expect_error([&] { nn::units(net).set_requires_all_reduce(false); }, {"set_requires_all_reduce", "leave it on"});
    expect_error([&] { nn::units(net).set_all_reduce_hook([](const auto&) {}); }, {"set_all_reduce_hook", "order"});
  });
}

}  // namespace
}  // namespace sherd::testing
