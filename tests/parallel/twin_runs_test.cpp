// A replay follows what the library was told between calls. Twins make the same steps, one captured, each on ranks of
// its own; at a step something is changed for both, and some steps later it is taken back: losses, parameters and calls
// of collectives stay equal.
// Changes that are no tensors are rows of a table; SHERD_TWINS names how many drawn pairs of layout and changes to try.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>
#include <span>

#include "compile/compile.h"
#include "nn/layers/dropout.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/tensor_parallel.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/nets.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
constexpr int kTold = 6, kTakenBack = 10, kSteps = 14;  // when it is told, its replays have settled

struct TwinBlock : nn::Layer<TwinBlock> {
  nn::Linear& linear;
  nn::Dropout& dropout;
  TwinBlock(std::int64_t in, std::int64_t out)
      : linear(add<nn::Linear>("linear", in, out)), dropout(add<nn::Dropout>("dropout", 0.3)) {}
  Tensor forward(const Tensor& x) { return dropout(relu(linear(x))); }
};

struct TwinNet : nn::Layer<TwinNet> {
  nn::ModuleList<TwinBlock>& blocks;
  nn::Linear& head;
  TwinNet() : blocks(add<nn::ModuleList<TwinBlock>>("blocks")), head(add<nn::Linear>("head", 8, 4)) {
    for (int i = 0; i < 3; ++i) blocks.append(8, 8);
  }
  Tensor forward(Tensor x) {
    for (TwinBlock* block : blocks.items()) x = (*block)(x);
    return head(x);
  }
};

struct Layout {
  const char* name;
  const char* strategy;  // empty: plain
  int ranks;
  int replicas = 1;
  bool bf16 = false;
  int tp = 1;
};
constexpr Layout kLayouts[] = {{"plain", "", 1},
                               {"one", "full_shard", 1},
                               {"full_shard", "full_shard", 2},
                               {"full_shard_bf16", "full_shard", 2, 1, true},
                               {"shard_grad_op", "shard_grad_op", 2},
                               {"no_shard", "no_shard", 2},
                               {"shard_optimizer", "shard_optimizer", 2},
                               {"full_shard_4", "full_shard", 4},
                               {"hybrid", "hybrid_shard", 4, 2},
                               {"hybrid_bf16", "hybrid_shard", 4, 2, true},
                               {"hybrid_state", "hybrid_shard_state", 4, 2},
                               {"tp", "", 2, 1, false, 2},
                               {"tp_4", "", 4, 1, false, 4},
                               {"full_shard_tp", "full_shard", 4, 1, false, 2},
                               {"no_shard_tp_bf16", "no_shard", 4, 1, true, 2}};

/// Inputs and outputs are plain and equal on all ranks of "tp".
nn::Plan twin_plan() {
  return {{"blocks.0", nn::prepare_input({.from = Replicate(), .to = Replicate()})},
          {"blocks.0.linear", nn::colwise()},
          {"blocks.1.linear", nn::rowwise()},
          {"head", nn::prepare_output({.to = Replicate(), .local = true})}};
}

struct Twin {
  TwinNet net;
  std::unique_ptr<nn::AdamW> optimizer;
  Group group;
  bool syncs_by_itself;

  Twin(const Layout& layout, Group g, bool toggles) : group(std::move(g)), syncs_by_itself(toggles) {
    const int dp = layout.ranks / layout.replicas / layout.tp;
    std::vector<DeviceMesh::Axis> axes{{"dp", dp}};
    if (layout.replicas > 1) axes.insert(axes.begin(), {"replicate", layout.replicas});
    if (layout.tp > 1) axes.push_back({"tp", layout.tp});
    const DeviceMesh root(group, axes);
    if (layout.tp > 1) nn::parallelize(net, root["tp"], twin_plan());
    if (*layout.strategy != '\0') {
      nn::UnitPolicy policy = nn::strategy(layout.strategy);
      if (layout.bf16) policy.mp_policy.param_dtype = DType::bf16;
      const DeviceMesh mesh = layout.replicas > 1 ? root.slice({"replicate", "dp"}) : root["dp"];
      for (nn::Module* block : net.blocks.items()) nn::fully_shard(*block, mesh, policy);
      if (layout.bf16) policy.mp_policy.output_dtype = DType::f32;
      nn::fully_shard(net, mesh, policy);
    }
    net.materialize(nn::Seed{5});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.02, .weight_decay = 0.1});
  }
  bool is_sharded() const { return nn::is_fully_sharded(net); }
  Tensor step(const Tensor& x, const Tensor& y) {
    Tensor loss;
    for (int micro = 0; micro < 2; ++micro) {
      if (syncs_by_itself && is_sharded()) nn::units(net).set_requires_gradient_sync(micro == 1);
      loss = mean_square(net(x), y);
      backward(loss);
    }
    optimizer->step_and_clear();
    return loss;
  }
};

