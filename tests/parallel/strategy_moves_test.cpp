// What a step moves under each strategy, and that it takes nothing from the system. Oracles: formulas of N elements;
// the least that a transport can move: every element is written once, where it belongs and in its type.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "compile/compile.h"
#include "nn/models/model_config.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/extensions/int8_gather.h"
#include "nn/parallel/extensions/int8_reduce.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/board/exposed.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/comm/job/world.h"
#include "tests/parallel/strategy_cases.h"
#include "tests/support/compile_once.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// A net in training.
struct MovedTraining {
  Net net;
  StepExtras extras;
  std::unique_ptr<nn::AdamW> optimizer;
  MovedTraining(const std::vector<std::int64_t>& sizes, const ExtendedCase& c, const Group& group)
      : net(sizes), extras(c.extras) {
    const nn::UnitPolicy policy = extras.of(c.strategy.policy());
    shard(net, c.strategy.mesh(group), policy, policy);
    if (extras.in_8_bits)
      for (const nn::UnitHandle& unit : nn::units(net)) {
        unit.set_gather_transform(nn::int8_gather());
        unit.set_custom_reduce(nn::int8_reduce());
      }
    nn::units(net).set_keep_unsharded_storage(extras.keeps_storage);
    net.materialize(nn::Seed{5});
    optimizer = std::make_unique<nn::AdamW>(net.parameters());
  }
  Tensor step(const Tensor& x) {
    Tensor loss;
    for (int micro = 1; micro <= extras.micro_batches; ++micro) {
      nn::units(net).set_requires_gradient_sync(micro == extras.micro_batches);
      loss = sum(net(x));
      backward(loss);
    }
    if (extras.clips) nn::clip_grad_norm(*optimizer, 0.1);
    optimizer->step_and_clear();
    return loss.detach();
  }
};

// A gather casts as it puts shards in place, a reduction reads gradients where backward has written them, a sum over
// replicas works in place. Units are large enough not to be staged (kSmallBytes).
void expect_moved_once(const Group& group, const StrategyCase& c) {
  SCOPED_TRACE(c.text());
  const std::vector<std::int64_t> sizes{128, 128, 192, 128};
  constexpr std::int64_t kHead = 192 * 128 + 128;  // the root's, kept from forward to backward
  MovedTraining t(sizes, {c}, group);
  const Tensor x = batch_of(2, sizes[0], 0, "x");
  const auto counts = [&] {
    RankContext::current().drain_queues();
    return counts_with_subgroups(*group);
  };
  for (int step = 0; step < 2; ++step) t.step(x);
  const CommCounts before = counts();
  t.step(x);
  CommCounts seen = counts();
  seen -= before;

  const std::int64_t n = t.net.num_parameters(), own = c.part(c.row->parameters, n);
  const bool is_sharded = own < n;
  const std::int64_t gathered = !is_sharded ? 0 : c.row->stays == Stays::never ? 2 * n - kHead : n;
  // Over replicas: shards that are divided are gathered in place, where their own part lies already.
  const std::int64_t divided = c.divides_shards() ? own : 0, part = divided / c.replicas;
  const std::int64_t summed = own * c.ranks() > n ? own - divided : 0;
  EXPECT_EQ(seen.all_gather.bytes, c.full_bytes() * gathered + 4 * divided);
  EXPECT_EQ(seen.all_gather.copied, seen.all_gather.bytes - 4 * part);
  EXPECT_EQ(seen.reduce_scatter.bytes, is_sharded ? c.full_bytes() * n + 4 * divided : 0);
  EXPECT_EQ(seen.reduce_scatter.copied, is_sharded ? 4 * (own + part) : 0);
  EXPECT_EQ(seen.all_reduce.bytes, 4 * summed);
  EXPECT_EQ(seen.all_reduce.copied, seen.all_reduce.bytes);
  EXPECT_EQ(seen.broadcast.calls + seen.all_to_all.calls + seen.send.calls, 0);
}

TEST(Strategies, F46_BytesAreMovedOnceToWhereTheyBelong) {
  for (const StrategyCase& c : strategy_cases())
    run_ranks(c.ranks(), [&](const Group& group) { expect_moved_once(group, c); });
}

