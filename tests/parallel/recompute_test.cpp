// Recomputation beside everything that shards: not one gather or reduction more, and not one bit. Oracles: the same
// training without it, and its counts of collectives.
#include "nn/recompute.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "compile/compile.h"
#include "dtensor/scopes.h"
#include "dtensor/transition/redistribute.h"
#include "nn/layers/dropout.h"
#include "nn/models/model_config.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/unit_rules.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/exec/trace.h"
#include "tests/parallel/block_training.h"
#include "tests/parallel/strategy_cases.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/op_trap.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct RecomputeCase {
  Grid3 grid{1, 2, 1};
  bool llama = false, sequence = true, tied = true;
  bool frozen = false;     ///< the first block, and all biases of the second
  bool before = false;     ///< recompute, then parallelize and fully_shard
  bool captured = false;   ///< from the third step on replayed
  bool in_flight = false;  ///< a micro-batch runs forward before the backward of the one before
  int accumulate = 1, steps = 6;
  const char* units = "block";
  nn::UnitPolicy policy = nn::strategy("full_shard");

  std::string text() const {
    return fmt::format("{} on {} x {} x {}{}{}{}{}{} accumulate {} units {}", llama ? "Llama" : "GPT", grid.replicas,
                       grid.dp, grid.tp, sequence ? " sequence" : "", frozen ? " frozen" : "", before ? " before" : "",
                       captured ? " captured" : "", in_flight ? " in flight" : "", accumulate, units);
  }
  nn::LanguageModelConfig config() const {
    if (llama)
      return nn::Llama::Config{.vocabulary = 13,
                               .tokens = tokens,
                               .layers = 3,
                               .heads = 4,
                               .kv_heads = 2,
                               .width = 16,
                               .hidden = 24,
                               .tied_head = tied};
    return nn::Gpt::Config{
        .vocabulary = 13, .tokens = tokens, .layers = 3, .heads = 2, .width = 8, .tied_head = tied, .dropout = 0.2};
  }
  static constexpr std::int64_t tokens = 8;
};

/// A rank's model in training.
class RecomputedTraining : public BlockTraining<RecomputeCase> {
 public:
  RecomputedTraining(const Group& group, const RecomputeCase& c, const nn::Recompute& policy)
      : BlockTraining(group, c) {
    if (c.before) nn::recompute_blocks(*model, policy);
    if (c.grid.tp > 1)
      nn::parallelize(*model, root_["tp"], nn::make_plan(c.config(), {.sequence_parallel = c.sequence}));
    nn::shard_units(*model, c.grid.data(root_), nn::units_by(c.units), c.policy);
    if (!c.before) nn::recompute_blocks(*model, policy);
    model->materialize(nn::Seed{11});
    if (c.frozen) freeze();
    start();
  }

 private:
  void freeze() const {
    for (nn::Parameter* p : model->blocks()[0]->parameters()) p->set_requires_grad(false);
    for (nn::Parameter* p : model->blocks()[1]->parameters())
      if (p->shape().size() == 1) p->set_requires_grad(false);
  }
};

void expect_bits_of_none(const Group& group, const RecomputeCase& c) {
  SCOPED_TRACE(c.text());
  const auto trained = [&](const char* policy) {
    RecomputedTraining training(group, c, nn::recompute_policy(policy));
    std::vector<Tensor> result;
    for (int i = 0; i < c.steps; ++i) result.push_back(training.step(i));
    for (Tensor& value : training.values()) result.push_back(std::move(value));
    EXPECT_EQ(held(MemoryCategory::gradients), 0);
    if (c.captured) { EXPECT_EQ(training.compiled->mode(), CompiledStep::Mode::replay) << training.compiled->why(); }
    return result;
  };
  const std::vector<Tensor> expected = trained("none");
  for (const char* policy : {"selective", "full"}) {
    const std::vector<Tensor> actual = trained(policy);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(same_bits(actual[i], expected[i])) << policy << ", loss or parameter " << i;
  }
}

void expect_bits_on_threads(const RecomputeCase& c) {
  run_ranks(c.grid.ranks(), [&](const Group& group) { expect_bits_of_none(group, c); });
}

TEST(FullyShard, F70_EveryStrategyTrainsToTheBitsOfNone) {
  for (const StrategyCase& strategy : strategy_cases())
    expect_bits_on_threads({.grid = {strategy.replicas, strategy.shards, 1}, .steps = 20, .policy = strategy.policy()});
}

TEST(FullyShard, F70_TheBitsOfNoneWithProcesses) {
  run_processes(2, [](const Group& group) { expect_bits_of_none(group, {.captured = true}); });
}

