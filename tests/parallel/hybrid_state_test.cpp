// hybrid_shard_state: parameters are sharded over one axis, what the optimizer updates over both. Oracles: one rank on
// the whole batch, hybrid_shard bit for bit, and bytes and collectives by their formulas.
#include <gtest/gtest.h>

#include <memory>

#include "nn/checkpoint/full/full_state.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/exec/hazards.h"
#include "tests/parallel/replay.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

nn::UnitPolicy policy_of(const char* strategy, bool is_bf16) {
  return is_bf16 ? in_bf16(nn::strategy(strategy)) : nn::strategy(strategy);
}

Tensor output_of(Net& net, const Tensor& x) {
  const GradMode off(false);
  return net(x).detach();
}

void expect_same_wholes(const Net& a, const Net& b) {
  const auto actual = a.parameters(), expected = b.parameters();
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(same_bits(whole(actual[i]->value()), whole(expected[i]->value()))) << actual[i]->name();
}

TEST(FullyShard, F60_HybridShardStateTrainsLikeOneRank) {
  for (const Grid& grid : kReplicaGrids)
    for (const bool prefetch : {true, false})
      run_ranks(grid.ranks(), [&](const Group& group) {
        expect_parity(group, grid.mesh(group), nn::strategy("hybrid_shard_state"), prefetch);
      });
}

TEST(FullyShard, F60_HybridShardStateTrainsLikeOneRankWithProcesses) {
  run_processes(
      4, [](const Group& group) { expect_parity(group, Grid{2, 2}.mesh(group), nn::strategy("hybrid_shard_state")); });
}

// Rows are split by dp, and each replica owns a part of what it has of them.
TEST(HybridState, MastersGradientsAndStateAreShardedOverBothAxes) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh = Grid{2, 2}.mesh(group);
    PolicyTraining t(mesh, nn::strategy("hybrid_shard_state"));
    const nn::Parameter& weight = t.net.blocks.items()[0]->linear_layer.weight;  // [7, 5]
    EXPECT_EQ(describe(weight.value()), "f32[7,5]{0: dp,replicate}");
    const std::int64_t dp = mesh.coordinate(1), replica = mesh.coordinate(0);
    const std::int64_t rows[2][2] = {{2, 2}, {2, 1}};
    EXPECT_EQ(weight.value().local().size(0), rows[dp][replica]);
    EXPECT_EQ(Spec::from(weight.value()).local_offset(weight.shape())[0], 4 * dp + 2 * replica);
    backward(sum(t.net(own_rows(group, 0))));
    EXPECT_EQ(weight.grad().layout(), weight.value().layout());
    EXPECT_EQ(weight.grad().local().shape(), weight.value().local().shape());
  });
}

TEST(HybridState, GradientsAreThoseOfHybridShardBitForBit) {
  for (const Grid& grid : {Grid{2, 2}, Grid{2, 1}, Grid{2, 3}})
    for (const bool is_bf16 : {false, true})
      run_ranks(grid.ranks(), [&](const Group& group) {
        PolicyTraining state(grid.mesh(group), policy_of("hybrid_shard_state", is_bf16)),
            whole_shards(grid.mesh(group), policy_of("hybrid_shard", is_bf16));
        const Tensor x = own_rows(group, 3);
        for (PolicyTraining* t : {&state, &whole_shards}) t->accumulate(x);
        const auto a = state.net.parameters(), b = whole_shards.net.parameters();
        for (std::size_t i = 0; i < a.size(); ++i)
          EXPECT_TRUE(same_bits(whole(a[i]->grad()), whole(b[i]->grad()))) << a[i]->name();
      });
}

