// Shards of parameters and gradients outside of memory: the bits of a training that holds them, under every strategy,
// eager and captured. Oracles: the same training in memory, and its bytes by the formula.
#include <gtest/gtest.h>

#include <set>

#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/parallel/shard/wrap/summon.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/hazards.h"
#include "runtime/op/copy/offload.h"
#include "tests/parallel/offload_training.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/op_trap.h"

namespace sherd::testing {
namespace {

using namespace ckpt;

constexpr Offloads kOfShards[] = {Offloads::parameters, Offloads::all};

TEST(OffloadShards, BitsOfShardsInMemoryOnOneRank) {
  const Group group = make_single_group();
  for (const Offloads what : kOfShards)
    for (const bool captured : {false, true})
      for (const bool clips : {false, true})
        for (const bool bf16 : {false, true})
          for (const bool sgd : {false, true}) {
            SCOPED_TRACE(fmt::format("all {} captured {} clips {} bf16 {} sgd {}", what == Offloads::all, captured,
                                     clips, bf16, sgd));
            OffloadCase c{.captured = captured, .clips = clips, .sgd = sgd, .what = what, .accumulate = sgd ? 2 : 1};
            if (bf16) c.policy.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
            expect_bits_of_none(group, DeviceMesh(group), c);
          }
}

TEST(OffloadShards, F95_BitsOfShardsInMemoryUnderEveryStrategy) {
  for (const StrategyCase& c : strategy_cases()) {
    if (c.shards > 2 || c.divides_shards()) continue;
    run_ranks(c.ranks(), [&](const Group& group) {
      for (const Offloads what : kOfShards)
        for (const bool captured : {false, true})
          for (const int accumulate : {1, 2}) {
            SCOPED_TRACE(fmt::format("{} all {} captured {} accumulate {}", c.text(), what == Offloads::all, captured,
                                     accumulate));
            expect_bits_of_none(group, c.mesh(group),
                                {.policy = c.policy(),
                                 .captured = captured,
                                 .clips = captured,
                                 .what = what,
                                 .accumulate = accumulate});
          }
    });
  }
}

// Each micro-batch is reduced and added to what is at home.
TEST(OffloadShards, BitsOfShardsThatAddUp) {
  run_ranks(2, [](const Group& group) {
    for (const bool captured : {false, true})
      for (const bool clips : {false, true}) {
        OffloadCase c{.captured = captured, .clips = clips, .what = Offloads::all, .accumulate = 3};
        c.policy.gradients = nn::ShardedOver::shards;
        expect_bits_of_none(group, DeviceMesh(group), c);
      }
  });
}

TEST(OffloadShards, BitsOfAStepWithinBackward) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [](const Group& group) {
      for (const Offloads what : kOfShards)
        for (const bool captured : {false, true})
          for (const bool clears : {false, true})
            expect_bits_of_none(group, DeviceMesh(group),
                                {.captured = captured, .what = what, .in_backward = true, .clears = clears});
    });
}

TEST(OffloadShards, BitsOfUnitsThatReshardToFewOrAreSmallOrRecomputed) {
  run_ranks(2, [](const Group& group) {
    for (const bool captured : {false, true}) {
      OffloadCase c{.captured = captured, .clips = true, .what = Offloads::all};
      c.policy.replicate_below_bytes = 512;  // norms and biases stay replicated, and in memory
      expect_bits_of_none(group, DeviceMesh(group), c);
      c.policy.replicate_below_bytes = 0;
      c.policy.prefetch = false;
      expect_bits_of_none(group, DeviceMesh(group), c);
    }
  });
  run_ranks(4, [](const Group& group) {
    for (const bool captured : {false, true}) {
      OffloadCase c{.captured = captured, .what = Offloads::all};
      c.policy.reshard_after_forward = nn::ReshardAfterForward(2);
      expect_bits_of_none(group, DeviceMesh(group), c);
    }
  });
}