TEST(FullyShard, F70_TwoDimensionsTrainToTheBitsOfNone) {
  for (const Grid3& grid : {Grid3{1, 1, 2}, Grid3{1, 2, 2}})
    for (const bool llama : {false, true})
      for (const bool sequence : {false, true})
        expect_bits_on_threads({.grid = grid, .llama = llama, .sequence = sequence, .steps = 20});
  for (const Grid3& grid : {Grid3{1, 1, 2}, Grid3{1, 2, 2}})
    for (const bool llama : {false, true}) expect_bits_on_threads({.grid = grid, .llama = llama, .before = true});
  nn::UnitPolicy in_bf16 = nn::strategy("full_shard");
  in_bf16.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
  expect_bits_on_threads({.grid = {1, 2, 2}, .llama = true, .captured = true, .policy = in_bf16});
  expect_bits_on_threads({.grid = {2, 1, 2}, .policy = in_bf16});
}

TEST(FullyShard, F70_MicroBatchesFrozenAndTiedParametersAndOrdersOfCalls) {
  for (const bool llama : {false, true}) {
    expect_bits_on_threads({.llama = llama, .accumulate = 4});
    expect_bits_on_threads({.llama = llama, .in_flight = true, .accumulate = 4});
    expect_bits_on_threads({.llama = llama, .frozen = true});
    expect_bits_on_threads({.llama = llama, .tied = false, .before = true});
    expect_bits_on_threads({.llama = llama, .captured = true});
    for (const char* units : {"fine", "coarse", "bytes=3e3"}) expect_bits_on_threads({.llama = llama, .units = units});
  }
}

/// What a settled step moves and holds, and calls of rows in its backward.
struct Moved {
  CommCounter::Item gathers, reductions;
  std::int64_t peak_unsharded = 0;
  int late_gathers = 0, attention = 0, linear = 0;
};

Moved moved_by(const Group& group, const RecomputeCase& c, const char* policy) {
  RecomputedTraining training(group, c, nn::recompute_policy(policy));
  for (int i = 0; i < 2; ++i) training.step(i);
  RankContext::current().drain_queues();
  Accounting& memory = RankContext::current().allocator().accounting();
  memory.reset_peaks();
  CommCounter counter;
  Trace trace(1 << 14);
  {
    const Trace::Recording recording(trace);
    training.step(2);
  }
  RankContext::current().drain_queues();
  Moved moved{counter.of_op("unshard"), counter.of_op("reduce"), memory.peak(MemoryCategory::unsharded)};
  for (const Span& span : trace.spans()) {
    if (span.kind != SpanKind::op || span.phase != StepPhase::backward) continue;
    moved.attention += span.name == op::scaled_dot_product_attention.name;
    moved.linear += span.name == op::linear.name;
  }
  EXPECT_EQ(trace.dropped(), 0);
  for (const nn::UnitHandle& unit : nn::units(*training.model)) moved.late_gathers += unit.late_gathers();
  EXPECT_EQ(held(MemoryCategory::unsharded), 0);
  return moved;
}

// Three blocks and the root, which stays gathered.
TEST(FullyShard, F70_NoUnitIsGatheredTwiceInBackward) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [=](const Group& group) {
      for (const bool frozen : {false, true})
        for (const char* units : {"block", "fine", "coarse"}) {
          RecomputeCase c{.grid = {1, ranks, 1}, .frozen = frozen, .units = units};
          const Moved none = moved_by(group, c, "none");
          if (std::string_view(units) == "block") { EXPECT_EQ(none.gathers.calls, 4 + 3); }
          EXPECT_EQ(none.attention, 0);
          for (const char* policy : {"selective", "full"})
            for (const bool before : {false, true}) {
              c.before = before;
              SCOPED_TRACE(fmt::format("{} {}", policy, c.text()));
              const Moved moved = moved_by(group, c, policy);
              EXPECT_EQ(moved.attention, std::string_view(policy) == "full" ? 3 : 0);
              EXPECT_GT(moved.linear, none.linear);
              EXPECT_EQ(moved.gathers.calls, none.gathers.calls);
              EXPECT_EQ(moved.gathers.bytes, none.gathers.bytes);
              EXPECT_EQ(moved.reductions.calls, none.reductions.calls);
              EXPECT_EQ(moved.reductions.bytes, none.reductions.bytes);
              if (std::string_view(units) == "fine") continue;  // attention runs again while the MLP's unit is there
              EXPECT_EQ(moved.late_gathers, 0);
              EXPECT_EQ(moved.peak_unsharded, none.peak_unsharded);
            }
        }
    });
}

