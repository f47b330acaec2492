// Planned steps of small models on one and two ranks. One needs nothing of the rank that has planned it: its text binds
// to a model on a rank that has never recorded one, and trains it. Oracle: an eager training on ranks of its own. Where
// memory runs out on one rank, all say what that one holds.
#include <gtest/gtest.h>

#include "compile/capture/capture.h"
#include "compile/compile.h"
#include "compile/ir/text/parse.h"
#include "compile/ir/text/print.h"
#include "compile/run/bind.h"
#include "compile/run/fit.h"
#include "compile/run/guard.h"
#include "compile/run/replay.h"
#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Floats = std::vector<std::vector<float>>;
constexpr int kSteps = 5, kWords = 17, kTokens = 32, kSequences = 8;

struct PlannedCase {
  bool is_llama;
  int ranks;
  bool bf16;
  bool freezes = false;  // the first block
  std::string text() const {
    return fmt::format("{} in {} on {} ranks{}", is_llama ? "llama" : "gpt", bf16 ? "bf16" : "f32", ranks,
                       freezes ? ", the first block frozen" : "");
  }
};

class PlannedTraining {
 public:
  PlannedTraining(const PlannedCase& c, const Group& group) : mesh_(group) {
    if (c.is_llama)
      model_ = std::make_unique<nn::Llama>(nn::Llama::Config{
          .vocabulary = kWords, .tokens = kTokens, .layers = 3, .heads = 2, .kv_heads = 1, .width = 16, .hidden = 32});
    else
      model_ = std::make_unique<nn::Gpt>(nn::Gpt::Config{
          .vocabulary = kWords, .tokens = kTokens, .layers = 3, .heads = 2, .width = 16, .dropout = 0.1});
    if (c.freezes)
      for (nn::Parameter* p : model_->blocks()[0]->parameters()) p->set_requires_grad(false);
    if (c.bf16 || c.ranks > 1) {
      nn::UnitPolicy policy;
      if (c.bf16) policy.mp_policy.param_dtype = DType::bf16;
      for (nn::Module* block : model_->blocks()) nn::fully_shard(*block, mesh_, policy);
      if (c.bf16) policy.mp_policy.output_dtype = DType::f32;
      nn::fully_shard(*model_, mesh_, policy);
    }
    model_->materialize(nn::Seed{3});
    optimizer_ = std::make_unique<nn::AdamW>(model_->parameters(), nn::AdamW::Options{.lr = 0.05});
  }
  /// i32 [kSequences, kTokens], twice.
  std::vector<Tensor> batch(int index) const {
    std::vector<std::int32_t> ids(kSequences * kTokens);
    const std::size_t from = static_cast<std::size_t>(3 * index + mesh_.coordinate(0));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>((5 * i + i * i + from) % kWords);
    const auto tensor = [&] { return Tensor::from<std::int32_t>(ids, {kSequences, kTokens}); };
    return {tensor(), tensor()};
  }
  std::vector<Tensor> step(std::span<const Tensor> in) {
    const Tensor loss = (*model_)(in[0], in[1]);
    backward(loss);
    const Tensor norm = nn::clip_grad_norm(*optimizer_, 0.5);
    optimizer_->step_and_clear();
    return {loss.detach(), norm.detach()};
  }
  nn::Module& model() { return *model_; }
  void add_values(Floats& floats) const {
    for (const nn::Parameter* p : model_->parameters())
      floats.push_back(p->sharded_value().local().detach().to_vector<float>());
  }

 private:
  const DeviceMesh mesh_;
  std::unique_ptr<nn::LanguageModel> model_;
  std::unique_ptr<nn::AdamW> optimizer_;
};

void add_results(const std::vector<Tensor>& results, Floats& floats) {
  for (const Tensor& result : results) floats.push_back(result.local().to_vector<float>());
}

/// The first step is an eager one, so that the optimizer has its state; `run` makes the others.
template <class Run>
Floats trained(const PlannedCase& c, const Group& group, const Run& run) {
  PlannedTraining training(c, group);
  Floats floats;
  for (int i = 0; i < kSteps; ++i) {
    nn::set_step(i);
    const std::vector<Tensor> in = training.batch(i);
    add_results(i == 0 ? training.step(in) : run(training, in), floats);
  }
  training.add_values(floats);
  return floats;
}

