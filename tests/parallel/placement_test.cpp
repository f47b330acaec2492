// Which part of a parameter each rank has: other dims, row intervals, matrices that one rank owns. Oracles: shards of
// dim 0, whose bits they must have because sums have one order, and one rank on the whole batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "nn/checkpoint/full/full_state.h"
#include "nn/checkpoint/training_state.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/summon.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/hazards.h"
#include "tests/parallel/replay.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using nn::ShardPlan;
using Values = std::map<std::string, std::vector<float>>;

/// One row for each shard but the first as long as there are some, which has the rest.
std::vector<std::int64_t> intervals(std::int64_t rows, int shards) {
  std::vector<std::int64_t> list(static_cast<std::size_t>(shards));
  for (std::size_t r = list.size() - 1; r > 0; --r) rows -= list[r] = std::min<std::int64_t>(rows, 1);
  list[0] = rows;
  return list;
}

/// A way to place parameters over so many shards.
struct Way {
  std::string name;
  std::function<ShardPlan(const nn::Parameter&, int shards)> plan;
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all{
      {"last dim", [](const nn::Parameter&, int) { return nn::shard_dim(-1); }},
      {"intervals",
       [](const nn::Parameter& p, int shards) { return nn::shard_rows(intervals(p.value().local().size(0), shards)); }},
      {"intervals of the last dim",
       [](const nn::Parameter& p, int shards) {
         const Tensor local = p.value().local();
         return nn::shard_rows(intervals(local.size(local.ndim() - 1), shards), -1);
       }},
      {"merged", [](const nn::Parameter& p,
                    int) { return p.value().is_distributed() ? ShardPlan{} : nn::shard_merged(p.shape().size()); }},
      {"owned", [](const nn::Parameter&, int) { return nn::owned(); }},
      {"owned by the last", [](const nn::Parameter&, int shards) { return nn::owned_by(shards - 1); }},
      {"mixed", [](const nn::Parameter& p, int) { return p.shape().size() == 1 ? ShardPlan{} : nn::shard_dim(1); }},
  };
  return all;
}

nn::UnitPolicy placed(const Way& way, int shards, nn::UnitPolicy policy = {}) {
  policy.placement = [plan = way.plan, shards](const nn::Parameter& p) { return plan(p, shards); };
  return policy;
}

struct PlacedTraining : PolicyTraining {
  PlacedTraining(const DeviceMesh& mesh, const nn::UnitPolicy& policy, std::uint64_t seed = 5)
      : PolicyTraining(mesh, policy, kUneven, seed) {}
  std::vector<nn::StateEntry> state() { return nn::training_state(net, optimizer.get()); }
};

// Collective.
Values values_of(PlacedTraining& t) {
  Values values;
  for (const nn::StateEntry& entry : t.state())
    if (!nn::is_usual(entry)) values[entry.kind + "/" + entry.name] = whole(entry.slot->value()).to_vector<float>();
  return values;
}

Values trained(const Group& group, const DeviceMesh& mesh, const nn::UnitPolicy& policy, bool waits = false) {
  PlacedTraining t(mesh, policy);
  for (std::uint64_t step = 0; step < 3; ++step) t.step(own_rows(group, step), {}, waits);
  return values_of(t);
}

TEST(FullyShard, F7_TheDimIsChosenForEachParameter) {
  for (int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      Net net(kUneven);
      const nn::UnitPolicy policy{.placement = [](const nn::Parameter& p) {
        return p.name() == "blocks.0.linear.weight" ? nn::shard_dim(-2) : nn::shard_dim(-1);
      }};
      shard(net, DeviceMesh(group), policy, policy);
      const auto layout = [&](const char* name) { return describe(net.parameter(name).value()); };
      EXPECT_EQ(layout("blocks.0.linear.weight"), "f32[7,5]{0: dp}");
      EXPECT_EQ(layout("blocks.1.linear.weight"), "f32[3,7]{1: dp}");
      EXPECT_EQ(layout("blocks.1.linear.bias"), "f32[3]{0: dp}");
      EXPECT_EQ(layout("head.weight"), "f32[2,3]{1: dp}");
      net.materialize();
      const std::int64_t columns = Spec::from(net.head.weight.value()).local_range(1, 3).size();
      EXPECT_EQ(net.head.weight.value().local().shape(), (Shape{2, columns}));
      const UnitPiece& piece = nn::unit_of(net).layout().piece(0);
      EXPECT_EQ(piece.dim, 1);
      EXPECT_EQ(piece.shape, (Shape{2, 3}));
    });
}

