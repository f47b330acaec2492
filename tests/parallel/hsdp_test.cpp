// HSDP: one axis of the mesh replicates what the other cuts. Against one rank on the whole batch.
#include <gtest/gtest.h>

#include <array>

#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/exec/hazards.h"
#include "tests/parallel/replay.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/compile_once.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

TEST(FullyShard, F60_HsdpTrainsLikeOneRank) {
  for (const Grid grid : kReplicaGrids)
    for (bool reshard : {true, false})
      run_ranks(grid.ranks(), [=](const Group& group) {
        expect_parity(group, grid.mesh(group), {.reshard_after_forward = nn::ReshardAfterForward(reshard)});
      });
}

TEST(FullyShard, F60_HsdpTrainsLikeOneRankWithProcesses) {
  run_processes(4, [](const Group& group) { expect_parity(group, Grid{2, 2}.mesh(group), {}); });
}

void expect_reductions(const Group& group, Grid grid) {
  const DeviceMesh mesh = grid.mesh(group);
  Net net(kUneven);
  shard(net, mesh);
  net.materialize();
  const CommCounts shards = settled_counts(mesh.group("dp")), replicas = settled_counts(mesh.group("replicate")),
                   all = settled_counts(*group);
  backward(sum(net(batch_of(2, 5, 0, "x"))));
  CommCounts in_shards = settled_counts(mesh.group("dp")), in_replicas = settled_counts(mesh.group("replicate"));
  in_shards -= shards;
  in_replicas -= replicas;
  EXPECT_EQ(in_shards.reduce_scatter.calls, grid.shards > 1 ? kUnits : 0);
  EXPECT_EQ(in_shards.all_gather.calls, grid.shards > 1 ? 2 * kUnits - 1 : 0);  // the root's stay
  EXPECT_EQ(in_shards.all_reduce.calls, 0);
  EXPECT_EQ(in_replicas.all_reduce.calls, grid.replicas > 1 ? kUnits : 0);
  EXPECT_EQ(in_replicas.all_gather.calls + in_replicas.reduce_scatter.calls, 0);
  std::int64_t own = 0;  // bytes of this rank's shards
  for (const nn::Parameter* p : net.parameters()) own += p->value().local().bytes();
  EXPECT_EQ(in_replicas.all_reduce.bytes, grid.replicas > 1 ? own : 0);
  CommCounts whole_job = settled_counts(*group);
  whole_job -= all;
  if (grid.shards > 1 && grid.replicas > 1) {
    EXPECT_EQ(whole_job.all_gather.calls + whole_job.reduce_scatter.calls + whole_job.all_reduce.calls, 0);
  }
}

TEST(FullyShard, F47_ReductionsOverShardsThenOverReplicas) {
  for (const Grid grid : kReplicaGrids)
    run_ranks(grid.ranks(), [=](const Group& group) { expect_reductions(group, grid); });
}

TEST(FullyShard, F47_F206_ReductionsOverShardsThenOverReplicasWithProcesses) {
  for (const Grid grid : {Grid{2, 2}, Grid{3, 1}})
    run_processes(grid.ranks(), [=](const Group& group) { expect_reductions(group, grid); });
}

// The next unit's reduction need not wait for a sum over a slower link: it is on another queue, and another lane.
TEST(FullyShard, F205_SumsOverReplicasHaveAQueueOfTheirOwn) {
  for (const Grid grid : {Grid{2, 2}, Grid{3, 1}})
    run_ranks(grid.ranks(), [=](const Group& group) {
      const DeviceMesh mesh = grid.mesh(group);
      Net net(kUneven);
      shard(net, mesh);
      net.materialize();
      const auto sums_on = [&](std::string_view queue) {
        RankContext::current().drain_queues();
        return lane_of(mesh.group("replicate"), queue).counts().all_reduce.calls;
      };
      const std::int64_t before = sums_on(kReplicateQueue), others = sums_on(kReduceQueue);
      for (int micro = 0; micro < 2; ++micro) backward(sum(net(batch_of(2, 5, 0, "x"))));
      EXPECT_EQ(sums_on(kReplicateQueue) - before, 2 * kUnits);
      EXPECT_EQ(sums_on(kReduceQueue) - others, 0);
    });
}