// One gather per unit over replicas serves both micro-batches of an update, and evaluation after it gathers no more.
TEST(HybridState, GathersOverReplicasOncePerUpdate) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh = Grid{2, 2}.mesh(group);
    PolicyTraining t(mesh, nn::strategy("hybrid_shard_state"), kEven);
    const auto x = [&](std::uint64_t step) { return slice_of(batch_of(12, 64, step, "x"), *group); };
    const std::int64_t shard_bytes = 4 * t.net.num_parameters() / 2;
    for (std::uint64_t step = 0; step < 3; ++step) {
      const CommCounts dp = settled_counts(mesh.group("dp")), replicas = settled_counts(mesh.group("replicate"));
      t.step(x(step), {});
      const CommCounts in_shards = counts_since(dp, mesh.group("dp")),
                       over_replicas = counts_since(replicas, mesh.group("replicate"));
      EXPECT_EQ(in_shards.all_gather.calls, 2 * (2 * kUnits - 1));
      EXPECT_EQ(in_shards.reduce_scatter.calls, 2 * kUnits);
      EXPECT_EQ(over_replicas.all_gather.calls, kUnits);
      EXPECT_EQ(over_replicas.all_gather.bytes, shard_bytes);
      EXPECT_EQ(over_replicas.reduce_scatter.calls, 2 * kUnits);
      EXPECT_EQ(over_replicas.reduce_scatter.bytes, 2 * shard_bytes);
      EXPECT_EQ(over_replicas.all_reduce.calls + in_shards.all_reduce.calls, 0);
    }
    const CommCounts replicas = settled_counts(mesh.group("replicate"));
    for (std::uint64_t i = 0; i < 3; ++i) output_of(t.net, x(i));
    t.step(x(0), {});
    EXPECT_EQ(counts_since(replicas, mesh.group("replicate")).all_gather.calls, kUnits);
  });
}

TEST(HybridState, F205_ReductionsOverReplicasAreOnTheirQueue) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh = Grid{2, 2}.mesh(group);
    PolicyTraining t(mesh, nn::strategy("hybrid_shard_state"));
    const auto on = [&](std::string_view queue) {
      RankContext::current().drain_queues();
      return lane_of(mesh.group("replicate"), queue).counts().reduce_scatter.calls;
    };
    const std::int64_t before = on(kReplicateQueue), others = on(kReduceQueue);
    t.accumulate(own_rows(group, 0));
    EXPECT_EQ(on(kReplicateQueue) - before, 2 * kUnits);
    EXPECT_EQ(on(kReduceQueue) - others, 0);
  });
}

void expect_held(MemoryCategory category, std::int64_t formula, const std::string& what) {
  EXPECT_GE(held(category), formula) << what << " " << name(category);
  EXPECT_LE(static_cast<double>(held(category)), 1.01 * static_cast<double>(formula)) << what << " " << name(category);
}

// N elements on s shards and o replicas: the same in f32 and with a cast to bf16.
TEST(HybridState, BytesPerCategory) {
  for (const bool is_bf16 : {false, true})
    run_ranks(4, [&](const Group& group) {
      PolicyTraining t(Grid{2, 2}.mesh(group), policy_of("hybrid_shard_state", is_bf16), kEven);
      const std::int64_t n = t.net.num_parameters(), s = 2, o = 2;
      for (int step = 0; step < 3; ++step) {
        const std::string what = fmt::format("{} step {}", is_bf16 ? "bf16" : "f32", step);
        for (const bool sums : {false, true}) {  // the first micro-batch leaves whole shards to the second
          nn::units(t.net).set_requires_all_reduce(sums);
          backward(sum(t.net(batch_of(2, 64, 0, "x"))));
          RankContext::current().drain_queues();
          expect_held(MemoryCategory::parameters, 4 * n / s, what);
          EXPECT_EQ(held(MemoryCategory::unsharded), 0) << what;
          expect_held(MemoryCategory::gradients, 4 * n / (sums ? s * o : s), what);
        }
        t.optimizer->step_and_clear();
        EXPECT_EQ(held(MemoryCategory::gradients) + held(MemoryCategory::communication), 0) << what;
        expect_held(MemoryCategory::parameters, 4 * n / s, what);
        expect_held(MemoryCategory::optimizer, 8 * n / (s * o), what);
      }
    });
}