TEST(FullyShard, F7_PlansThatDoNotFitAreNamed) {
  run_ranks(2, [](const Group& group) {
    Net net(kUneven);
    const DeviceMesh mesh(group);
    const auto refuse = [&](const ShardPlan& plan, std::initializer_list<std::string_view> parts) {
      expect_error([&] { nn::fully_shard(net, mesh, {.placement = [&](const nn::Parameter&) { return plan; }}); },
                   parts);
      EXPECT_FALSE(nn::is_fully_sharded(net));
    };
    refuse(nn::shard_dim(2), {"\"blocks.0.linear.weight\" is f32[7,5]", "no dim 2"});
    refuse(nn::shard_dim(-3), {"\"blocks.0.linear.weight\"", "no dim -3"});
    refuse(nn::shard_dim(1), {"\"blocks.0.linear.bias\" is f32[7]", "no dim 1"});
    refuse(nn::owned_by(2), {"mesh(dp=2)", "\"blocks.0.linear.weight\"", "owned by shard 2", "there are 2"});
    refuse({.owner = -3}, {"owned by shard -3"});
    refuse(nn::shard_rows({3, 3}), {"\"blocks.0.linear.weight\"", "3, 3 rows of dim 0", "has 7", "2 shards"});
    refuse(nn::shard_rows({7}), {"7 rows of dim 0", "one number for each of 2 shards"});
    refuse(nn::shard_rows({8, -1}), {"8, -1 rows of dim 0"});
    refuse(nn::shard_rows({5, 0, 0}, 1), {"rows of dim 1", "has 5"});
    refuse({.rows = {3, 4}, .owner = 1}, {"lists rows and names an owner"});
    refuse(nn::shard_merged(3), {"\"blocks.0.linear.weight\" is f32[7,5]", "3 leading dims", "1 to 2"});
    refuse(nn::shard_merged(0), {"0 leading dims"});
    refuse({.dim = 1, .merged = 2}, {"along dim 1 with 2 leading dims"});
    nn::fully_shard(net, mesh);
    EXPECT_TRUE(nn::is_fully_sharded(net));
  });
}

TEST(FullyShard, F7_WhereNothingIsShardedPlansCountForNothing) {
  run_ranks(2, [](const Group& group) {
    Net net(kUneven);
    nn::UnitPolicy policy = nn::strategy("no_shard");
    policy.placement = [](const nn::Parameter&) { return nn::owned_by(7); };
    shard(net, DeviceMesh(group), policy, policy);
    EXPECT_EQ(describe(net.head.weight.value()), "f32[2,3]{}");
    Net other(kUneven);
    policy.placement = [](const nn::Parameter&) { return nn::shard_dim(4); };
    expect_error([&] { nn::fully_shard(other, DeviceMesh(group), policy); }, {"no dim 4"});
  });
}

TEST(FullyShard, F50_EveryPlacementTrainsToTheBitsOfDim0) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const DeviceMesh mesh(group);
      for (const bool is_bf16 : {false, true})
        for (const bool waits : {false, true}) {
          const auto policy = [&](nn::UnitPolicy p) { return is_bf16 ? in_bf16(p) : p; };
          const Values expected = trained(group, mesh, policy({}), waits);
          for (const Way& way : ways())
            EXPECT_EQ(trained(group, mesh, policy(placed(way, group->size())), waits), expected)
                << way.name << (is_bf16 ? " in bf16" : "") << (waits ? " waiting" : "");
        }
    });
}

TEST(FullyShard, F50_EveryPlacementTrainsToTheBitsOfDim0OverReplicas) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh grid = Grid{2, 2}.mesh(group);
    for (const bool is_bf16 : {false, true}) {
      const auto policy = [&](nn::UnitPolicy p) { return is_bf16 ? in_bf16(p) : p; };
      const Values expected = trained(group, grid, policy(nn::strategy("hybrid_shard")));
      for (const Way& way : ways())
        for (const char* strategy : {"hybrid_shard", "hybrid_shard_state"})
          EXPECT_EQ(trained(group, grid, policy(placed(way, 2, nn::strategy(strategy)))), expected)
              << way.name << " under " << strategy;
    }
    const nn::UnitPolicy both{.parameters = nn::ShardedOver::all, .optimizer = nn::ShardedOver::all};
    const Values expected = trained(group, grid, both);
    for (const Way& way : ways()) EXPECT_EQ(trained(group, grid, placed(way, 4, both)), expected) << way.name;
  });
}

TEST(FullyShard, F50_EveryPlacementTrainsToTheBitsOfDim0BesideSlices) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Values expected = trained(group, mesh, {});
    for (const Way& way : ways()) {
      nn::UnitPolicy policy = placed(way, 4);
      policy.reshard_after_forward = 2;
      EXPECT_EQ(trained(group, mesh, policy), expected) << way.name;
    }
  });
}