// Between steps nothing of parameters, gradients and state is in memory; within them what is fetched is there.
TEST(OffloadShards, F95_MemoryHoldsNothingBetweenStepsAndAUnitOrTwoWithin) {
  run_ranks(2, [](const Group& group) {
    for (const bool captured : {false, true}) {
      const TempDir dir;
      const OffloadCase c{.captured = captured, .what = Offloads::all};
      OffloadTraining training(group, DeviceMesh(group), c, dir.path());
      Accounting& memory = RankContext::current().allocator().accounting();
      std::int64_t shards = 0, most = 0;
      for (const nn::UnitHandle& unit : nn::units(*training.model)) {
        shards += unit.layout().shard_bytes;
        most = std::max(most, unit.layout().shard_bytes);
      }
      memory.reset_peaks();
      for (std::int64_t i = 0; i < c.steps; ++i) {
        training.step(i);
        if (i > 0) continue;
        EXPECT_EQ(memory.current(MemoryCategory::parameters), 0);
        EXPECT_EQ(memory.current(MemoryCategory::gradients), 0);
      }
      EXPECT_LE(memory.peak(MemoryCategory::parameters), 3 * most) << "of " << shards;
      EXPECT_LE(memory.peak(MemoryCategory::optimizer), c.bytes_in_flight);
    }
  });
}

// Offloads the optimizer's state alone, then all.
TEST(OffloadShards, CheckpointsGoEitherWayAndTheRunGoesOnWithTheSameBits) {
  for (const OffloadCase& c : {OffloadCase{}, OffloadCase{.clips = true, .what = Offloads::all}})
    run_ranks(2, [&](const Group& group) {
      const TempDir dir;
      const std::string saves = gather_text(*group, dir.path())[0];
      OffloadTraining held(group, DeviceMesh(group), c, ""), offloaded(group, DeviceMesh(group), c, dir.path());
      for (std::int64_t i = 0; i < 3; ++i) held.step(i), offloaded.step(i);
      Manifest manifest;
      manifest.step = 3;
      for (OffloadTraining* training : {&held, &offloaded})
        nn::save_checkpoint(saves + (training == &held ? "/held" : "/offloaded"), manifest,
                            nn::training_state(*training->model, training->optimizer.get()), *group);
      OffloadTraining in_memory(group, DeviceMesh(group), c, ""), in_file(group, DeviceMesh(group), c, dir.path());
      const auto load = [&](OffloadTraining& training, const std::string& from) {
        const auto reader = open_newest_good(from, *group, Verify::bytes, [](const std::string&) {});
        nn::load_checkpoint(*reader, nn::training_state(*training.model, training.optimizer.get()));
      };
      load(in_memory, saves + "/offloaded");
      load(in_file, saves + "/held");
      for (std::int64_t i = 3; i < 6; ++i) {
        const Tensor expected = held.step(i);
        for (OffloadTraining* training : {&offloaded, &in_memory, &in_file})
          EXPECT_TRUE(same_bits(training->step(i), expected)) << "step " << i;
      }
      for (OffloadTraining* training : {&offloaded, &in_memory, &in_file}) expect_same_values(*training, held);
    });
}

// What was fetched for the update that was left is not held, nor evicted over what was loaded.
TEST(OffloadShards, AStepThatIsLeftInItsUpdateGoesOnFromALoadWithTheSameBits) {
  const Group group = make_single_group();
  for (const bool in_backward : {false, true}) {
    const TempDir dir;
    const OffloadCase c{.what = Offloads::all, .in_backward = in_backward};
    OffloadTraining training(group, DeviceMesh(group), c, dir.path()), undisturbed(group, DeviceMesh(group), c, "");
    training.step(0), undisturbed.step(0);
    const auto state = [&] { return nn::training_state(*training.model, training.optimizer.get()); };
    Manifest manifest;
    manifest.step = 1;
    nn::save_checkpoint(dir / "saves", manifest, state(), *group);
    const auto give_up = [&] {
      nn::reset_after_error(*training.model);
      training.optimizer->clear_gradients();
    };
    const auto load = [&] {
      give_up();
      const auto reader = open_newest_good(dir / "saves", *group, Verify::bytes, [](const std::string&) {});
      nn::load_checkpoint(*reader, state());
    };
    std::int64_t ops = 0;
    {
      const OpTrap counting(-1);
      training.step(1);
      ops = counting.count();
    }
    load();
    const CategoryBytes idle = RankContext::current().allocator().accounting().current();
    for (const std::int64_t back : {3, 8, 15, 24, 40}) {
      {
        const OpTrap trap(ops - back);
        EXPECT_THROW(training.step(1), Error) << back;
      }
      give_up();
      for (const MemoryCategory what : {MemoryCategory::gradients, MemoryCategory::optimizer})
        EXPECT_EQ(RankContext::current().allocator().accounting().current(what), idle[static_cast<std::size_t>(what)])
            << name(what) << ", left " << back << " ops before";
      load();
    }
    for (int i = 1; i < 4; ++i) EXPECT_TRUE(same_bits(training.step(i), undisturbed.step(i))) << i;
    expect_same_values(training, undisturbed);
  }
}