TEST(HybridState, F81_SumsOverReplicasMayWait) {
  for (const Grid& grid : {Grid{2, 2}, Grid{2, 1}, Grid{2, 3}})
    for (const bool holds : {false, true})  // full gradients wait too
      run_ranks(grid.ranks(), [&](const Group& group) {
        const DeviceMesh mesh = grid.mesh(group);
        Net net(kUneven), reference(kUneven);
        const nn::UnitPolicy policy = nn::strategy("hybrid_shard_state");
        shard(net, mesh, policy, policy);
        net.materialize(nn::Seed{2});
        reference.materialize(nn::Seed{2});
        for (int step = 0; step < 2; ++step) {  // the second adds to the first's gradients
          const CommCounts replicas = settled_counts(mesh.group("replicate"));
          for (int micro = 0; micro < 4; ++micro) {
            nn::units(net).set_requires_all_reduce(micro == 3);
            nn::units(net).set_requires_gradient_sync(!holds || micro % 2 == 1);
            const Tensor x = batch_of(12, 5, static_cast<std::uint64_t>(step * 4 + micro), "x");
            backward(mul(sum(net(slice_of(x, *group))), static_cast<double>(group->size())));
            backward(sum(reference(x)));
            if (micro < 3 && step == 0) { EXPECT_FALSE(net.head.weight.grad().defined()); }
          }
          EXPECT_EQ(counts_since(replicas, mesh.group("replicate")).reduce_scatter.calls, kUnits);
        }
        expect_same_gradients(net, reference);
      });
}

// Nothing waits then: every pass is reduced to what the optimizer updates.
TEST(HybridState, GradientsMayAddUpOverBothAxes) {
  for (const Grid& grid : {Grid{2, 2}, Grid{2, 3}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const DeviceMesh mesh = grid.mesh(group);
      Net net(kUneven), reference(kUneven);
      nn::UnitPolicy policy = nn::strategy("hybrid_shard_state");
      policy.gradients = nn::ShardedOver::all;
      shard(net, mesh, policy, policy);
      net.materialize(nn::Seed{2});
      reference.materialize(nn::Seed{2});
      const CommCounts dp = settled_counts(mesh.group("dp")), replicas = settled_counts(mesh.group("replicate"));
      for (int micro = 0; micro < 3; ++micro) {
        nn::units(net).set_requires_gradient_sync(micro == 2);
        const Tensor x = batch_of(12, 5, static_cast<std::uint64_t>(micro), "x");
        backward(mul(sum(net(slice_of(x, *group))), static_cast<double>(group->size())));
        backward(sum(reference(x)));
        EXPECT_TRUE(nn::units(net).pending_gradients().empty());
        EXPECT_EQ(describe(net.head.weight.grad()), describe(net.head.weight.value()));
      }
      EXPECT_EQ(counts_since(dp, mesh.group("dp")).reduce_scatter.calls, 3 * kUnits);
      EXPECT_EQ(counts_since(replicas, mesh.group("replicate")).reduce_scatter.calls, 3 * kUnits);
      expect_same_gradients(net, reference);
    });
}

// What only the first micro-batch uses is summed over replicas with the last one's, in one row.
TEST(HybridState, F81_UnusedInTheLastMicroBatch) {
  struct Branches : nn::Layer<Branches> {
    nn::Linear &a, &b;
    bool both = false;
    Branches() : a(add<nn::Linear>("a", 3, 5)), b(add<nn::Linear>("b", 3, 5)) {}
    Tensor forward(const Tensor& x) { return both ? a(x) + b(x) : a(x); }
  };
  for (const bool first_uses_both : {true, false})
    run_ranks(4, [=](const Group& group) {
      Branches net, reference;
      nn::fully_shard(net, Grid{2, 2}.mesh(group), nn::strategy("hybrid_shard_state"));
      net.materialize(nn::Seed{2});
      reference.materialize(nn::Seed{2});
      for (const bool is_last : {false, true}) {
        net.both = reference.both = is_last != first_uses_both;
        nn::units(net).set_requires_all_reduce(is_last);
        const Tensor x = batch_of(4, 3, is_last, "x");
        backward(mul(sum(net(slice_of(x, *group))), 4));
        backward(sum(reference(x)));
      }
      expect_same_gradients(net, reference);
    });
}

