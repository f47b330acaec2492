// Activations outside of memory beside everything that shards and recomputes: not one bit changes. Oracles: the same
// training with all in memory, the accounts of ghosts, and closed forms of what a block keeps.
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "compile/compile.h"
#include "compile/run/bind.h"
#include "nn/layers/dropout.h"
#include "nn/models/model_config.h"
#include "nn/offload_activations.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/unit_rules.h"
#include "nn/recompute.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/hazards.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/core/tape_modes.h"
#include "tests/parallel/block_training.h"
#include "tests/parallel/strategy_cases.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/op_trap.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct ActivationCase {
  Grid3 grid{1, 1, 1};
  bool llama = false, sequence = true, captured = false;
  bool in_flight = false;  ///< a micro-batch runs forward before the backward of the one before
  bool before = false;     ///< offload, then parallelize and fully_shard
  const char* recompute = "none";
  int accumulate = 1, steps = 5;
  std::int64_t tokens = 8, hidden = 24, layers = 3;
  double dropout = 0.2;
  nn::UnitPolicy policy = nn::strategy("full_shard");
  std::int64_t bytes_in_flight = 4096;

  std::string text() const {
    return fmt::format("{} on {} x {} x {}{}{}{}{} recompute {} accumulate {} tokens {}", llama ? "Llama" : "GPT",
                       grid.replicas, grid.dp, grid.tp, sequence ? " sequence" : "", captured ? " captured" : "",
                       in_flight ? " in flight" : "", before ? " before" : "", recompute, accumulate, tokens);
  }
  nn::LanguageModelConfig config() const {
    if (llama)
      return nn::Llama::Config{.vocabulary = 13,
                               .tokens = tokens,
                               .layers = layers,
                               .heads = 4,
                               .kv_heads = 2,
                               .width = 16,
                               .hidden = hidden};
    return nn::Gpt::Config{
        .vocabulary = 13, .tokens = tokens, .layers = layers, .heads = 2, .width = 16, .dropout = dropout};
  }
};

/// A rank's model in training; with a folder its activations are offloaded.
class ActivationTraining : public BlockTraining<ActivationCase> {
 public:
  ActivationTraining(const Group& group, const ActivationCase& c, const std::string& folder) : BlockTraining(group, c) {
    const auto offload = [&] {
      if (!folder.empty())
        nn::offload_activations(*model, {.folder = folder, .bytes_in_flight = c.bytes_in_flight, .least_bytes = 512});
    };
    if (c.before) offload();
    if (c.grid.tp > 1)
      nn::parallelize(*model, root_["tp"], nn::make_plan(c.config(), {.sequence_parallel = c.sequence}));
    nn::recompute_blocks(*model, nn::recompute_policy(c.recompute));
    nn::shard_units(*model, c.grid.data(root_), nn::units_by("block"), c.policy);
    if (!c.before) offload();
    model->materialize(nn::Seed{11});
    start();
  }
};

std::int64_t activations() {
  return RankContext::current().allocator().accounting().current(MemoryCategory::activations);
}

void expect_bits_of_none(const Group& group, const ActivationCase& c) {
  SCOPED_TRACE(c.text());
  const TempDir dir;
  ActivationTraining held(group, c, ""), offloaded(group, c, dir.path());
  for (std::int64_t i = 0; i < c.steps; ++i)
    EXPECT_TRUE(same_bits(offloaded.step(i), held.step(i))) << "step " << i << " " << offloaded.compiled->why();
  if (c.captured) { EXPECT_EQ(offloaded.compiled->mode(), CompiledStep::Mode::replay) << offloaded.compiled->why(); }
  const std::vector<Tensor> actual = offloaded.values(), expected = held.values();
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << "parameter " << i;
}

void expect_bits_on_threads(const ActivationCase& c) {
  run_ranks(c.grid.ranks(), [&](const Group& group) { expect_bits_of_none(group, c); });
}