// verl #7493: with one rank per shard group the gradients of replicas were never synchronised, silently.
TEST(FullyShard, F47_OneShardManyReplicasAverageTheirGradients) {
  run_ranks(3, [](const Group& group) {
    Net net(kUneven), reference(kUneven);
    shard(net, Grid{3, 1}.mesh(group));
    net.materialize(nn::Seed{4});
    reference.materialize(nn::Seed{4});
    const Tensor x = batch_of(6, 5, 0, "x");
    backward(mul(sum(net(slice_of(x, *group))), 3));
    backward(sum(reference(x)));
    expect_same_gradients(net, reference);
  });
}

TEST(FullyShard, F79_HsdpMicroBatchesAddUp) {
  for (const Grid grid : kReplicaGrids)
    run_ranks(grid.ranks(), [=](const Group& group) {
      Net net(kUneven), reference(kUneven);
      shard(net, grid.mesh(group));
      net.materialize(nn::Seed{2});
      reference.materialize(nn::Seed{2});
      for (std::uint64_t micro = 0; micro < 3; ++micro) {
        const Tensor x = batch_of(12, 5, micro, "x");
        backward(mul(sum(net(slice_of(x, *group))), static_cast<double>(group->size())));
        backward(sum(reference(x)));
      }
      expect_same_gradients(net, reference);
    });
}

TEST(FullyShard, F81_AllReduceOnlyForTheLastMicroBatch) {
  for (const Grid grid : kReplicaGrids)
    run_ranks(grid.ranks(), [=](const Group& group) {
      const DeviceMesh mesh = grid.mesh(group);
      Net net(kUneven), reference(kUneven);
      shard(net, mesh);
      net.materialize(nn::Seed{2});
      reference.materialize(nn::Seed{2});
      constexpr std::int64_t kMicroBatches = 3;
      for (int step = 0; step < 2; ++step) {  // the second adds to the first's gradients
        const CommCounts before = settled_counts(mesh.group("dp")), replicas = settled_counts(mesh.group("replicate"));
        for (int micro = 0; micro < kMicroBatches; ++micro) {
          const bool is_last = micro == kMicroBatches - 1;
          nn::units(net).set_requires_all_reduce(is_last);
          const Tensor x = batch_of(12, 5, static_cast<std::uint64_t>(step * 3 + micro), "x");
          backward(mul(sum(net(slice_of(x, *group))), static_cast<double>(group->size())));
          backward(sum(reference(x)));
          if (!is_last && step == 0 && grid.replicas > 1) { EXPECT_FALSE(net.head.weight.grad().defined()); }
        }
        EXPECT_EQ(settled_counts(mesh.group("dp")).reduce_scatter.calls - before.reduce_scatter.calls,
                  grid.shards > 1 ? kUnits * kMicroBatches : 0);
        EXPECT_EQ(settled_counts(mesh.group("replicate")).all_reduce.calls - replicas.all_reduce.calls,
                  grid.replicas > 1 ? kUnits : 0);
      }
      expect_same_gradients(net, reference);
    });
}

// A module that the last micro-batch does not use has its earlier gradients added up all the same.
TEST(FullyShard, F81_UnusedInTheLastMicroBatch) {
  struct Branches : nn::Layer<Branches> {
    nn::Linear &a, &b;
    bool both = true;
    Branches() : a(add<nn::Linear>("a", 3, 5)), b(add<nn::Linear>("b", 3, 5)) {}
    Tensor forward(const Tensor& x) { return both ? a(x) + b(x) : a(x); }
  };
  run_ranks(4, [](const Group& group) {
    Branches net, reference;
    nn::fully_shard(net, Grid{2, 2}.mesh(group));
    net.materialize(nn::Seed{2});
    reference.materialize(nn::Seed{2});
    for (const bool is_last : {false, true}) {
      net.both = reference.both = !is_last;
      nn::units(net).set_requires_all_reduce(is_last);
      const Tensor x = batch_of(4, 3, is_last, "x");
      backward(mul(sum(net(slice_of(x, *group))), 4));
      backward(sum(reference(x)));
    }
    expect_same_gradients(net, reference);
  });
}