/// A layer, and one beside it that not every call uses.
struct BesideNet : nn::Layer<BesideNet> {
  nn::Linear &a, &b;
  bool both = true;
  BesideNet() : a(add<nn::Linear>("a", 3, 5)), b(add<nn::Linear>("b", 3, 5)) {}
  Tensor forward(const Tensor& x) { return both ? a(x) + b(x) : a(x); }
};

/// A rank's input in a pass: whole numbers, so that all sums are exact in bf16 too.
Tensor whole_numbers(int rank, int pass) {
  return Tensor::from<float>({static_cast<float>(rank + 1), static_cast<float>(pass + 2), 5}, {1, 3});
}

enum class Zeros { always, in_the_last_pass, never };  // set_reduce_unused()

// The last of three passes is summed over replicas. Replicas use different parameters before it, so that their earlier
// sums are of different parameters, or in other buffers.
void expect_sum_over_replicas(const Group& group, const Grid& grid, const nn::UnitPolicy& policy, Zeros zeros) {
  constexpr int kLast = 2;
  BesideNet net, reference;
  nn::fully_shard(net, grid.mesh(group), policy);
  nn::unit_of(net).set_gradient_divide_factor(1);
  net.materialize(nn::Seed{2});
  reference.materialize(nn::Seed{2});
  const auto uses_both = [&](int rank, int pass) {
    const bool is_first = rank < grid.shards;  // of the replicas
    return zeros == Zeros::never ? pass == kLast || is_first == (pass == 1) : pass < kLast && !is_first;
  };
  for (int pass = 0; pass <= kLast; ++pass) {
    nn::units(net).set_requires_all_reduce(pass == kLast);
    nn::units(net).set_reduce_unused(zeros == Zeros::always || (zeros == Zeros::in_the_last_pass && pass == kLast));
    net.both = uses_both(group->rank(), pass);
    backward(sum(net(whole_numbers(group->rank(), pass))));
    for (int rank = 0; rank < group->size(); ++rank) {
      reference.both = uses_both(rank, pass);
      backward(sum(reference(whole_numbers(rank, pass))));
    }
  }
  const auto own = net.parameters(), whole = reference.parameters();
  for (std::size_t i = 0; i < own.size(); ++i) {
    ASSERT_TRUE(own[i]->grad().defined()) << own[i]->name();
    const Tensor part = part_of(whole[i]->grad().detach(), own[i]->grad());
    EXPECT_TRUE(same_bits(cast(own[i]->grad().local(), DType::f32), part)) << own[i]->name();
  }
  for (nn::Module* each : {static_cast<nn::Module*>(&net), static_cast<nn::Module*>(&reference)})
    for (nn::Parameter* p : each->parameters()) p->clear_grad();
  RankContext::current().drain_queues();
  EXPECT_EQ(held(MemoryCategory::gradients) + held(MemoryCategory::communication), 0);
}

TEST(HybridState, F66_F81_ReplicasMayUseDifferentParametersBeforeTheirSum) {
  // Types of the wire and of grad(): equal, the first narrower, the first wider.
  const nn::MixedPrecision policies[] = {
      {}, {.reduce_dtype = DType::bf16}, {.reduce_dtype = DType::f32, .grad_dtype = DType::bf16}};
  for (const char* strategy : {"hybrid_shard", "hybrid_shard_state"})
    for (const nn::MixedPrecision& types : policies)
      for (const Zeros zeros : {Zeros::always, Zeros::in_the_last_pass, Zeros::never})
        for (const Grid& grid : {Grid{2, 2}, Grid{2, 1}, Grid{3, 1}})
          run_ranks(grid.ranks(), [&](const Group& group) {
            SCOPED_TRACE(
                fmt::format("{}, zeros {}, {} x {}", strategy, static_cast<int>(zeros), grid.replicas, grid.shards));
            nn::UnitPolicy policy = nn::strategy(strategy);
            policy.mp_policy = types;
            expect_sum_over_replicas(group, grid, policy, zeros);
          });
}