TEST(ActivationOffload, BitsOfMemoryOnOneRankWithEveryRecomputation) {
  for (const bool llama : {false, true})
    for (const char* recompute : {"none", "selective", "full"})
      for (const bool captured : {false, true})
        expect_bits_on_threads({.llama = llama, .captured = captured, .recompute = recompute});
}

TEST(ActivationOffload, BitsOfMemoryUnderEveryStrategy) {
  for (const StrategyCase& c : strategy_cases()) {
    if (c.shards > 2) continue;
    for (const bool captured : {false, true})
      expect_bits_on_threads({.grid = {c.replicas, c.shards, 1},
                              .captured = captured,
                              .recompute = captured ? "full" : "none",
                              .policy = c.policy()});
  }
}

TEST(ActivationOffload, BitsOfMemoryBesideTensorParallelism) {
  for (const Grid3& grid : {Grid3{1, 1, 2}, Grid3{1, 2, 2}})
    for (const bool llama : {false, true})
      for (const bool captured : {false, true})
        expect_bits_on_threads({.grid = grid,
                                .llama = llama,
                                .sequence = llama != captured,
                                .captured = captured,
                                .before = llama,
                                .recompute = captured ? "none" : "full"});
}

// Shards of 7 tokens and of 25 hidden units differ: ranks evict alike all the same, or their programs would differ.
TEST(ActivationOffload, RanksOfUnevenShardsMoveAlike) {
  for (const bool captured : {false, true})
    expect_bits_on_threads({.grid = {1, 1, 2}, .llama = true, .captured = captured, .tokens = 7, .hidden = 25});
}

TEST(ActivationOffload, BitsOfMemoryWithProcesses) {
  run_processes(2, [](const Group& group) { expect_bits_of_none(group, {.grid = {1, 2, 1}, .captured = true}); });
}

TEST(ActivationOffload, BitsOfMemoryWithMicroBatches) {
  for (const bool in_flight : {false, true})
    for (const bool captured : {false, true})
      expect_bits_on_threads({.grid = {1, 2, 1}, .captured = captured, .in_flight = in_flight, .accumulate = 3});
}

// Each is recorded when it first comes, and homes of its sizes with it; a graph's homes are its own from then on.
TEST(ActivationOffload, BitsOfMemoryForBatchesOfManySizes) {
  const Group group = make_single_group();
  const ActivationCase c{.captured = true, .tokens = 16, .dropout = 0};
  const TempDir dir;
  ActivationTraining held(group, c, ""), offloaded(group, c, dir.path());
  int replays = 0;
  for (std::int64_t i = 0; i < 24; ++i) {
    const std::vector<Tensor> in = held.batch(i, 8 + 4 * (i % 3));
    const Tensor expected = held.update(in);
    const Tensor other = i % 4 == 0 ? (*offloaded.model)(in[0], in[1]) : Tensor();  // a tape that nobody runs
    EXPECT_TRUE(same_bits((*offloaded.compiled)(in)[0], expected)) << "step " << i;
    replays += offloaded.compiled->mode() == CompiledStep::Mode::replay;
  }
  EXPECT_GE(replays, 12);
  const std::vector<Tensor> actual = offloaded.values(), expected = held.values();
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << "parameter " << i;
}

// They are written anew in every run, so a program says nothing of what is in them, and any of the size will do.
TEST(ActivationOffload, HomesOfARecordedStepHaveNoContent) {
  const Group group = make_single_group();
  const TempDir dir;
  ActivationTraining training(group, {.captured = true}, dir.path());
  for (int i = 0; i < 3; ++i) training.step(i);
  const ir::Graph& graph = *training.compiled->graph();
  const ir::Program program = lower(graph);
  std::size_t homes = 0;
  for (const ir::GraphNode& node : program.nodes)
    if (node.op == &op::copy_start && node.attrs.as<OffloadAttrs>().kind == CopyKind::evict) {
      ++homes;
      const ir::Value& home = program.value(node.in[0].value);
      ASSERT_EQ(home.kind, ir::ValueKind::constant);
      EXPECT_EQ(program.constants[static_cast<std::size_t>(home.source)], ir::ConstantContent());
    }
  EXPECT_GT(homes, 10u);
  training.step(3);
  EXPECT_EQ(bind(program, {.constants = graph.live.constants}).live.constants, graph.live.constants);
  EXPECT_NO_THROW(bind(program)) << "homes that nobody gives are memory";
}