// What waits for the sum over replicas belongs to the step: it is not left out of the update, nor taken into the next.
TEST(FullyShard, F81_AStepBeforeTheSumOverReplicasIsRefusedAndClearingDropsWhatWaits) {
  for (const Grid grid : {Grid{2, 2}, Grid{2, 1}})
    run_ranks(grid.ranks(), [=](const Group& group) {
      const DeviceMesh mesh = grid.mesh(group);
      Net net(kUneven), other(kUneven);
      for (Net* each : {&net, &other}) {
        shard(*each, mesh);
        each->materialize(nn::Seed{2});
      }
      nn::AdamW optimizer(net.parameters(), {.lr = 0.01});
      nn::units(net).set_requires_all_reduce(false);
      backward(sum(net(slice_of(batch_of(12, 5, 0, "x"), *group))));
      expect_error([&] { optimizer.step(); },
                   {"\"blocks.0.linear.weight\"", "not reduced yet", "set_requires_all_reduce"});
      EXPECT_EQ(optimizer.torn(), "");
      optimizer.clear_gradients();
      EXPECT_EQ(held(MemoryCategory::gradients), 0);
      nn::units(net).set_requires_all_reduce(true);
      for (Net* each : {&net, &other}) backward(sum((*each)(slice_of(batch_of(12, 5, 1, "x"), *group))));
      const auto a = net.parameters(), e = other.parameters();
      for (std::size_t i = 0; i < a.size(); ++i)
        EXPECT_TRUE(same_bits(a[i]->grad().local(), e[i]->grad().local())) << a[i]->name();
    });
}

// Memory of a reduction does not grow with the number of layers, though gradients travel in another type.
TEST(FullyShard, F175_SumsThatLieAsideAreFreed) {
  const auto peak = [](const Group& group, int layers) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(layers) + 2, 32);
    Net net(sizes);
    const nn::MixedPrecision policy{.param_dtype = DType::bf16, .reduce_dtype = DType::bf16};
    shard(net, Grid{2, 2}.mesh(group), {.mp_policy = policy}, {.mp_policy = policy});
    net.materialize();
    for (int micro = 0; micro < 2; ++micro) backward(sum(net(batch_of(2, 32, 0, "x"))));
    return RankContext::current().allocator().accounting().peak(MemoryCategory::communication);
  };
  std::vector<std::int64_t> few(4), many(4);
  run_ranks(4, [&](const Group& group) { few[static_cast<std::size_t>(group->rank())] = peak(group, 3); });
  run_ranks(4, [&](const Group& group) { many[static_cast<std::size_t>(group->rank())] = peak(group, 9); });
  EXPECT_EQ(few, many);
}

// A wait for a sum over replicas lets go of the reductions before it too, though they are of another queue.
TEST(FullyShard, F175_NothingOfAReductionStaysAfterTheUpdate) {
  for (const std::optional<DType> type : {std::optional<DType>(), std::optional<DType>(DType::bf16)})
    run_ranks(4, [=](const Group& group) {
      Net net(kUneven);
      const nn::MixedPrecision policy{.param_dtype = type};
      shard(net, Grid{2, 2}.mesh(group), {.mp_policy = policy}, {.mp_policy = policy});
      net.materialize();
      nn::AdamW optimizer(net.parameters(), {.lr = 1e-2});
      for (int step = 0; step < 2; ++step) {
        backward(sum(net(batch_of(2, 5, 0, "x"))));
        optimizer.step_and_clear();
        EXPECT_EQ(held(MemoryCategory::communication), 0);
        EXPECT_EQ(held(MemoryCategory::gradients), 0);
      }
    });
}