// Without the number of a unit among others of its name, "~2".
std::string without_numbers(const std::string& text) {
  std::string rest;
  bool is_number = false;
  for (const char c : text) {
    is_number = c == '~' || (is_number && c >= '0' && c <= '9');
    if (!is_number) rest += c;
  }
  return rest;
}

std::vector<std::string> unit_rows(const Group& group, const char* policy) {
  RecomputedTraining training(group, {.captured = true}, nn::recompute_policy(policy));
  for (int i = 0; i < 2; ++i) training.step(i);
  std::vector<std::string> rows;
  for (const ir::GraphNode& node : training.compiled->graph()->program.nodes)
    if (node.op == &op::gather_start || node.op == &op::reduce_start)
      rows.push_back(fmt::format("{} {}", node.op->name, without_numbers(node.attrs.print())));
  return rows;
}

TEST(FullyShard, F70_GathersAndReductionsComeInTheSameOrder) {
  run_ranks(2, [](const Group& group) {
    const std::vector<std::string> expected = unit_rows(group, "none");
    EXPECT_GE(expected.size(), 11u);
    for (const char* policy : {"selective", "full"}) EXPECT_EQ(unit_rows(group, policy), expected) << policy;
  });
}

struct Collectives {
  std::int64_t all_reduce = 0, all_gather = 0, reduce_scatter = 0;
};

Collectives of_one_block(const Group& group, bool llama, bool sequence, const nn::Recompute& policy) {
  RecomputedTraining training(group, {.grid = {1, 1, 2}, .llama = llama, .sequence = sequence}, policy);
  const StrictCommunication strict;
  training.step(0);
  CommCounter counter;
  training.step(1);
  Collectives result;
  for (const CommCounter::Entry& e : counter.entries()) {
    if (!e.module.starts_with("blocks.1")) continue;
    if (e.kind == comm::CommOp::all_reduce) result.all_reduce += e.item.calls;
    if (e.kind == comm::CommOp::all_gather) result.all_gather += e.item.calls;
    if (e.kind == comm::CommOp::reduce_scatter) result.reduce_scatter += e.item.calls;
  }
  return result;
}

// The gradients of the matrices read what was gathered for attention and for the MLP, h is what attention's last
// product gave: these are communicated again, and not what nobody reads, the result of the MLP.
TEST(TensorParallel, F70_WhatABlockCommunicatesAgain) {
  struct Expected {
    nn::Recompute policy;
    Collectives plain, sequence;
  };
  const Expected rows[] = {
      {{nn::Recompute::full}, {1, 0, 0}, {0, 2, 1}},
      {{nn::Recompute::selective}, {1, 0, 0}, {0, 2, 1}},
      {{nn::Recompute::selective, {&op::scaled_dot_product_attention, &op::redistribute}}, {0, 0, 0}, {0, 0, 0}},
  };
  run_ranks(2, [&](const Group& group) {
    for (const bool llama : {false, true})
      for (const bool sequence : {false, true}) {
        const Collectives none = of_one_block(group, llama, sequence, {nn::Recompute::none});
        for (const Expected& row : rows) {
          SCOPED_TRACE(fmt::format("{} sequence {} row {}", llama ? "Llama" : "GPT", sequence, &row - rows));
          const Collectives& more = sequence ? row.sequence : row.plain;
          const Collectives now = of_one_block(group, llama, sequence, row.policy);
          EXPECT_EQ(now.all_reduce, none.all_reduce + more.all_reduce);
          EXPECT_EQ(now.all_gather, none.all_gather + more.all_gather);
          EXPECT_EQ(now.reduce_scatter, none.reduce_scatter + more.reduce_scatter);
        }
      }
  });
}

TEST(FullyShard, F70_ARetainedGraphRunsAgainTwice) {
  run_ranks(2, [](const Group& group) {
    const auto gradients = [&](const char* policy) {
      RecomputedTraining training(group, {}, nn::recompute_policy(policy));
      const std::vector<Tensor> in = training.batch(0);
      const Tensor loss = (*training.model)(in[0], in[1]);
      backward(loss, {.retain_graph = true});
      backward(loss);
      std::vector<Tensor> result;
      for (const nn::Parameter* p : training.model->parameters()) result.push_back(p->grad().local().detach() + 0.0);
      return result;
    };
    const std::vector<Tensor> expected = gradients("none");
    for (const char* policy : {"selective", "full"}) {
      const std::vector<Tensor> actual = gradients(policy);
      for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << i;
    }
  });
}