// In units of B x T x D, as nn/README.md has them: what a block keeps grows with the number of blocks, and with offload
// by what is too small to move.
TEST(ActivationOffload, MemoryGrowsByTheBlockOnlyWithWhatIsSmall) {
  constexpr std::int64_t kUnit = 2 * 64 * 16 * 4, kStatistics = 2 * 64 * 4;
  const Group group = make_single_group();
  struct Row {
    const char* recompute;
    std::int64_t in_memory, left;  // bytes of a block
  };
  for (const Row& row : {Row{"none", 10 * kUnit + (2 + 4) * kStatistics, 0},
                         Row{"selective", 5 * kUnit + 2 * kStatistics, 0}, Row{"full", kUnit, 0}})
    for (const bool is_offloaded : {false, true}) {
      const TempDir dir;
      std::int64_t kept[2], peak[2];
      for (const int more : {0, 1}) {
        ActivationTraining training(
            group,
            {.recompute = row.recompute, .tokens = 64, .layers = 8 + more, .dropout = 0, .bytes_in_flight = 6 * kUnit},
            is_offloaded ? dir.path() : "");
        training.step(0);
        RankContext::current().drain_queues();
        const std::vector<Tensor> in = training.batch(1);
        const std::int64_t before = activations();
        Accounting& account = RankContext::current().allocator().accounting();
        account.reset_peaks();
        const Tensor loss = (*training.model)(in[0], in[1]);
        kept[more] = activations() - before;
        backward(loss);
        peak[more] = account.peak(MemoryCategory::activations) - before;
      }
      SCOPED_TRACE(fmt::format("recompute {}, offloaded {}", row.recompute, is_offloaded));
      EXPECT_EQ(kept[1] - kept[0], is_offloaded ? row.left : row.in_memory);
      EXPECT_EQ(peak[1] - peak[0], is_offloaded ? row.left : row.in_memory);
    }
}

TEST(ActivationOffload, GhostsHoldWhatRanksHold) {
  for (const char* recompute : {"none", "full"})
    for (const bool captured : {false, true}) {
      const ActivationCase c{.grid = {1, 2, 1}, .captured = captured, .recompute = recompute};
      SCOPED_TRACE(c.text());
      const TempDir dir;
      const auto peaks = [&](const Group& group) {
        ActivationTraining training(group, c, dir.path());
        std::vector<std::int64_t> result;
        Accounting& account = RankContext::current().allocator().accounting();
        for (int i = 0; i < 4; ++i) {
          account.reset_peaks();
          training.step(i);
          result.push_back(account.total_peak());
          for (const std::int64_t bytes : account.peak()) result.push_back(bytes);
        }
        return result;
      };
      run_ranks(2, [&](const Group& group) {
        const std::vector<std::int64_t> real = peaks(group);
        const RankScope scope("a ghost", {.ghost = true});
        set_world_group(make_ghost_group(group->rank(), 2));
        EXPECT_EQ(peaks(world_group()), real);
      });
    }
}

TEST(ActivationOffload, NoAccessIsUnordered) {
  const Group group = make_single_group();
  for (const bool captured : {false, true}) {
    const TempDir dir;
    ActivationTraining training(group, {.captured = captured}, dir.path());
    const HazardChecker checker;
    for (std::int64_t i = 0; i < 4; ++i) training.step(i);
  }
}