// Values that are written after they were fetched ahead are fetched again.
TEST(OffloadShards, WhatIsWrittenBeforeBackwardIsUpdated) {
  const Group group = make_single_group();
  std::vector<Tensor> values;
  for (const Offloads what : {Offloads::optimizer, Offloads::all}) {
    const TempDir dir;
    OffloadTraining training(group, DeviceMesh(group), {.what = what, .in_backward = true}, dir.path());
    training.step(0), training.step(1);
    training.optimizer->step_in_backward();
    for (nn::Parameter* p : training.model->parameters()) {
      const GradMode off(false);
      copy_into(p->sharded_value().local().detach(), mul(p->sharded_value().local().detach(), 0.5));
      p->reshard();
    }
    const std::vector<Tensor> in = training.batch(2);
    backward((*training.model)(in[0], in[1]));
    training.optimizer->step_and_clear();
    const std::vector<Tensor> now = training.values();
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(same_bits(now[i], values[i])) << i;
    values = now;
  }
}

// Gradients that do not get home end the step before its update; what was updated and does not is torn. A load makes
// all whole.
TEST(OffloadShards, WhatDoesNotGetHomeIsToldUntilALoad) {
  const Group group = make_single_group();
  for (const Offloads what : kOfShards) {
    const TempDir dir;
    const OffloadCase c{.what = what};
    OffloadTraining training(group, DeviceMesh(group), c, dir.path()), undisturbed(group, DeviceMesh(group), c, "");
    training.step(0), undisturbed.step(0);
    const auto state = [&] { return nn::training_state(*training.model, training.optimizer.get()); };
    Manifest manifest;
    manifest.step = 1;
    nn::save_checkpoint(dir / "saves", manifest, state(), *group);
    const auto train = [&] {
      for (int i = 1; i < 4; ++i) training.step(i);
    };
    {
      const FileSizeLimit limit(512);
      EXPECT_THROW(train(), Error);
      RankContext::current().drain_queues();
    }
    nn::reset_after_error(*training.model);
    training.optimizer->clear_gradients();
    EXPECT_EQ(training.optimizer->torn().empty(), what == Offloads::all);
    const auto reader = open_newest_good(dir / "saves", *group, Verify::bytes, [](const std::string&) {});
    nn::load_checkpoint(*reader, state());
    EXPECT_EQ(training.optimizer->torn(), "");
    for (int i = 1; i < 4; ++i) EXPECT_TRUE(same_bits(training.step(i), undisturbed.step(i))) << i;
    expect_same_values(training, undisturbed);
  }
}

// As in FSDP2 a shard, and with it a state dict, is a tensor of the host, valid in any state; a scope of full
// parameters reads and writes it.
TEST(OffloadShards, ShardsAreTensorsOfTheHostThatMayBeReadAndWritten) {
  run_ranks(2, [](const Group& group) {
    const TempDir dir;
    OffloadTraining training(group, DeviceMesh(group), {.what = Offloads::all}, dir.path());
    nn::Parameter& p = *training.model->parameters()[0];
    ASSERT_NE(home_of(p.sharded_value()), nullptr);
    EXPECT_EQ(p.sharded_value().local().device(), Device::cpu());
    training.step(0);
    {
      const nn::FullParameters full(*training.model, {.write_back = true});
      const GradMode off(false);
      p.assign(mul(p.value().detach(), 2.0));
    }
    const float before = p.sharded_value().local().to_vector<float>()[0];
    {
      const nn::FullParameters full(*training.model);
      EXPECT_EQ(p.value().to_vector<float>().size(), static_cast<std::size_t>(p.numel()));
      if (group->rank() == 0) { EXPECT_EQ(p.value().to_vector<float>()[0], before); }
    }
    training.step(1);
    EXPECT_NE(home_of(p.sharded_value()), nullptr);
  });
}