// Parameters, gradients and what is summed over shards first lie in the heaps of the job's group, where peers read them
// in place.
TEST(Strategies, F46_BytesAreMovedOnceToWhereTheyBelongWithProcesses) {
  for (const StrategyCase& c : strategy_cases()) {
    if (c.ranks() > 2 && c.replicas == 1) continue;
    run_processes(c.ranks(), [&](const Group& group) {
      const RankScope scope;
      set_world_group(group);
      expect_moved_once(group, c);
    });
  }
}

// L blocks and the root.
TEST(Strategies, F44_GathersOfATransformer) {
  constexpr std::int64_t kLayers = 3;
  nn::Gpt::Config config{.vocabulary = 13, .tokens = 7, .layers = kLayers, .heads = 2};
  config.width = 8;
  for (const StrategyCase& c : strategy_cases())
    run_ranks(c.ranks(), [&](const Group& group) {
      SCOPED_TRACE(c.text());
      const auto model = nn::make_language_model(config);
      shard(*model, c.mesh(group), c.policy(), c.policy());
      model->materialize(nn::Seed{5});
      nn::AdamW optimizer(model->parameters());
      const Tensor ids = Tensor::from<std::int32_t>(std::vector<std::int32_t>(14, 3), {2, 7});
      const bool is_sharded = c.row->parameters != nn::ShardedOver::none;
      for (int step = 0; step < 3; ++step) {
        const CommCounter counter;
        backward((*model)(ids, ids));
        optimizer.step_and_clear();
        const std::int64_t divided = c.divides_shards() ? kLayers + 1 : 0;  // over replicas
        EXPECT_EQ(counter.of(comm::CommOp::all_gather).calls - divided, !is_sharded                    ? 0
                                                                        : c.row->stays == Stays::never ? 2 * kLayers + 1
                                                                                                       : kLayers + 1);
        EXPECT_EQ(counter.of(comm::CommOp::reduce_scatter).calls - divided, is_sharded ? kLayers + 1 : 0);
        EXPECT_EQ(counter.of(comm::CommOp::all_reduce).calls + divided,
                  !is_sharded || c.replicas > 1 ? kLayers + 1 : 0);
      }
    });
}

// The first steps, of which a captured one is recorded, find all the blocks that later ones need.
void expect_steady(const Group& group, const ExtendedCase& c, bool is_captured) {
  SCOPED_TRACE(c.text() + (is_captured ? ", captured" : ""));
  constexpr std::size_t kFirst = 4, kLast = 8;
  MovedTraining t({256, 512, 512, 256}, c, group);  // units of many pages
  auto step = compile_once([&](const Tensor& x) { return t.step(x); }, CompileOptions{.group = group});
  const Allocator& memory = RankContext::current().allocator();
  std::vector<std::int64_t> calls, bytes;
  for (std::uint64_t i = 0; i <= kLast; ++i) {
    const Tensor x = batch_of(2, 256, i, "x");
    if (is_captured) step(x);
    else t.step(x);
    calls.push_back(memory.system_calls());
    bytes.push_back(memory.reserved_bytes());
  }
  EXPECT_EQ(calls[kLast], calls[kFirst]);
  EXPECT_EQ(bytes[kLast], bytes[kFirst]);
  if (is_captured) { EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why(); }
}

TEST(Strategies, F180_ASteadyStepTakesNothingFromTheSystem) {
  for (const ExtendedCase& c : extended_cases())
    for (const bool is_captured : {false, true})
      run_ranks(c.strategy.ranks(), [&](const Group& group) { expect_steady(group, c, is_captured); });
}

// From the heaps that peers read, too; with casts.
TEST(Strategies, F180_ASteadyStepTakesNothingFromTheSystemWithProcesses) {
  for (const ExtendedCase& c : extended_cases()) {
    if (!c.strategy.bf16) continue;
    run_processes(c.strategy.ranks(), [&](const Group& group) {
      const RankScope scope;
      set_world_group(group);
      expect_steady(group, c, /*is_captured=*/false);
    });
  }
}

}  // namespace
}  // namespace sherd::testing