// In backward attention is called only where it runs again.
TEST(FullyShard, F70_AnExceptionWhileOpsRunAgainEndsTheStepOnAllRanks) {
  constexpr std::string_view attention = "scaled_dot_product_attention";
  for (const RecomputeCase& c : {RecomputeCase{.grid = {1, 1, 1}, .llama = true},
                                 {.grid = {1, 2, 1}, .llama = true},
                                 {.grid = {1, 3, 1}, .llama = true},
                                 {.grid = {1, 2, 1}, .llama = true, .units = "fine"},
                                 {.grid = {1, 1, 2}, .llama = true},
                                 {.grid = {1, 2, 2}, .llama = true}}) {
    SCOPED_TRACE(c.text());
    run_ranks(c.grid.ranks(), [&](const Group& group) {
      RecomputedTraining training(group, c, {nn::Recompute::full}), undisturbed(group, c, {nn::Recompute::full});
      for (RecomputedTraining* each : {&training, &undisturbed}) each->step(0);
      const std::vector<Tensor> in = training.batch(1);
      {
        RecomputedTraining none(group, c, {nn::Recompute::none});
        const Tensor loss = (*none.model)(in[0], in[1]);
        const OpTrap trap(attention);
        EXPECT_NO_THROW(backward(loss));
        RankContext::current().drain_queues();
      }
      expect_left_by_all(
          *training.model, *training.optimizer,
          [&] {
            const Tensor loss = (*training.model)(in[0], in[1]);
            std::optional<OpTrap> trap;
            if (group->rank() == group->size() - 1) trap.emplace(attention);
            backward(loss);
          },
          "the trap");
      for (int i = 1; i < 3; ++i) EXPECT_TRUE(same_bits(training.step(i), undisturbed.step(i))) << i;
    });
  }
}

// A gather is not repeated, so what it does on the host is its own affair. A power of two changes no bit.
TEST(FullyShard, F70_AGatherOfTheUsersMayReadOnTheHost) {
  run_ranks(2, [](const Group& group) {
    const auto trained = [&](const RecomputeCase& c, const char* policy, bool is_scaled) {
      RecomputedTraining training(group, c, nn::recompute_policy(policy));
      const Tensor scale = full({}, 2.0);
      int reads = 0;
      const auto read = [&] { return ++reads, static_cast<double>(scale.item<float>()); };
      const nn::GatherTransform scaled{
          .name = "scaled",
          .encode = [&](const Tensor& shard) { return std::vector{mul(shard, shard.is_meta() ? 1.0 : read())}; },
          .decode = [&](std::span<const Tensor> encoded,
                        const Tensor& rows) { copy_into(rows, mul(encoded[0], 1 / read())); }};
      if (is_scaled)
        for (const nn::UnitHandle& unit : nn::units(*training.model)) unit.set_gather_transform(scaled);
      std::vector<Tensor> result;
      for (int i = 0; i < 3; ++i) result.push_back(training.step(i));
      for (Tensor& value : training.values()) result.push_back(std::move(value));
      EXPECT_EQ(reads > 0, is_scaled);
      return result;
    };
    for (const char* units : {"block", "fine"})
      for (const bool before : {false, true}) {
        const RecomputeCase c{.before = before, .units = units};
        SCOPED_TRACE(c.text());
        const std::vector<Tensor> expected = trained(c, "none", false), actual = trained(c, "full", true);
        for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << i;
      }
  });
}

struct UnmarkedWatch final : nn::ModuleHook {};

// By each of them, or by one of two: the other one hears of it where it waits.
TEST(FullyShard, F70_WhatCannotBeRecomputedIsRefusedOnEveryRank) {
  run_ranks(2, [](const Group& group) {
    for (const auto& [before, is_on_all] : {std::pair(false, true), {true, true}, {false, false}, {true, false}}) {
      SCOPED_TRACE(fmt::format("before {} on all {}", before, is_on_all));
      RecomputedTraining training(group, {.llama = true, .before = before}, {nn::Recompute::full});
      const auto hook = std::make_shared<UnmarkedWatch>();
      nn::Module& part = *training.model->blocks()[1]->children()[0];
      const bool has_hook = is_on_all || group->rank() == 1;
      if (has_hook) part.add_hook(hook);
      expect_left_by_all(*training.model, *training.optimizer, [&] { training.step(0); }, "UnmarkedWatch");
      if (has_hook) part.remove_hook(*hook);
      training.step(0);
    }
  });
}

}  // namespace
}  // namespace sherd::testing