// Gradients in bf16, whose sum over both axes is rounded to bf16 or, by default, is one of f32.
TEST(FullyShard, F88_HsdpWithBf16GradientsIsCloseToF32) {
  for (const std::optional<DType> reduce : {std::optional<DType>(DType::bf16), std::optional<DType>()})
    run_ranks(4, [=](const Group& group) {
      Net net(kUneven), reference(kUneven);
      const nn::MixedPrecision policy{.param_dtype = DType::bf16, .reduce_dtype = reduce};
      shard(net, Grid{2, 2}.mesh(group), {.mp_policy = policy}, {.mp_policy = policy});
      net.materialize(nn::Seed{2});
      reference.materialize(nn::Seed{2});
      for (std::uint64_t micro = 0; micro < 2; ++micro) {
        const Tensor x = batch_of(4, 5, micro, "x");
        backward(sum(square(net(x))));
        backward(sum(square(reference(x))));
      }
      for (const nn::Parameter* p : net.parameters()) EXPECT_EQ(p->grad().dtype(), DType::f32);
      expect_same_gradients(net, reference, 0.08);
    });
}

// The sum of a shard axis is 1 + 2^-8, which bf16 cannot hold; that of all ranks is 1 + 2^-7, which it can.
TEST(FullyShard, F89_HsdpOfBf16GradientsInF32RoundsOnce) {
  struct Scale : nn::Layer<Scale> {
    nn::Parameter& weight;
    Scale() : weight(add_parameter("weight", {4}, nn::Init::ones(), DType::bf16)) {}
    Tensor forward(const Tensor& x) { return x * weight; }
  };
  run_ranks(4, [](const Group& group) {
    constexpr double kSmall = 1.0 / 256;
    constexpr std::array<double, 4> kGradients{1, kSmall, kSmall, 0};
    Scale net;
    nn::fully_shard(net, Grid{2, 2}.mesh(group), {.mp_policy = {.reduce_dtype = DType::f32}});
    net.materialize();
    backward(sum(net(full({4}, kGradients[static_cast<std::size_t>(group->rank())], DType::bf16))));
    EXPECT_TRUE(same_bits(net.weight.grad().local(), full({2}, (1 + 2 * kSmall) / 4, DType::bf16)));
  });
}

// Only the second micro-batch's gradients are summed over replicas.
struct HsdpTraining {
  Net net{kUneven};
  std::unique_ptr<nn::AdamW> optimizer;
  explicit HsdpTraining(const DeviceMesh& mesh) {
    shard(net, mesh);
    net.materialize(nn::Seed{5});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.05});
  }
  Tensor step(const Tensor& x, const Tensor& y) {
    Tensor loss;
    for (const bool is_last : {false, true}) {
      nn::units(net).set_requires_all_reduce(is_last);
      loss = mean_square(net(x), y);
      backward(loss);
    }
    const Tensor norm = nn::clip_grad_norm(*optimizer, 0.5);
    optimizer->step_and_clear();
    return loss + norm;
  }
};

TEST(FullyShard, F77_HsdpReplaysBitwiseWhatEagerDoes) {
  for (const Grid grid : {Grid{2, 2}, Grid{2, 1}})
    run_ranks(grid.ranks(), [=](const Group& group) {
      HsdpTraining eager(grid.mesh(group)), captured(grid.mesh(group));
      expect_replays_bitwise(group, eager, captured, 8, [&](std::uint64_t i) {
        return std::pair(slice_of(batch_of(12, 5, i, "x"), *group), slice_of(batch_of(12, 2, i, "y"), *group));
      });
    });
}