TEST(FullyShard, F50_EveryPlacementTrainsLikeOneRank) {
  for (int ranks : {1, 2, 3, 4})
    for (const Way& way : ways())
      run_ranks(ranks, [&](const Group& group) {
        SCOPED_TRACE(way.name);
        Net net(kUneven), reference(kUneven);
        const nn::UnitPolicy policy = placed(way, group->size());
        shard(net, DeviceMesh(group), policy, policy);
        net.materialize(nn::Seed{11});
        reference.materialize(nn::Seed{11});
        expect_same_bits(net, reference);
        expect_trains_alike(on_slices(net, *group, 5, 2), on_batches(reference, 5, 2),
                            {.steps = 4, .max_norm = 0.1, .gradient_limit = 1e-5});
      });
}

TEST(FullyShard, F50_EveryPlacementTrainsLikeOneRankWithProcesses) {
  for (const Way& way : ways())
    run_processes(2, [&](const Group& group) {
      Net net({64, 96, 128, 48}), reference({64, 96, 128, 48});
      const nn::UnitPolicy policy = placed(way, group->size());
      shard(net, DeviceMesh(group), policy, policy);
      net.materialize(nn::Seed{11});
      reference.materialize(nn::Seed{11});
      expect_trains_alike(on_slices(net, *group, 64, 48), on_batches(reference, 64, 48), {.steps = 2});
    });
}

// Integers small enough that every product and sum is exact, so that one rank's gradients have the same bits.
TEST(FullyShard, F50_GradientsOfIntegersAreOneRanksBitForBit) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const Group& group) {
      const auto integers = [](const Tensor& t) { return cast(cast(t, DType::i64), DType::f32); };
      const auto set_integers = [&](nn::Module& net) {
        for (nn::Parameter* p : net.parameters()) {
          const Tensor local = p->sharded_value().local().detach();
          if (local.numel() > 0) copy_into(local, integers(mul(local, 4)));
        }
      };
      const Tensor x = integers(mul(batch_of(12, 5, 0, "x"), 2));
      for (const Way& way : ways()) {
        Net net(kUneven), reference(kUneven);
        const nn::UnitPolicy policy = placed(way, group->size());
        shard(net, DeviceMesh(group), policy, policy);
        for (nn::Module* m : {static_cast<nn::Module*>(&net), static_cast<nn::Module*>(&reference)}) {
          m->materialize(nn::Seed{3});
          set_integers(*m);
        }
        for (const nn::UnitHandle& unit : nn::units(net)) unit.set_gradient_divide_factor(1);
        backward(sum(square(net(slice_of(x, *group)))));
        backward(sum(square(reference(x))));
        const auto a = net.parameters(), e = reference.parameters();
        for (std::size_t i = 0; i < a.size(); ++i)
          EXPECT_TRUE(near(view(whole(a[i]->grad()), e[i]->shape()), e[i]->grad(), 0))
              << way.name << " " << a[i]->name();
      }
    });
}

TEST(FullyShard, F50_PlacementsMeetTensorParallelism) {
  for (const auto& [grid, sequence] :
       {std::pair(Grid3{1, 2, 2}, false), std::pair(Grid3{1, 2, 2}, true), std::pair(Grid3{2, 2, 2}, true)})
    for (const Way& way : ways())
      run_ranks(grid.ranks(), [&, on = grid, is_sequence = sequence](const Group& group) {
        SCOPED_TRACE(way.name);
        const DeviceMesh root = on.mesh(group);
        ResidualNet net(5, 8), reference(5, 8);
        shard_2d(net, root, on, is_sequence, placed(way, on.dp));
        net.materialize(nn::Seed{11});
        reference.materialize(nn::Seed{11});
        expect_same_bits(net, reference);
        expect_trains_alike(on_rows(net, root, *group), on_all_rows(reference),
                            {.steps = 3, .max_norm = 0.1, .gradient_limit = 2e-5, .value_limit = 2e-5});
      });
}