std::string planned_text(const PlannedCase& c, const Group& group) {
  PlannedTraining training(c, group);
  nn::set_step(0);
  training.step(training.batch(0));
  nn::set_step(1);
  const std::vector<Tensor> in = training.batch(1);
  Recorder recorder(in);
  const std::vector<Tensor> results = training.step(in);
  const Graph graph = recorder.finish(results);
  const std::vector<ir::Pass> passes = ir::standard_passes();
  const Fitted fitted = fit_program(lower(graph), {.budget = "85%", .passes = passes, .group = group.get()});
  EXPECT_LE(fitted.footprint.peak, fitted.recorded_peak * 85 / 100);
  const std::string text = ir::text(fitted.program);
  const Program read = ir::parse(text);
  EXPECT_EQ(read, fitted.program);
  EXPECT_EQ(read.hash(), fitted.program.hash());
  return text;
}

template <class Value, class Body>
std::vector<Value> by_rank(int ranks, const Body& body) {
  std::vector<Value> values(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](const Group& group) { values[static_cast<std::size_t>(group->rank())] = body(group); });
  return values;
}

TEST(PlannedStep, TrainsOnARankThatHasNeverRecordedIt) {
  std::vector<PlannedCase> cases{{false, 2, false, true}, {true, 2, true, true}};
  for (const bool is_llama : {false, true})
    for (const bool bf16 : {false, true})
      for (const int ranks : {1, 2}) cases.push_back({is_llama, ranks, bf16});
  for (const PlannedCase& c : cases) {
    SCOPED_TRACE(c.text());
    const auto expected = by_rank<Floats>(c.ranks, [&](const Group& group) {
      return trained(c, group, [](PlannedTraining& t, std::span<const Tensor> in) { return t.step(in); });
    });
    const auto texts = by_rank<std::string>(c.ranks, [&](const Group& group) { return planned_text(c, group); });
    const auto actual = by_rank<Floats>(c.ranks, [&](const Group& group) {
      return trained(c, group, [&](PlannedTraining&, std::span<const Tensor> in) {
        const Graph graph = bind(ir::parse(texts[static_cast<std::size_t>(group->rank())]));
        EXPECT_EQ(argument_mismatch(graph, in), "");
        EXPECT_EQ(setting_mismatch(graph), "");
        EXPECT_EQ(slot_mismatch(graph), "");
        return Interpreter(graph).run(in);
      });
    });
    EXPECT_TRUE(actual == expected);
  }
}

// Rank 1 has less room than its plan needs. Afterwards both go on, within the budget again.
TEST(PlannedStep, AllRanksSayWhatTheOneHoldsThatHasNoMemory) {
  std::string predicted;
  const auto texts = by_rank<std::string>(2, [&](const Group& group) {
    PlannedTraining training({false, 2, false}, group);
    CompiledStep step([&](std::span<const Tensor> in) { return training.step(in); },
                      {.group = group, .memory_budget = "85%"});
    const auto make_steps = [&](int first, int last) {
      for (int i = first; i < last; ++i) {
        nn::set_step(i);
        step(training.batch(i));
      }
    };
    make_steps(0, kSteps);
    EXPECT_EQ(step.mode(), CompiledStep::Mode::replay);
    Allocator& allocator = RankContext::current().allocator();
    std::string text;
    if (group->rank() == 1) {
      predicted = describe(step.predicted()->bytes);
      allocator.set_limit((allocator.accounting().total() + step.predicted()->peak) / 2);
    }
    try {
      make_steps(kSteps, kSteps + 1);
    } catch (const Error& error) { text = error.what(); }
    allocator.set_limit(0);
    nn::reset_after_error(training.model());
    make_steps(kSteps, 2 * kSteps);
    EXPECT_EQ(step.mode(), CompiledStep::Mode::replay);
    return text;
  });
  for (const std::string& text : texts)
    for (const std::string& word :
         {std::string("out of memory"), std::string("owners"), std::string("predicted"), predicted})
      EXPECT_NE(text.find(word), std::string::npos) << word << " is not in " << text;
}

}  // namespace
}  // namespace sherd::testing