TEST(HybridState, F66_F192_ReplicasWithSumsOfDifferentParametersAreToldWhich) {
  run_ranks(4, [](const Group& group) {
    BesideNet net;
    nn::fully_shard(net, Grid{2, 2}.mesh(group), nn::strategy("hybrid_shard_state"));
    net.materialize(nn::Seed{2});
    nn::units(net).set_requires_all_reduce(false);
    net.both = group->rank() < 2;
    backward(sum(net(whole_numbers(group->rank(), 0))));
    nn::units(net).set_requires_all_reduce(true);
    net.both = false;
    expect_error(
        [&] {
          backward(sum(net(whole_numbers(group->rank(), 1))));
          RankContext::current().drain_queues();
          for (const nn::Parameter* p : net.parameters())
            if (p->grad().defined()) (void)p->grad().local().raw();
        },
        {"for (model) [", "for (model) without b.weight, b.bias ["});
    for (nn::Parameter* p : net.parameters()) p->clear_grad();
    nn::reset_after_error(net);
    EXPECT_EQ(held(MemoryCategory::gradients), 0);
  });
}

TEST(HybridState, ShardsAreNeverStale) {
  for (const Grid& grid : {Grid{2, 2}, Grid{2, 1}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      PolicyTraining t(grid.mesh(group), nn::strategy("hybrid_shard_state"));
      const Tensor x = own_rows(group, 0), before = output_of(t.net, x);
      EXPECT_TRUE(same_bits(output_of(t.net, x), before));
      nn::reset_after_error(t.net);
      EXPECT_TRUE(same_bits(output_of(t.net, x), before));
      for (const nn::Parameter* p : {&t.net.head.weight, t.net.head.bias})
        fill_into(p->sharded_value().local().detach(), 0);
      EXPECT_TRUE(same_bits(output_of(t.net, x), full(before.shape(), 0, DType::f32)));
      // A rank that owns nothing of a unit writes nothing when values are loaded, and gathers with the others.
      nn::FullState values;
      if (group->rank() == 0)
        for (const auto& [name, p] : t.net.named_parameters()) values[name] = full(p->shape(), 1);
      nn::load_full_state_dict(t.net, *group, values);
      Net ones(kUneven);
      ones.materialize();
      for (const nn::Parameter* p : ones.parameters()) fill_into(p->value().detach(), 1);
      EXPECT_TRUE(near(output_of(t.net, x), ones(x).detach(), 1e-5));
    });
}

TEST(HybridState, F77_ReplaysBitwiseWhatEagerDoes) {
  for (const Grid& grid : {Grid{2, 2}, Grid{2, 1}})
    for (const bool is_bf16 : {false, true})
      run_ranks(grid.ranks(), [&](const Group& group) {
        const nn::UnitPolicy policy = policy_of("hybrid_shard_state", is_bf16);
        PolicyTraining eager(grid.mesh(group), policy), captured(grid.mesh(group), policy);
        expect_replays_bitwise(group, eager, captured, 6,
                               [&](std::uint64_t i) { return std::pair(own_rows(group, i), own_rows(group, i)); });
      });
}