// What a micro-batch leaves unsummed is there when the next captured call begins, and is not added twice.
TEST(FullyShard, F77_MicroBatchesOfHsdpMayBeCapturedApart) {
  for (const Grid grid : {Grid{2, 2}, Grid{2, 1}, Grid{1, 2}})
    run_ranks(grid.ranks(), [=](const Group& group) {
      HsdpTraining eager(grid.mesh(group)), captured(grid.mesh(group));
      const auto micro_of = [](HsdpTraining& t) {
        return [&t](const Tensor& x, const Tensor& y) {
          const Tensor loss = mean_square(t.net(x), y);
          backward(loss);
          return loss.detach();
        };
      };
      const auto last_of = [&](HsdpTraining& t) {
        return [&t, micro = micro_of(t)](const Tensor& x, const Tensor& y) {
          const Tensor loss = micro(x, y);
          t.optimizer->step_and_clear();
          return loss;
        };
      };
      const auto eager_micro = micro_of(eager);
      const auto eager_last = last_of(eager);
      auto micro = compile_once(micro_of(captured), {.group = group});
      auto last = compile_once(last_of(captured), {.group = group});
      for (std::uint64_t step = 0; step < 8; ++step) {
        // The third step has no micro-batch, the sixth three: a graph is for one of the cases.
        const int micros = step == 2 ? 0 : step == 5 ? 3 : 1;
        for (int i = 0; i <= micros; ++i) {
          const bool is_last = i == micros;
          const Tensor x = slice_of(batch_of(12, 5, step * 4 + static_cast<std::uint64_t>(i), "x"), *group),
                       y = slice_of(batch_of(12, 2, step, "y"), *group);
          nn::units(eager.net).set_requires_all_reduce(is_last);
          nn::units(captured.net).set_requires_all_reduce(is_last);
          const Tensor expected = is_last ? eager_last(x, y) : eager_micro(x, y);
          EXPECT_TRUE(same_bits(is_last ? last(x, y) : micro(x, y), expected)) << "step " << step << " call " << i;
        }
        const auto a = captured.net.parameters(), e = eager.net.parameters();
        for (std::size_t i = 0; i < a.size(); ++i)
          EXPECT_TRUE(same_bits(a[i]->value().local(), e[i]->value().local())) << a[i]->name() << " step " << step;
      }
      EXPECT_EQ(micro.mode(), CompiledStep::Mode::replay) << micro.why();
      EXPECT_EQ(last.mode(), CompiledStep::Mode::replay) << last.why();
    });
}

// A setting that the recorded step has read is one of its guards: it is recorded again, and going back finds the first
// recording.
TEST(FullyShardReplay, HowGradientsAreReducedIsAGuard) {
  for (const Grid grid : {Grid{1, 1}, Grid{1, 2}, Grid{2, 1}, Grid{2, 2}})
    run_ranks(grid.ranks(), [=](const Group& group) {
      Net eager(kUneven), captured(kUneven);
      for (Net* net : {&eager, &captured}) {
        shard(*net, grid.mesh(group));
        net->materialize(nn::Seed{2});
      }
      const auto of = [](Net& net) {
        return [&net](const Tensor& x) {
          const Tensor loss = sum(net(x));
          backward(loss);
          return loss.detach();
        };
      };
      auto step = compile_once(of(captured));
      using Mode = CompiledStep::Mode;
      const std::pair<double, Mode> calls[] = {{4, Mode::eager},  {4, Mode::record}, {4, Mode::replay},
                                               {1, Mode::record}, {1, Mode::replay}, {4, Mode::replay}};
      std::uint64_t i = 0;
      for (const auto& [factor, mode] : calls) {
        for (Net* net : {&eager, &captured}) {
          nn::unit_of(*net).set_gradient_divide_factor(factor);
          for (nn::Module* block : net->blocks.items()) nn::unit_of(*block).set_gradient_divide_factor(factor);
          for (nn::Parameter* p : net->parameters()) p->clear_grad();
        }
        const Tensor x = slice_of(batch_of(12, 5, i++, "x"), *group);
        EXPECT_TRUE(same_bits(step(x), of(eager)(x)));
        EXPECT_EQ(step.mode(), mode) << "call " << i << ": " << step.why();
        const auto a = captured.parameters(), e = eager.parameters();
        for (std::size_t p = 0; p < a.size(); ++p)
          EXPECT_TRUE(same_bits(a[p]->grad().local(), e[p]->grad().local())) << a[p]->name() << " call " << i;
        if (i == 4) {
          EXPECT_NE(step.why().find("divide_factor is 1, in the graph it is 4"), std::string::npos) << step.why();
        }
      }
    });
}