// At every op of a step, those of backward, of evictions and fetches included.
TEST(ActivationOffload, AStepThatIsLeftGivesAllBackAndTheNextOneIsWhole) {
  const Group group = make_single_group();
  const ActivationCase c{.layers = 2, .dropout = 0};
  const TempDir dir;
  ActivationTraining training(group, c, dir.path());
  training.step(0);
  const std::vector<Tensor> in = training.batch(1);
  const auto pass = [&] { backward((*training.model)(in[0], in[1])); };
  const auto gradients = [&] {
    std::vector<Tensor> result;
    for (nn::Parameter* p : training.model->parameters()) {
      result.push_back(p->grad().local().detach() + 0.0);
      p->clear_grad();
    }
    return result;
  };
  std::int64_t ops = 0;
  {
    const OpTrap counting(-1);
    pass();
    ops = counting.count();
  }
  const std::vector<Tensor> expected = gradients();
  RankContext::current().drain_queues();
  const std::int64_t between = activations();
  for (std::int64_t at = 0; at < ops; at += 3) {
    SCOPED_TRACE(fmt::format("op {} of {}", at, ops));
    {
      const OpTrap trap(at);
      EXPECT_THROW(pass(), Error);
    }
    nn::reset_after_error(*training.model);
    training.optimizer->clear_gradients();
    EXPECT_EQ(activations(), between);
  }
  pass();
  const std::vector<Tensor> actual = gradients();
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << i;
}

TEST(ActivationOffload, AReplayThatIsLeftGivesAllBackAndTheNextOneIsWhole) {
  const Group group = make_single_group();
  const ActivationCase c{.captured = true, .dropout = 0};
  const TempDir dir;
  ActivationTraining training(group, c, dir.path()), undisturbed(group, c, "");
  for (int i = 0; i < 4; ++i) training.step(i), undisturbed.step(i);
  ASSERT_EQ(training.compiled->mode(), CompiledStep::Mode::replay) << training.compiled->why();
  RankContext::current().drain_queues();
  const std::int64_t between = activations();
  RankContext::current().allocator().set_limit(RankContext::current().allocator().accounting().total() + 20'000);
  EXPECT_THROW(training.step(4), OutOfMemory);
  RankContext::current().allocator().set_limit(0);
  nn::reset_after_error(*training.model);
  training.optimizer->clear_gradients();
  EXPECT_EQ(activations(), between);
  for (int i = 4; i < 8; ++i) EXPECT_TRUE(same_bits(training.step(i), undisturbed.step(i))) << i;
}

TEST(ActivationOffload, EvaluationMovesNothing) {
  const Group group = make_single_group();
  const TempDir dir;
  ActivationTraining training(group, {}, dir.path());
  const GradMode off(false);
  const std::vector<Tensor> in = training.batch(0);
  const HazardChecker checker;
  EXPECT_GT((*training.model)(in[0], in[1]).item<float>(), 0);
  EXPECT_EQ(tape_modes().saved_policy, nullptr);
}

TEST(ActivationOffload, RefusalsNameWhatIsWrong) {
  const Group group = make_single_group();
  const TempDir dir;
  ActivationTraining training(group, {}, dir.path());
  expect_error([&] { nn::offload_activations(*training.model, {.folder = dir.path()}); },
               {"\"blocks.0\"", "is offloaded already"});
  for (const auto& child : training.model->children())
    if (nn::is_container(*child))
      expect_error([&] { nn::offload_activations({child.get()}, {.folder = dir.path()}); },
                   {"\"blocks\"", "container"});
  nn::Dropout dropout(0.5);
  expect_error([&] { nn::offload_activations(dropout, {.folder = dir.path()}); },
               {"offload_activations", "no list of modules"});
  expect_error([&] { nn::offload_activations({&dropout}, {.folder = dir / "missing"}); }, {"is not a folder"});
}

}  // namespace
}  // namespace sherd::testing