// Evaluation that was recorded when the shards were there gathers what updates have changed since, and no more.
TEST(HybridState, F77_RecordedEvaluationSeesUpdates) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh = Grid{2, 2}.mesh(group);
    PolicyTraining t(mesh, nn::strategy("hybrid_shard_state"));
    auto evaluate = compile_once([&](const Tensor& x) { return output_of(t.net, x); }, {.group = group});
    const Tensor x = own_rows(group, 9);
    output_of(t.net, x);
    for (std::uint64_t i = 0; i < 6; ++i) {
      if (i > 2) t.step(own_rows(group, i), {});
      const CommCounts replicas = settled_counts(mesh.group("replicate"));
      const Tensor y = evaluate(x);
      EXPECT_EQ(counts_since(replicas, mesh.group("replicate")).all_gather.calls, i > 2 ? kUnits : 0) << "call " << i;
      EXPECT_TRUE(same_bits(y, output_of(t.net, x))) << "call " << i;
    }
    EXPECT_EQ(evaluate.mode(), CompiledStep::Mode::replay) << evaluate.why();
  });
}

TEST(HybridState, F177_HasNoHazards) {
  run_ranks(4, [](const Group& group) {
    HazardChecker checker;
    {
      PolicyTraining t(Grid{2, 2}.mesh(group), nn::strategy("hybrid_shard_state"));
      for (std::uint64_t step = 0; step < 3; ++step) t.step(own_rows(group, step), {});
    }
    EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
    EXPECT_GT(checker.num_checked(), 100);
  });
}

TEST(HybridState, F43_AStepThatIsLeftIsLeftByAll) {
  run_ranks(4, [](const Group& group) {
    PolicyTraining t(Grid{2, 2}.mesh(group), nn::strategy("hybrid_shard_state")),
        other(Grid{2, 2}.mesh(group), nn::strategy("hybrid_shard_state"));
    for (PolicyTraining* each : {&t, &other}) each->step(own_rows(group, 0), {});
    expect_left_by_all(
        t.net, *t.optimizer,
        [&] {
          const Tensor loss = sum(square(t.net(own_rows(group, 1))));
          if (group->rank() == 1) register_grad_hook(loss, [](const Tensor&) -> Tensor { fail("the trap"); });
          backward(mul(loss, 1));
        },
        "the trap");
    for (PolicyTraining* each : {&t, &other}) each->step(own_rows(group, 2), {});
    expect_same_wholes(t.net, other.net);
  });
}

// Beside tensor parallelism: a gradient that is Partial over its axis is reduced over both data axes first.
TEST(FullyShard, F156_HybridShardStateBesideTensorParallelismTrainsLikeOneRank) {
  for (const Grid3& grid : {Grid3{2, 1, 2}, Grid3{2, 2, 1}})
    run_ranks(grid.ranks(), [&](const Group& group) {
      const DeviceMesh root = grid.mesh(group);
      ResidualNet net(5, 8), reference(5, 8);
      shard_2d(net, root, grid, true, nn::strategy("hybrid_shard_state"));
      net.materialize(nn::Seed{11});
      reference.materialize(nn::Seed{11});
      expect_trains_alike(on_rows(net, root, *group), on_all_rows(reference), {.steps = 4, .max_norm = 0.1});
    });
}

TEST(HybridState, F208_FullStateGoesFromAndToIt) {
  run_ranks(4, [](const Group& group) {
    PolicyTraining state(Grid{2, 2}.mesh(group), nn::strategy("hybrid_shard_state")),
        sharded(DeviceMesh(group), nn::strategy("full_shard"));
    state.step(own_rows(group, 0), {});
    const nn::FullState full = nn::full_state_dict(state.net, *group, state.optimizer.get());
    nn::load_full_state_dict(sharded.net, *group, full, sharded.optimizer.get());
    expect_same_wholes(sharded.net, state.net);
    PolicyTraining back(Grid{2, 2}.mesh(group), nn::strategy("hybrid_shard_state"));
    nn::load_full_state_dict(back.net, *group, nn::full_state_dict(sharded.net, *group, sharded.optimizer.get()),
                             back.optimizer.get());
    for (PolicyTraining* each : {&state, &back}) each->step(own_rows(group, 1), {});
    expect_same_wholes(back.net, state.net);
  });
}

}  // namespace
}  // namespace sherd::testing