TEST(FullyShard, F50_LayoutsBesideTensorParallelism) {
  run_ranks(4, [](const Group& group) {
    const Grid3 grid{1, 2, 2};
    const DeviceMesh root = grid.mesh(group);
    const auto layouts = [&](ShardPlan plan) {
      ResidualNet net(5, 7);
      shard_2d(net, root, grid, false,
               {.placement = [&](const nn::Parameter& p) { return p.shape().size() == 1 ? ShardPlan{} : plan; }});
      const ResidualBlock& block = *net.blocks.items()[0];
      return describe(block.up.weight.value()) + " " + describe(block.down.weight.value());
    };
    EXPECT_EQ(layouts(nn::shard_dim(1)), "f32[7,5]{0: tp; 1: dp} f32[5,7]{1: tp,dp}");
    EXPECT_EQ(layouts(nn::owned_by(1)), "f32[7,5]{0: tp,dp(0,4,0,3)} f32[5,7]{0: dp(0,5); 1: tp}");
    EXPECT_EQ(layouts(nn::owned_by(0)), "f32[7,5]{0: tp,dp(4,0,3,0)} f32[5,7]{0: dp(5,0); 1: tp}");
    // Tensor parallelism divides 7 rows into 4 and 3: no list fits both, and every rank says so.
    expect_error([&] { layouts(nn::shard_rows({1, 3})); }, {"\"blocks.0.up.weight\"", "1, 3 rows of dim 0", "has 3"});
  });
}

TEST(FullyShard, F50_PlacementsReplayBitwiseWhatEagerDoes) {
  for (const Way& way : ways())
    for (const bool is_bf16 : {false, true})
      run_ranks(3, [&](const Group& group) {
        SCOPED_TRACE(way.name);
        const nn::UnitPolicy plain = placed(way, group->size()), policy = is_bf16 ? in_bf16(plain) : plain;
        PlacedTraining eager(DeviceMesh(group), policy), captured(DeviceMesh(group), policy);
        expect_replays_bitwise(group, eager, captured, 5,
                               [&](std::uint64_t i) { return std::pair(own_rows(group, i), own_rows(group, i)); });
      });
}

TEST(FullyShard, F50_PlacementsHaveNoHazards) {
  for (const Way& way : ways())
    run_ranks(2, [&](const Group& group) {
      HazardChecker checker;
      {
        PlacedTraining t(DeviceMesh(group), placed(way, group->size()));
        for (std::uint64_t step = 0; step < 3; ++step) t.step(own_rows(group, step), {});
      }
      EXPECT_TRUE(checker.found().empty()) << way.name << " " << checker.found()[0];
    });
}

// What is moved, and written to move it: as of dim 0, where the sizes divide.
TEST(FullyShard, F50_AnInnerDimCostsNoCopy) {
  for (int ranks : {2, 4})
    run_ranks(ranks, [](const Group& group) {
      const auto counts = [&](const nn::UnitPolicy& policy) {
        Net net({64, 96, 128, 48});
        shard(net, DeviceMesh(group), policy, policy);
        net.materialize();
        const CommCounts before = settled_counts(*group);
        backward(sum(net(batch_of(2, 64, 0, "x"))));
        CommCounts seen = settled_counts(*group);
        return seen -= before;
      };
      const CommCounts expected = counts({}), seen = counts(placed(ways()[0], group->size()));
      const std::pair<const CommCounts::Item&, const CommCounts::Item&> items[] = {
          {seen.all_gather, expected.all_gather}, {seen.reduce_scatter, expected.reduce_scatter}};
      for (const auto& [a, e] : items) {
        EXPECT_GT(a.calls, 0);
        EXPECT_EQ(a.calls, e.calls);
        EXPECT_EQ(a.bytes, e.bytes);
        EXPECT_EQ(a.copied, e.copied);
      }
    });
}

// Saved in one placement on three ranks, loaded in another on two, by files and as one full state.
TEST(FullyShard, F50_CheckpointsMoveBetweenPlacements) {
  for (std::size_t w = 0; w < ways().size(); ++w) {
    const Way &from = ways()[w], &to = ways()[(w + 1) % ways().size()];
    const TempDir dir;
    Values saved;
    std::mutex mutex;
    run_ranks(3, [&](const Group& group) {
      PlacedTraining t(DeviceMesh(group), placed(from, 3));
      t.step(own_rows(group, 0), {});
      nn::save_checkpoint(dir.path(), ckpt::Manifest{}, t.state(), *group);
      const nn::FullState full = nn::full_state_dict(t.net, *group, t.optimizer.get());
      Values own = values_of(t);
      if (group->rank() == 0)
        for (const nn::Parameter* p : t.net.parameters())
          EXPECT_EQ(full.at(p->name()).to_vector<float>(), whole(p->value()).to_vector<float>()) << p->name();
      else
        for (const nn::Parameter* p : t.net.parameters()) whole(p->value());
      PlacedTraining other(DeviceMesh(group), placed(to, 3), 9);
      nn::load_full_state_dict(other.net, *group, full, other.optimizer.get());
      EXPECT_EQ(values_of(other), own) << from.name << " to " << to.name;
      const std::lock_guard lock(mutex);
      saved = std::move(own);
    });
    run_ranks(2, [&](const Group& group) {
      PlacedTraining t(DeviceMesh(group), placed(to, 2), 9);
      nn::load_checkpoint(ckpt::CheckpointReader(dir.path()), t.state());
      EXPECT_EQ(values_of(t), saved) << from.name << " to " << to.name;
    });
  }
}