void expect_no_hazards(const Group& group, const DeviceMesh& mesh, OffloadCase c) {
  for (const bool in_backward : {false, true}) {
    const TempDir dir;
    c.clips = !in_backward;
    c.in_backward = in_backward;
    OffloadTraining training(group, mesh, c, dir.path());
    const HazardChecker checker;
    for (std::int64_t i = 0; i < 3; ++i) training.step(i);
  }
}

TEST(OffloadShards, F182_NoAccessIsUnordered) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](const Group& group) { expect_no_hazards(group, DeviceMesh(group), {.what = Offloads::all}); });
  run_ranks(4, [](const Group& group) {
    expect_no_hazards(group, DeviceMesh(group, {{"replicate", 2}, {"dp", 2}}),
                      {.policy = nn::strategy("hybrid_shard"), .what = Offloads::all});
  });
}

// 100 backward passes on links that let the rank's thread run ahead, with all that is released filled, against one that
// holds everything, on links that take no time.
TEST(OffloadShards, F182_HsdpGivesTheSameBitsUnderDelaysAndReuse) {
  run_ranks(4, [](const Group& group) {
    const OffloadCase c{
        .policy = nn::strategy("hybrid_shard"), .clips = true, .what = Offloads::all, .accumulate = 4, .steps = 25};
    const auto mesh = [&] { return DeviceMesh(group, {{"replicate", 2}, {"dp", 2}}); };
    OffloadTraining held(group, mesh(), c, "");
    std::vector<Tensor> losses;
    for (std::int64_t i = 0; i < c.steps; ++i) losses.push_back(held.step(i));
    group->host().shape_link({.bytes_per_second = 1e9, .seconds = 5e-4});
    RankContext::current().allocator().set_poison(true);
    const TempDir dir;
    OffloadTraining offloaded(group, mesh(), c, dir.path());
    for (std::int64_t i = 0; i < c.steps; ++i)
      EXPECT_TRUE(same_bits(offloaded.step(i), losses[static_cast<std::size_t>(i)])) << "step " << i;
    expect_same_values(offloaded, held);
  });
}

// Versions say whether what is gathered is of the shards' values, and a replay that fetches them into memory of its own
// counts no write of it.
TEST(OffloadShards, AForwardAfterReplaysIsOfTheLastUpdate) {
  run_ranks(2, [](const Group& group) {
    const TempDir dir;
    nn::Linear net(4, 4, {.bias = false});  // one parameter: an update writes its home once
    nn::UnitPolicy policy;
    policy.offload = nn::ShardOffload{.folder = dir.path()};
    nn::fully_shard(net, DeviceMesh(group), policy);
    net.materialize(nn::Seed{1});
    nn::Sgd optimizer(net.parameters(), {.lr = 0.01});
    const Tensor x = ones({1, 4}), one = ones({1});
    auto micro_step = compile([&](const Tensor& in) {
      const Tensor loss = mean(net(in) * net(in));
      backward(loss);
      return loss.detach();
    });
    auto update = compile([&](const Tensor& in) {
      optimizer.step();
      return in + 0.0;
    });
    for (int i = 0; i < 8; ++i) {
      if (i == 4) nn::units(net).set_reshard_after_backward(false);
      micro_step(x);
      if (i >= 4 && i < 7) nn::unit_of(net).reshard();
      update(one);
      optimizer.clear_gradients();
    }
    const GradMode off(false);
    const Tensor now = net(x);
    nn::unit_of(net).reshard();
    EXPECT_TRUE(same_bits(now, net(x))) << micro_step.why() << "; " << update.why();
  });
}