/// Negates what a module returns.
struct Negate final : nn::ModuleHook {
  bool maps_outputs() const override { return true; }
  void map_output(nn::Module&, Tensor& tensor, nn::TensorPlace) override { tensor = neg(tensor); }
};

struct Change {
  const char* name;
  bool sharded;  // about units
  void (*tell)(Twin& twin, bool on);
};
const Change kChanges[] = {
    {"train", false, [](Twin& t, bool on) { t.net.train(!on); }},
    {"train_one", false, [](Twin& t, bool on) { t.net.blocks.items()[1]->dropout.train(!on); }},
    {"module_hook", false,
     [](Twin& t, bool on) {
       static thread_local std::map<nn::Module*, std::shared_ptr<Negate>> hooks;
       nn::Module* const block = t.net.blocks.items()[1];
       if (on) block->add_hook(hooks[block] = std::make_shared<Negate>());
       else block->remove_hook(*hooks.at(block));
     }},
    {"gradient_hook", false,
     [](Twin& t, bool on) {
       const auto halve = [](Slot& s) {
         const GradMode off(false);
         s.set_grad(s.grad() * 0.5);
       };
       if (on) t.net.head.weight.on_grad_accumulated(halve, {.capturable = true});
     }},
    {"freeze", false, [](Twin& t, bool on) { t.net.head.bias->set_requires_grad(!on); }},
    {"divide_factor", true,
     [](Twin& t, bool on) {
       nn::unit_of(t.net).set_gradient_divide_factor(on ? 12 : static_cast<double>(t.group->size()));
     }},
    {"all_reduce_hook", true,
     [](Twin& t, bool on) {
       nn::AllReduceHook hook;
       if (on)
         hook = [](const nn::ReducedUnit& unit) {
           for (const Tensor& shard : unit.shards) copy_into(shard, shard * 0.25);
         };
       nn::unit_of(t.net).set_all_reduce_hook(hook);
     }},
    {"reshard_after_forward", true, [](Twin& t, bool on) { nn::units(t.net).set_reshard_after_forward(!on); }},
    {"reshard_to_two", true,
     [](Twin& t, bool on) {
       if (t.group->size() == 4 && nn::unit_of(t.net).layout().shards == 4) {
         if (on) nn::units(t.net).set_reshard_after_forward(2);
         else nn::units(t.net).set_reshard_after_forward(true);
       }
     }},
    {"reshard_after_backward", true, [](Twin& t, bool on) { nn::units(t.net).set_reshard_after_backward(!on); }},
    {"forward_prefetch", true,
     [](Twin& t, bool on) {
       const auto& blocks = t.net.blocks.items();
       std::vector<nn::UnitHandle> next;
       if (on) next = {nn::unit_of(*blocks[1]), nn::unit_of(*blocks[2])};
       nn::unit_of(*blocks[0]).set_forward_prefetch(next);
     }},
    {"backward_prefetch", true,
     [](Twin& t, bool on) {
       const auto& blocks = t.net.blocks.items();
       std::vector<nn::UnitHandle> next;
       if (on) next = {nn::unit_of(*blocks[1]), nn::unit_of(*blocks[0])};
       nn::unit_of(*blocks[2]).set_backward_prefetch(next);
     }},
    {"max_reductions", true, [](Twin& t, bool on) { nn::units(t.net).set_max_reductions(on ? 3 : 1); }},
    {"keeps_memory", true, [](Twin& t, bool on) { nn::units(t.net).set_keep_unsharded_storage(on); }},
    {"reduce_unused", true, [](Twin& t, bool on) { nn::units(t.net).set_reduce_unused(on); }},
};

/// What one twin has come to in a step.
struct TwinStep {
  std::vector<std::vector<float>> values;  // the loss, and all parameters
  std::array<std::int64_t, 3> calls;       // of all-gathers, reduce-scatters and all-reduces
  std::string why;
};

struct TwinRun {
  Layout layout;
  std::vector<const Change*> told;  // at kTold, taken back at kTakenBack
  bool toggles;
  bool captures;
};