TEST(FullyShard, F50_FullParametersAreSummonedFromEveryPlacement) {
  run_ranks(3, [](const Group& group) {
    for (const Way& way : ways()) {
      Net net(kUneven), reference(kUneven);
      const nn::UnitPolicy policy = placed(way, group->size());
      shard(net, DeviceMesh(group), policy, policy);
      net.materialize(nn::Seed{11});
      reference.materialize(nn::Seed{11});
      {
        const nn::FullParameters full(net, {.write_back = true});
        for (nn::Parameter* p : net.parameters()) {
          EXPECT_TRUE(same_bits(p->value().detach(), reference.parameter(p->name()).value().detach())) << way.name;
          copy_into(p->value().detach(), mul(p->value().detach(), 2));
        }
      }
      for (nn::Parameter* p : reference.parameters()) copy_into(p->value().detach(), mul(p->value().detach(), 2));
      expect_same_bits(net, reference);
    }
  });
}

/// Matrices of these rows and four columns; no forward.
struct Matrices : nn::Layer<Matrices> {
  explicit Matrices(const std::vector<std::int64_t>& rows) {
    for (std::size_t i = 0; i < rows.size(); ++i)
      add_parameter(fmt::format("w{}", i), {rows[i], 4}, nn::Init::uniform(1));
  }
  Tensor forward(const Tensor& x) { return x; }
};

TEST(FullyShard, F50_OwnersAreBalancedByBytes) {
  const std::vector<std::int64_t> rows{3, 9, 1, 7, 8, 2, 4, 5, 6, 1};  // 46 in all
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [&](const Group& group) {
      Matrices model(rows);
      nn::fully_shard(model, DeviceMesh(group), {.placement = [](const nn::Parameter&) { return nn::owned(); }});
      const UnitLayout& layout = nn::unit_of(model).layout();
      std::vector<std::int64_t> owned(static_cast<std::size_t>(layout.shards));
      for (const UnitPiece& piece : layout.pieces) {
        int owners = 0;
        for (int r = 0; r < layout.shards; ++r) {
          const std::int64_t count = layout.count(piece, r);
          EXPECT_TRUE(count == 0 || count == numel(piece.shape)) << piece.name << " is whole on one rank";
          owners += count > 0;
          owned[static_cast<std::size_t>(r)] += count / 4;
        }
        EXPECT_EQ(owners, 1) << piece.name;
      }
      const auto [least, most] = std::ranges::minmax(owned);
      EXPECT_LE(most - least, 1) << fmt::format("{}", fmt::join(owned, ", "));
    });
}

// A unit that owns one matrix cannot be balanced alone.
TEST(FullyShard, F50_OwnersOfManyUnitsAreSpread) {
  std::vector<int> owned(4);
  nn::Parameter weight("w", {8, 8}, nn::Init::uniform(1), DType::f32);
  nn::Parameter* const list[] = {&weight};
  for (int i = 0; i < 64; ++i) {
    const auto plans =
        nn::plan_shards(fmt::format("blocks.{}", i), list, [](const nn::Parameter&) { return nn::owned(); }, 4);
    ++owned[static_cast<std::size_t>(plans[0].owner)];
  }
  for (const int count : owned) EXPECT_GE(count, 8);
  EXPECT_EQ(nn::plan_shards("unit", list, {}, 4)[0].owner, ShardPlan::kNobody);
}

// Named owners count before balanced ones are given.
TEST(FullyShard, F50_NamedOwnersAndBalancedOnes) {
  std::vector<std::unique_ptr<nn::Parameter>> parameters;
  std::vector<nn::Parameter*> list;
  for (const std::int64_t rows : {10, 4, 3, 3}) {
    parameters.push_back(std::make_unique<nn::Parameter>("w", Shape{rows, 2}, nn::Init::uniform(1), DType::f32));
    list.push_back(parameters.back().get());
  }
  const auto plans = nn::plan_shards(
      "unit", list, [&](const nn::Parameter& p) { return &p == list[0] ? nn::owned_by(1) : nn::owned(); }, 2);
  EXPECT_EQ(plans[0].owner, 1);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(plans[i].owner, 0) << "10 against 4 + 3 + 3";
}

}  // namespace
}  // namespace sherd::testing