// Shards that have a home need no room in memory all at once.
TEST(OffloadShards, AModelLargerThanTheLimitIsMaterialized) {
  run_ranks(2, [](const Group& group) {
    const TempDir dir;
    const std::vector<std::int64_t> sizes(24, 64);
    Net held(sizes), offloaded(sizes);
    nn::UnitPolicy policy;
    shard(held, DeviceMesh(group), policy, policy);
    policy.offload = nn::ShardOffload{.folder = dir.path(), .bytes_in_flight = 4096};
    shard(offloaded, DeviceMesh(group), policy, policy);
    Allocator& memory = RankContext::current().allocator();
    memory.set_limit(memory.accounting().total() + 4 * held.num_parameters() / 2 / 2);  // half of a rank's shards
    expect_error([&] { held.materialize(nn::Seed{3}); }, {"out of memory", "the parameters alone take"});
    offloaded.materialize(nn::Seed{3});
    offloaded(batch_of(2, 64, 1, "x"));
    memory.set_limit(0);
  });
}

// What stays within a budget never is more than it, nor less than within a smaller one; all of it stays where it fits.
TEST(OffloadShards, F174_WhatStaysInMemoryFitsTheBudget) {
  for (const int ranks : {1, 3})
    for (const bool captured : {false, true})
      for (const bool in_backward : {false, true})
        run_ranks(ranks, [=](const Group& group) {
          OffloadCase c{.captured = captured, .what = Offloads::all, .in_backward = in_backward, .steps = 4};
          const auto bytes_held = [&](const std::string& folder) {
            const auto held_now = [] {
              RankContext::current().drain_queues();
              return std::pair(held(MemoryCategory::parameters), held(MemoryCategory::optimizer));
            };
            const auto before = held_now();
            OffloadTraining training(group, DeviceMesh(group), c, folder);
            for (std::int64_t i = 0; i < c.steps; ++i) training.step(i);
            const auto after = held_now();
            return std::pair(after.first - before.first, after.second - before.second);
          };
          const TempDir dir;
          const auto [all_shards, all_state] = bytes_held("");
          const auto [no_shards, counts] = bytes_held(dir.path());
          EXPECT_EQ(no_shards, 0);
          std::int64_t shards = 0, state = 0;
          std::set<std::int64_t> different;
          for (const std::int64_t budget : {1'000, 3'000, 10'000, 20'000, 40'000, 80'000, 200'000}) {
            c.kept = budget;
            const auto [shards_now, state_now] = bytes_held(dir.path());
            EXPECT_LE(2 * shards_now, budget) << "gradients lie beside them";
            EXPECT_LE(state_now - counts, budget);
            EXPECT_GE(shards_now, shards);
            EXPECT_GE(state_now, state);
            different.insert(state_now);
            shards = shards_now;
            state = state_now;
            expect_bits_of_none(group, DeviceMesh(group), c);
          }
          EXPECT_EQ(shards, all_shards);
          EXPECT_EQ(state, all_state);
          EXPECT_GE(different.size(), 4u);
        });
}

TEST(OffloadShards, RefusalsNameWhatIsWrong) {
  run_ranks(4, [](const Group& group) {
    const TempDir dir;
    OffloadCase c{.policy = nn::strategy("hybrid_shard_state"), .what = Offloads::parameters};
    const DeviceMesh mesh(group, {{"replicate", 2}, {"dp", 2}});
    expect_error([&] { OffloadTraining(group, mesh, c, dir.path()); },
                 {"hybrid_shard_state", "cannot be offloaded", "hybrid_shard"});
    c.policy = nn::strategy("hybrid_shard");
    expect_error([&] { OffloadTraining(group, mesh, c, dir / "missing"); }, {"is not a folder", "missing"});
    c.kept = -1;
    expect_error([&] { OffloadTraining(group, mesh, c, dir.path()); }, {"-1 bytes", "0 or more"});
    Net net(kUneven);
    expect_error([&] { nn::fully_shard(net, mesh, {.offload = nn::ShardOffload{.bytes_in_memory = 9}}); },
                 {"9 bytes in memory", "shard_units()"});
  });
}

}  // namespace
}  // namespace sherd::testing