/// A twin of this rank, which has nothing else: what another one changes would be looked at by guards of this one.
std::vector<TwinStep> steps_of(const TwinRun& run, const Group& group) {
  Twin twin(run.layout, group, run.toggles);
  auto step = compile([&](const Tensor& x, const Tensor& y) { return twin.step(x, y); }, {.group = nullptr});
  std::vector<TwinStep> steps;
  int replays = 0;
  for (int i = 0; i < kSteps; ++i) {
    for (const Change* change : run.told)
      if ((i == kTold || i == kTakenBack) && (!change->sharded || twin.is_sharded())) change->tell(twin, i == kTold);
    const auto index = static_cast<std::uint64_t>(i);
    const Tensor x = batch_of(6, 8, index, "x"), y = batch_of(6, 4, index, "y");
    nn::set_step(2 * i);
    const CommCounts before = settled_counts(*group);
    const std::int64_t looks = step.num_looks();
    const Tensor loss = run.captures ? step(x, y) : twin.step(x, y).detach();
    const CommCounts spent = counts_since(before, *group);
    if (run.captures && i == kTold - 1) {
      EXPECT_EQ(step.num_looks(), looks) << "replays have settled: " << step.why();
    }
    replays += step.mode() == CompiledStep::Mode::replay ? 1 : 0;
    TwinStep& now = steps.emplace_back();
    now.values.push_back(loss.local().to_vector<float>());
    for (const nn::Parameter* p : twin.net.parameters())
      now.values.push_back(p->sharded_value().local().detach().to_vector<float>());
    now.calls = {spent.all_gather.calls, spent.reduce_scatter.calls, spent.all_reduce.calls};
    now.why = step.why();
  }
  EXPECT_TRUE(!run.captures || replays >= 3) << "of the recordings some were replayed";
  return steps;
}

/// By rank.
std::vector<std::vector<TwinStep>> ranks_of(const TwinRun& run) {
  std::vector<std::vector<TwinStep>> steps(static_cast<std::size_t>(run.layout.ranks));
  run_ranks(run.layout.ranks,
            [&](const Group& group) { steps[static_cast<std::size_t>(group->rank())] = steps_of(run, group); });
  return steps;
}

bool same_floats(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

void expect_twins_agree(const Layout& layout, const std::vector<const Change*>& told, bool toggles) {
  const auto eager = ranks_of({layout, told, toggles, false}), captured = ranks_of({layout, told, toggles, true});
  for (std::size_t rank = 0; rank < eager.size(); ++rank)
    for (std::size_t i = 0; i < eager[rank].size(); ++i) {
      const TwinStep &actual = captured[rank][i], &expected = eager[rank][i];
      const std::string where = fmt::format("rank {}, step {}, {}", rank, i, actual.why);
      ASSERT_EQ(actual.values.size(), expected.values.size()) << where;
      for (std::size_t v = 0; v < actual.values.size(); ++v)
        ASSERT_TRUE(same_floats(actual.values[v], expected.values[v])) << "value " << v << ", " << where;
      EXPECT_EQ(actual.calls, expected.calls) << where;
    }
}

struct TwinCase {
  Layout layout;
  const Change* change;
};
std::vector<TwinCase> each_change() {
  std::vector<TwinCase> cases;
  for (const Layout& layout : kLayouts)
    for (const Change& change : kChanges)
      if (!change.sharded || *layout.strategy != '\0') cases.push_back({layout, &change});
  return cases;
}

TEST(TwinRuns, AReplayFollowsEachChangeInEveryLayout) {
  for (const auto& [layout, change] : each_change()) {
    SCOPED_TRACE(fmt::format("{} in {}", change->name, layout.name));
    expect_twins_agree(layout, {change}, false);
    if (HasFailure()) return;
  }
}

TEST(TwinRuns, DrawnChangesAreFollowed) {
  const char* const asked = std::getenv("SHERD_TWINS");
  const int seeds = asked ? std::atoi(asked) : 100;
  for (int seed = 0; seed < seeds; ++seed) {
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    const Layout& layout = kLayouts[random() % std::size(kLayouts)];
    std::vector<const Change*> told;
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n) {
      const Change* const change = &kChanges[random() % std::size(kChanges)];
      if (std::ranges::find(told, change) == told.end()) told.push_back(change);
    }
    const bool toggles = random() % 2 == 0;
    std::string text = fmt::format("seed {}, {}{}:", seed, layout.name, toggles ? ", syncs by itself" : "");
    for (const Change* change : told) text += fmt::format(" {}", change->name);
    SCOPED_TRACE(text);
    expect_twins_agree(layout, told, toggles);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sherd::testing