TEST(FullyShardReplay, WhetherReplicasAreAddedUpIsAGuard) {
  run_ranks(2, [](const Group& group) {
    Net net(kUneven);
    shard(net, Grid{2, 1}.mesh(group));
    net.materialize(nn::Seed{2});
    auto step = compile_once([&](const Tensor& x) {
      const Tensor loss = sum(net(x));
      backward(loss);
      return loss.detach();
    });
    const Tensor x = slice_of(batch_of(12, 5, 0, "x"), *group);
    for (int call = 0; call < 4; ++call) {
      for (nn::Parameter* p : net.parameters()) p->clear_grad();
      nn::units(net).set_requires_all_reduce(call < 3);
      step(x);
      for (const nn::Parameter* p : net.parameters()) EXPECT_EQ(p->grad().defined(), call < 3) << p->name();
    }
    EXPECT_EQ(step.mode(), CompiledStep::Mode::record);
    EXPECT_NE(step.why().find("requires_all_reduce is false, in the graph it is true"), std::string::npos)
        << step.why();
  });
}

TEST(FullyShard, F182_HsdpHasNoHazards) {
  for (const Grid grid : {Grid{2, 2}, Grid{2, 1}})
    run_ranks(grid.ranks(), [=](const Group& group) {
      HazardChecker checker;
      {
        Net net(kUneven);
        shard(net, grid.mesh(group));
        net.materialize();
        nn::AdamW optimizer(net.parameters(), {.lr = 1e-2});
        for (std::uint64_t step = 0; step < 3; ++step) {
          for (const bool is_last : {false, true}) {
            nn::units(net).set_requires_all_reduce(is_last);
            backward(sum(net(batch_of(2, 5, step, "x"))));
          }
          optimizer.step_and_clear();
        }
      }
      EXPECT_TRUE(checker.found().empty()) << checker.found()[0];
      EXPECT_GT(checker.num_checked(), 100);
    });
}

// pytorch #147810: gradients were NaN where memory is filled as it is released, for it was in use on a stream. Here all
// that is released is filled, and links are slow enough for the rank's thread to run ahead.
TEST(FullyShard, F182_HsdpReadsNothingThatWasReleased) {
  const auto weights = [](const Group& group, const nn::MixedPrecision& policy, bool is_poisoned) {
    group->host().shape_link({.bytes_per_second = 1e9, .seconds = 5e-4});
    RankContext::current().allocator().set_poison(is_poisoned);
    Net net(kUneven);
    shard(net, Grid{2, 2}.mesh(group), {.mp_policy = policy}, {.mp_policy = policy});
    net.materialize(nn::Seed{5});
    nn::AdamW optimizer(net.parameters(), {.lr = 0.05});
    for (std::uint64_t step = 0; step < 3; ++step) {
      for (const bool is_last : {false, true}) {
        nn::units(net).set_requires_all_reduce(is_last);
        const Tensor x = batch_of(12, 5, 2 * step + is_last, "x"), y = batch_of(12, 2, step, "y");
        backward(mean_square(net(slice_of(x, *group)), slice_of(y, *group)));
      }
      nn::clip_grad_norm(optimizer, 0.5);
      optimizer.step_and_clear();
    }
    std::vector<float> bits;
    for (const nn::Parameter* p : net.parameters())
      for (const float value : whole(p->value()).to_vector<float>()) bits.push_back(value);
    return bits;
  };
  for (const std::optional<DType> type : {std::optional<DType>(), std::optional<DType>(DType::bf16)}) {
    std::vector<float> expected, got;
    for (const bool is_poisoned : {false, true})
      run_ranks(4, [&](const Group& group) {
        std::vector<float> bits = weights(group, {.param_dtype = type}, is_poisoned);
        if (group->rank() == 3) (is_poisoned ? got : expected) = std::move(bits);
      });
    EXPECT_EQ(got, expected);
  }
}

TEST(FullyShard, F8_HsdpReshardsWithinItsShards) {
  run_ranks(4, [](const Group& group) {
    Net net(kUneven);
    const DeviceMesh mesh = Grid{2, 2}.mesh(group);
    expect_error([&] { nn::fully_shard(net, mesh, {.reshard_after_forward = 4}); }, {"must divide the 2 ranks"});
    nn::fully_shard(net, mesh, {.reshard_after_forward = 2});
    EXPECT_EQ(describe(net.head.weight.value()), "f32[2,3]{0: dp}");
  });
}

}  // namespace
}  // namespace sherd::testing
